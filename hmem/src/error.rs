use std::fmt;

use crate::{Kind, cuda, rocr, ze};

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
            Kind::Rocr => rocr::Error(self.code).errno(),
            Kind::Ze => ze::Error(self.code).errno(),
            _ => self.code,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Kind::Cuda => cuda::Error(self.code).fmt(f),
            Kind::Rocr => rocr::Error(self.code).fmt(f),
            Kind::Ze => ze::Error(self.code).fmt(f),
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

/// The errors of a runtime are of its kind.
macro_rules! of_kind {
    ($($kind:ident $module:ident)*) => {$(
        impl From<$module::Error> for Error {
            fn from(e: $module::Error) -> Error {
                Error { of: Kind::$kind, code: e.0 }
            }
        }
    )*};
}

of_kind! { Cuda cuda Rocr rocr Ze ze }
