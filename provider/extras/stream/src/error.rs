//! Why a call is refused.

use std::fmt;
use std::io;

use crate::failure::Failure;

/// Why a call is refused. Each is a sentence that says what to do.
#[derive(Debug)]
pub enum Error {
    /// An argument cannot be.
    Invalid(&'static str),
    /// A list has not room for the operations of a call, or a buffer for bytes.
    NoSpace {
        /// How many there are.
        needed: usize,
        /// For how many there is room.
        room: usize,
        /// Operations or bytes.
        what: &'static str,
    },
    /// A call that comes too early, or twice.
    State(&'static str),
    /// A stream, a graph or a list uses what was to be closed.
    Busy(&'static str),
    /// The endpoint has failed.
    Failed(Failure),
    /// The peer is on another host.
    OtherHost,
    /// What a peer said of itself cannot be.
    Blob(&'static str),
    /// The peer did not connect.
    NotConnected,
    /// The process of the peer has ended.
    Gone,
    /// The peer has closed its endpoint, or has given up.
    Closed,
    /// The peer is another user's, and shared memory is of one.
    OtherUser,
    /// A call in a child of the process that opened the endpoint.
    Forked,
    /// Memory is not where a stream finds it.
    NotForDevice(usize),
    /// A call on memory failed.
    Memory(&'static str, hmem::Error),
    /// A list was not executed.
    Executor(peerop::Error),
    /// The driver, the device or the path to the peer has no such operation.
    Unsupported(&'static str),
    /// The kernel that moves data is not there.
    Kernel(String),
    /// What the peer has registered cannot be mapped.
    NotMapped(String),
    /// What carries for an agent failed.
    Carrier {
        /// Its words.
        why: String,
        /// And its errno.
        errno: i32,
    },
    /// A system call failed.
    Os(io::Error),
}

impl Error {
    /// The errno of a call in C.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Invalid(_) | Error::Blob(_) => libc::EINVAL,
            Error::NoSpace { .. } => libc::ENOSPC,
            Error::State(_) => libc::EPERM,
            Error::Forked => libc::ECHILD,
            Error::Busy(_) => libc::EBUSY,
            Error::Failed(f) => f.errno,
            Error::OtherHost => libc::EHOSTUNREACH,
            Error::NotConnected => libc::ETIMEDOUT,
            Error::Gone => libc::ECONNRESET,
            Error::Closed => libc::EPIPE,
            Error::OtherUser => libc::EACCES,
            Error::NotForDevice(_) => libc::EFAULT,
            Error::Memory(_, e) => e.errno(),
            Error::Executor(e) => e.errno(),
            Error::Kernel(_) | Error::NotMapped(_) | Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::Carrier { errno, .. } => *errno,
            Error::Os(e) => e.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(why) | Error::State(why) | Error::Busy(why) | Error::Unsupported(why) => {
                f.write_str(why)
            }
            Error::NoSpace { needed, room, what } => {
                write!(f, "the call takes room for {needed} {what} and there is room for {room}: make more")
            }
            Error::Failed(failure) => write!(f, "{failure}"),
            Error::OtherHost => f.write_str(
                "the peer is on another host, or its options ask for an agent: open both sides with a key, or send by \
                 libfabric's deferred work (strait_fi_stream.h)",
            ),
            Error::Blob(why) => write!(f, "the blob of the peer: {why}"),
            Error::NotConnected => f.write_str("the peer did not connect in time: both sides call connect"),
            Error::Gone => f.write_str("the process of the peer has ended: connect to a blob of a new one"),
            Error::Closed => f.write_str(
                "the peer has closed its endpoint, or its connect has failed: connect to a blob of a new one",
            ),
            Error::OtherUser => f.write_str(
                "the process of the peer is another user's, and memory is shared between processes of one: open both \
                 sides with the same key, and have them reach each other by TCP alone",
            ),
            Error::Forked => f.write_str("the endpoint belongs to the parent of this process: open another"),
            Error::NotForDevice(at) => write!(
                f,
                "a stream cannot access memory at {at:#x}: pass device memory, or page-lock it (cuMemHostRegister)"
            ),
            Error::Memory(what, e) => write!(f, "{what} failed: {e}"),
            Error::Executor(e) => write!(f, "{e}"),
            Error::Kernel(why) => write!(f, "the kernel that moves data was not loaded: {why}"),
            Error::NotMapped(why) => write!(
                f,
                "a registration of the peer's cannot be mapped: {why}: keep it allocated there and in one allocation, or \
                 open both sides by an agent"
            ),
            Error::Carrier { why, .. } => write!(f, "the agent: {why}"),
            Error::Os(e) => write!(f, "{e}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        Error::Os(e)
    }
}

impl From<peerop::Error> for Error {
    fn from(e: peerop::Error) -> Error {
        Error::Executor(e)
    }
}
