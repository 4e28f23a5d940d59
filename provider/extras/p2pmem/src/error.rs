//! What can go wrong.

use std::fmt;
use std::io;

/// An error, with words that say what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The PCI tree makes no sense, or cannot be read.
    Topology(String),
    /// No PCI function has that address, and nothing made of one that name.
    NoDevice(String),
    /// A rule, or a line of a file of them.
    Rule(String),
    /// An argument is wrong.
    Invalid(String),
    /// No publisher may or can give that. The reason of each publisher.
    Refused(Vec<(String, String)>),
    /// There are buffers of it.
    Busy { publisher: String, buffers: usize, bytes: u64 },
    /// There is no such publisher or buffer.
    Unknown(String),
    /// It was taken back.
    Revoked(String),
    /// Not with this memory, or not by this process.
    Unsupported(String),
    /// This user may not.
    Forbidden(String),
    /// The kernel said no.
    Os(String, io::Error),
    /// The daemon said no: an errno, and its words.
    Daemon(i32, String),
}

impl Error {
    /// As an errno.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Topology(_) => libc::EIO,
            Error::NoDevice(_) => libc::ENODEV,
            Error::Rule(_) | Error::Invalid(_) => libc::EINVAL,
            Error::Refused(_) => libc::ENOMEM,
            Error::Busy { .. } => libc::EBUSY,
            Error::Unknown(_) => libc::ENOENT,
            Error::Revoked(_) => libc::ESTALE,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::Forbidden(_) => libc::EPERM,
            Error::Os(_, e) => e.raw_os_error().unwrap_or(libc::EIO),
            Error::Daemon(code, _) => *code,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoDevice(name) => write!(
                f,
                "{name}: no PCI function has that address or name; `strait topo` lists those that there are"
            ),
            Error::Refused(why) if why.is_empty() => {
                write!(f, "nothing publishes memory; `strait topo` lists publishers")
            }
            Error::Refused(why) => {
                write!(f, "no publisher gives it:")?;
                why.iter().try_for_each(|(name, why)| write!(f, " {name}: {why};"))
            }
            Error::Busy { publisher, buffers, bytes } => write!(
                f,
                "{publisher}: {buffers} buffers of {bytes} bytes are in use: free them, wait longer, or revoke them"
            ),
            Error::Unknown(what) => write!(f, "there is no {what}"),
            Error::Revoked(why) => write!(f, "the memory was revoked: {why}"),
            Error::Os(what, e) => write!(f, "{what}: {e}"),
            Error::Topology(text)
            | Error::Rule(text)
            | Error::Invalid(text)
            | Error::Unsupported(text)
            | Error::Forbidden(text)
            | Error::Daemon(_, text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}
