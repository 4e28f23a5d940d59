//! Why memory cannot be asked about, reached or copied.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::kind::Kind;

/// What the codes of an interface mean: each kind of memory has its own.
pub(crate) struct Codes {
    /// The kind; [`Kind::System`] for errnos.
    pub(crate) kind: Kind,
    /// The errno nearest to a code.
    pub(crate) errno: fn(i32) -> i32,
    /// A code in words.
    pub(crate) text: fn(i32, &mut fmt::Formatter<'_>) -> fmt::Result,
}

static OS: Codes = Codes {
    kind: Kind::System,
    errno: |code| code,
    text: |code, f| fmt::Display::fmt(&std::io::Error::from_raw_os_error(code), f),
};

/// Why memory cannot be asked about, reached or copied: a code of the interface that refused.
#[derive(Clone, Copy)]
pub struct Error {
    codes: &'static Codes,
    /// The code, as that interface has it.
    pub code: i32,
}

impl Error {
    pub(crate) const fn new(codes: &'static Codes, code: i32) -> Error {
        Error { codes, code }
    }

    /// An errno.
    pub const fn os(errno: i32) -> Error {
        Error::new(&OS, errno)
    }

    /// Not with memory of this kind.
    pub const UNSUPPORTED: Error = Error::os(libc::EOPNOTSUPP);
    /// There is no such memory.
    pub const FAULT: Error = Error::os(libc::EFAULT);

    /// The errno of the call that just failed.
    pub(crate) fn last_os() -> Error {
        Error::os(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// The kind of memory whose interface refused; [`Kind::System`] for an errno.
    pub fn kind(self) -> Kind {
        self.codes.kind
    }

    /// The errno nearest to it.
    pub fn errno(self) -> i32 {
        (self.codes.errno)(self.code)
    }
}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        (self.kind(), self.code) == (other.kind(), other.code)
    }
}

impl Eq for Error {}

impl Hash for Error {
    fn hash<H: Hasher>(&self, to: &mut H) {
        (self.kind(), self.code).hash(to);
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.codes.text)(self.code, f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} ({self})", self.kind(), self.code)
    }
}

impl std::error::Error for Error {}

/// Makes the errors of a kind's interface, `Error` where this is called, errors of this crate.
macro_rules! codes {
    ($kind:expr) => {
        impl From<Error> for $crate::error::Error {
            fn from(e: Error) -> $crate::error::Error {
                static CODES: $crate::error::Codes = $crate::error::Codes {
                    kind: $kind,
                    errno: |code| Error(code).errno(),
                    text: |code, f| std::fmt::Display::fmt(&Error(code), f),
                };
                $crate::error::Error::new(&CODES, e.0)
            }
        }
    };
}
pub(crate) use codes;
