//! What goes wrong, with the errno that C gets and what to do about it.

use std::{fmt, io};

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// An argument is wrong; which, and what it may be.
    Invalid(String),
    /// An address is not one of this pipe, or is of a block that was freed, or freed twice.
    Stale(String),
    /// There is no room in the heap now.
    Full(String),
    /// The message is longer than the pipe is wide, or than its heap.
    TooLong(String),
    /// It has not happened within the time, or not yet.
    Again,
    /// The time was over, and what was begun was given up.
    TimedOut(String),
    /// The peer has ended, or has closed the pipe.
    Gone(String),
    /// The peer broke the protocol: the pipe is closed.
    Broken(String),
    /// The backend, or the bootstrap, cannot do this here.
    Unsupported(String),
    /// It is for another process of the job to do.
    Denied(String),
    /// There are no descriptors or no memory for it.
    Exhausted(String),
    /// A system call, or the library below, failed.
    System(String),
}

impl Error {
    /// A read of `most` bytes at most meets a message of `len`.
    pub(crate) fn too_long(len: usize, most: usize) -> Error {
        Error::TooLong(format!(
            "the next message has {len} bytes, more than the {most} that are wanted; it stays: read with more"
        ))
    }

    /// The same, with the rank that it is of.
    pub(crate) fn of(self, rank: u32) -> Error {
        let of = |why: String| {
            let named = why.starts_with(&format!("rank {rank} "));
            if named { why } else { format!("rank {rank}: {why}") }
        };
        match self {
            Error::Again => Error::Again,
            Error::Invalid(why) => Error::Invalid(of(why)),
            Error::Stale(why) => Error::Stale(of(why)),
            Error::Full(why) => Error::Full(of(why)),
            Error::TooLong(why) => Error::TooLong(of(why)),
            Error::TimedOut(why) => Error::TimedOut(of(why)),
            Error::Gone(why) => Error::Gone(of(why)),
            Error::Broken(why) => Error::Broken(of(why)),
            Error::Unsupported(why) => Error::Unsupported(of(why)),
            Error::Denied(why) => Error::Denied(of(why)),
            Error::Exhausted(why) => Error::Exhausted(of(why)),
            Error::System(why) => Error::System(of(why)),
        }
    }

    /// The errno that stands for it.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Invalid(_) => libc::EINVAL,
            Error::Stale(_) => libc::ESTALE,
            Error::Full(_) => libc::ENOBUFS,
            Error::TooLong(_) => libc::EMSGSIZE,
            Error::Again => libc::EAGAIN,
            Error::TimedOut(_) => libc::ETIMEDOUT,
            Error::Gone(_) => libc::EPIPE,
            Error::Broken(_) => libc::EPROTO,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::Denied(_) => libc::EPERM,
            Error::Exhausted(_) => libc::ENOMEM,
            Error::System(_) => libc::EIO,
        }
    }

    /// Of a system call that takes in what a peer has sent, which waits.
    pub(crate) fn lack(call: &str, e: &io::Error) -> Error {
        match Error::system(call, e) {
            Error::System(why) | Error::Exhausted(why) => {
                Error::Exhausted(format!("what a peer has sent cannot be taken in, and waits: {why}"))
            }
            other => other,
        }
    }

    /// Of a system call.
    pub fn system(call: &str, e: &io::Error) -> Error {
        match e.raw_os_error() {
            Some(libc::EMFILE) => Error::Exhausted(format!("{call}: {e}; raise RLIMIT_NOFILE (ulimit -n)")),
            Some(libc::ENFILE) => Error::Exhausted(format!(
                "{call}: {e}; raise the system's limit of open files (sysctl fs.file-max)"
            )),
            Some(libc::EFBIG) => Error::Exhausted(format!(
                "{call}: {e}; raise RLIMIT_FSIZE (ulimit -f), or make heaps smaller (STRAIT_RPIPE_HEAP), or what is lent"
            )),
            Some(libc::ENOMEM | libc::ENOSPC | libc::ENOBUFS) => Error::Exhausted(format!(
                "{call}: {e}; make heaps smaller (STRAIT_RPIPE_HEAP), or what is lent"
            )),
            _ => Error::System(format!("{call}: {e}")),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Again => f.write_str("not yet; call again, or give it more time"),
            Error::Invalid(why)
            | Error::Stale(why)
            | Error::Full(why)
            | Error::TooLong(why)
            | Error::TimedOut(why)
            | Error::Gone(why)
            | Error::Broken(why)
            | Error::Unsupported(why)
            | Error::Denied(why)
            | Error::Exhausted(why)
            | Error::System(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}
