//! What can go wrong between this crate and a provider.

use std::fmt;

use libfabric_sys::{Core, FI_ENOSYS, FI_EOPNOTSUPP};

/// A failure, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// This library or provider does not offer what was requested.
    Unsupported(String),
    /// It was offered, and did not work.
    Failed(String),
}

impl Error {
    /// What was tried, and the number that it gave, which is negative.
    pub fn of(core: &Core, what: &str, number: i32) -> Error {
        let text = format!("{what}: {} ({number})", core.strerror(number));
        match -number == FI_ENOSYS || -number == FI_EOPNOTSUPP {
            true => Error::Unsupported(text),
            false => Error::Failed(text),
        }
    }

    /// The words.
    pub fn text(&self) -> &str {
        match self {
            Error::Unsupported(text) | Error::Failed(text) => text,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::Failed(text)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Failed(error.to_string())
    }
}
