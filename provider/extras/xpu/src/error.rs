//! Failures: the codes that devices read, and the errors that callers get.

use std::fmt;

use crate::layout::ERROR_ENDED;

/// Errnos as a device sees them: libfabric's numbers.
pub mod code {
    pub use libc::{
        EACCES as ACCES, EADDRNOTAVAIL as ADDRNOTAVAIL, EAGAIN as AGAIN, EBUSY as BUSY,
        ECANCELED as CANCELED, ECONNREFUSED as CONNREFUSED, ECONNRESET as CONNRESET, EFAULT as FAULT,
        EHOSTUNREACH as HOSTUNREACH, EINVAL as INVAL, EIO as IO, EMFILE as MFILE, EMSGSIZE as MSGSIZE,
        ENOENT as NOENT, ENOMSG as NOMSG, ENOSYS as NOSYS, EOPNOTSUPP as OPNOTSUPP, ETIMEDOUT as TIMEDOUT,
    };
    /// Of those that only libfabric has.
    pub const OTHER: i32 = 256;
    /// A flag that means nothing here.
    pub const BADFLAGS: i32 = 260;
    /// A message was longer than its buffer.
    pub const TRUNC: i32 = 265;
    /// No such key.
    pub const NOKEY: i32 = 266;
    /// A queue lost an entry.
    pub const OVERRUN: i32 = 268;
    /// No such region here.
    pub const NOMR: i32 = 270;
}

/// The number of an error of the engine.
pub fn errno(e: engine::Error) -> i32 {
    use engine::Error;
    match e {
        Error::Again => code::AGAIN,
        Error::Invalid | Error::Range => code::INVAL,
        Error::NoAddr => code::ADDRNOTAVAIL,
        Error::TooBig => code::MSGSIZE,
        Error::Busy => code::BUSY,
        Error::Truncated => code::TRUNC,
        Error::Cancelled => code::CANCELED,
        Error::NoMessage => code::NOMSG,
        Error::Refused => code::CONNREFUSED,
        Error::Reset => code::CONNRESET,
        Error::Unreachable => code::HOSTUNREACH,
        Error::TimedOut | Error::Overdue => code::TIMEDOUT,
        Error::Denied | Error::Access => code::ACCES,
        Error::Exhausted => code::MFILE,
        Error::BadKey | Error::KeyInUse => code::NOKEY,
        Error::Unsupported => code::OPNOTSUPP,
        Error::Io => code::IO,
        Error::Fault => code::FAULT,
        Error::NotFound => code::NOENT,
        Error::Overrun => code::OVERRUN,
        _ => code::OTHER,
    }
}

/// Whether it says that the peer cannot be reached any more.
pub(crate) fn is_loss(e: engine::Error) -> bool {
    use engine::Error;
    matches!(e, Error::Reset | Error::Refused | Error::Unreachable | Error::TimedOut | Error::Denied)
}

/// An error word: what failed, and which command.
pub fn word(errno: i32, ticket: u64) -> u64 {
    errno as u32 as u64 | (ticket & 0x7fff_ffff) << 32
}

/// One that ends everything.
pub fn ended(errno: i32) -> u64 {
    word(errno, 0) | ERROR_ENDED
}

/// Why a call on the host failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument cannot be.
    Invalid(&'static str),
    /// A peer's blob is not one of this version.
    Blob(&'static str),
    /// It is too late: the context has begun, or has ended.
    State(&'static str),
    /// The engine refused.
    Engine(engine::Error),
    /// The runtime failed.
    Runtime(runtime::Error),
    /// Memory cannot be registered.
    Memory(hmem::Error),
    /// The system refused.
    System(std::io::Error),
}

impl Error {
    /// A positive errno.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Invalid(_) | Error::Blob(_) => code::INVAL,
            Error::State(_) => code::BUSY,
            Error::Engine(e) => errno(*e),
            Error::Runtime(_) => code::IO,
            Error::Memory(e) => e.errno(),
            Error::System(e) => e.raw_os_error().unwrap_or(code::IO),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(what) | Error::State(what) => f.write_str(what),
            Error::Blob(what) => write!(f, "a peer's blob: {what}"),
            Error::Engine(e) => e.fmt(f),
            Error::Runtime(e) => e.fmt(f),
            Error::Memory(e) => e.fmt(f),
            Error::System(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<engine::Error> for Error {
    fn from(e: engine::Error) -> Error {
        Error::Engine(e)
    }
}

impl From<runtime::Error> for Error {
    fn from(e: runtime::Error) -> Error {
        Error::Runtime(e)
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::System(e)
    }
}
