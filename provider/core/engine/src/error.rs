//! Why a call or an operation fails.

use std::fmt;

use link_api::{Gone, Refused};

/// Why an operation failed, or was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Not now: progress, then try again.
    Again,
    /// An argument is out of range or does not fit the object.
    Invalid,
    /// The address is not in the address vector.
    NoAddr,
    /// The buffer or the resource is too small for what was asked.
    TooBig,
    /// The object is still in use.
    Busy,
    /// The message was longer than the buffer.
    Truncated,
    /// Cancelled by the application.
    Cancelled,
    /// No such message (peek).
    NoMessage,
    /// Nothing listens at the peer's address.
    Refused,
    /// The peer ended or closed.
    Reset,
    /// The peer is on a host no link goes to.
    Unreachable,
    /// Nothing has answered at the peer's address for as long as that may take.
    TimedOut,
    /// Its counter did not change for the time limit that the application has set.
    Overdue,
    /// The peer belongs to another user or speaks another version.
    Denied,
    /// There are no descriptors or no memory to meet the peer with.
    Exhausted,
    /// The target knows no such key.
    BadKey,
    /// The registration does not allow it.
    Access,
    /// Outside the registration.
    Range,
    /// The peer cannot do this.
    Unsupported,
    /// The bytes could not be moved.
    Io,
    /// The target's registered memory is not mapped.
    Fault,
    /// A key is taken.
    KeyInUse,
    /// Nothing of that name or number.
    NotFound,
    /// The completion queue lost an entry.
    Overrun,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Again => "no room now; make progress and try again",
            Error::Invalid => "an argument is out of range for this object",
            Error::NoAddr => "the address is not in the bound address vector; insert it first",
            Error::TooBig => "longer than this object allows; see the limits in its attributes",
            Error::Busy => "still in use; close what refers to it first",
            Error::Truncated => "the message was longer than the posted buffer",
            Error::Cancelled => "cancelled by the application",
            Error::NoMessage => "no such message has arrived",
            Error::Refused => "nothing listens at the peer's address",
            Error::Reset => "the peer process ended, or closed its endpoint",
            Error::Unreachable => "no link leads to the peer, or no route to its host",
            Error::TimedOut => {
                "nothing answers at the peer's address: a firewall drops what is sent there, or its host is down or its \
                 process stopped; the log has the address"
            }
            Error::Overdue => {
                "the time limit of its counter is over: the triggering counter did not reach the threshold, or the peer did \
                 not take part; the log names the operation"
            }
            Error::Denied => "the peer belongs to another user or job, or runs another version of Strait: the log says which",
            Error::Exhausted => {
                "no descriptors or memory, here or at the peer, for a channel to it; raise RLIMIT_NOFILE (ulimit -n)"
            }
            Error::BadKey => "the target has no registration with that key",
            Error::Access => "the target's registration does not allow this access",
            Error::Range => "the range is not inside the target's registration",
            Error::Unsupported => "the target does not support this operation",
            Error::Io => "the bytes could not be moved",
            Error::Fault => {
                "the target has registered this memory, but it is not mapped there, or not for this access"
            }
            Error::KeyInUse => "another registration has that key",
            Error::NotFound => "nothing of that name",
            Error::Overrun => "the completion queue was too small and lost an entry",
        })
    }
}

impl std::error::Error for Error {}

impl From<Refused> for Error {
    fn from(why: Refused) -> Error {
        match why {
            Refused::Busy => Error::Again,
            Refused::Gone(why) => why.into(),
            Refused::Fault => Error::Io,
        }
    }
}

impl From<Gone> for Error {
    fn from(why: Gone) -> Error {
        match why {
            Gone::Refused => Error::Refused,
            Gone::Reset => Error::Reset,
            Gone::Unreachable => Error::Unreachable,
            Gone::TimedOut => Error::TimedOut,
            Gone::Denied => Error::Denied,
            Gone::Exhausted => Error::Exhausted,
        }
    }
}

impl Error {
    /// Whether it says that a peer is not there, and why.
    pub(crate) fn gone(self) -> Option<Gone> {
        Some(match self {
            Error::Refused => Gone::Refused,
            Error::Reset => Gone::Reset,
            Error::Unreachable => Gone::Unreachable,
            Error::TimedOut => Gone::TimedOut,
            Error::Denied => Gone::Denied,
            Error::Exhausted => Gone::Exhausted,
            _ => return None,
        })
    }
}
