use std::fmt;

use crate::{Kind, cuda};

/// Why memory cannot be asked about, reached or copied: the word of whoever refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Error {
    /// Whose word it is: [`Kind::System`] for an errno.
    pub of: Kind,
    /// The code, as that kind's interface has it.
    pub code: i32,
}

impl Error {
    /// An errno.
    pub const fn os(errno: i32) -> Error {
        Error { of: Kind::System, code: errno }
    }

    /// Not with memory of this kind.
    pub const UNSUPPORTED: Error = Error::os(libc::EOPNOTSUPP);
    /// There is no such memory.
    pub const FAULT: Error = Error::os(libc::EFAULT);

    /// The errno of the call that just failed.
    pub(crate) fn last_os() -> Error {
        Error::os(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// The errno nearest to it.
    pub fn errno(self) -> i32 {
        match self.of {
            Kind::Cuda => cuda::Error(self.code).errno(),
            _ => self.code,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Kind::Cuda => cuda::Error(self.code).fmt(f),
            Kind::Client => write!(f, "the client: {}", std::io::Error::from_raw_os_error(self.code)),
            _ => std::io::Error::from_raw_os_error(self.code).fmt(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} ({self})", self.of, self.code)
    }
}

impl std::error::Error for Error {}

impl From<cuda::Error> for Error {
    fn from(e: cuda::Error) -> Error {
        Error { of: Kind::Cuda, code: e.0 }
    }
}
