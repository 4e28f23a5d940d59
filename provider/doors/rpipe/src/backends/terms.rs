//! What the engine calls memory and errors.

use hmem::{Kind, Span};
use wire::RmaSeg;

use crate::Error;

impl From<engine::Error> for Error {
    fn from(e: engine::Error) -> Error {
        use engine::Error as E;
        match e {
            E::Again => Error::Again,
            E::Reset | E::Refused | E::Unreachable | E::TimedOut | E::Denied => Error::Gone(e.to_string()),
            E::Exhausted => Error::Exhausted(e.to_string()),
            _ => Error::System(e.to_string()),
        }
    }
}

impl From<runtime::Error> for Error {
    fn from(e: runtime::Error) -> Error {
        Error::System(e.to_string())
    }
}

/// Plain memory that stays until the engine is through with it: `ops` and `regions` keep it.
pub(super) fn span(address: *const u8, len: usize) -> Span {
    // SAFETY: every caller passes bytes of a region, which is kept until its registration is closed, or of a
    // buffer that `ops` keeps until the operation completes; or, for an injected put, bytes that the engine
    // has copied when it returns.
    unsafe { Span::new(address.expose_provenance(), len, Kind::System) }
}

pub(super) fn segment(at: usize, len: usize, key: u64) -> RmaSeg {
    RmaSeg { addr: (at as u64).into(), len: (len as u64).into(), key: key.into() }
}
