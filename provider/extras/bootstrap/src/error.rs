//! What can go wrong, in words.

use std::fmt;

/// Most bytes that one process gives to an [`Exchange::allgather`](crate::Exchange::allgather).
pub const LONGEST: usize = 1 << 20;

/// A failure, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The environment does not say what it has to, or what it says cannot be parsed.
    Environment(String),
    /// Other processes did not come, or have gone.
    Peers(String),
    /// A launcher, a library or the operating system refused.
    System(String),
}

impl Error {
    /// The words.
    pub fn text(&self) -> &str {
        match self {
            Error::Environment(text) | Error::Peers(text) | Error::System(text) => text,
        }
    }

    /// `Err` for more bytes than one process may give.
    pub(crate) fn check_length(mine: &[u8]) -> Result<(), Error> {
        match mine.len() <= LONGEST {
            true => Ok(()),
            false => Err(Error::System(format!(
                "{} bytes for an exchange of the bootstrap, which takes {} of each process",
                mine.len(),
                LONGEST
            ))),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Error {}
