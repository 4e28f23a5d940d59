//! Why a call is refused, or bytecode does not run.

use std::fmt;

use crate::place::{Caps, Place, TargetId};

/// Why a call is refused, or bytecode does not run. Each is a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A list has not room for the operations of a call.
    NoSpace {
        /// How many there are.
        needed: usize,
        /// For how many there is room.
        room: usize,
    },
    /// A block of that many words.
    BlockLength(usize),
    /// An executor lacks operations.
    Lacks(Caps),
    /// No memory is registered under a number.
    NoTarget(TargetId),
    /// An access is not inside its memory, or not aligned.
    OutOfPlace(Place, u64),
    /// Memory that the CPU cannot access, for an executor that is the CPU.
    NotForCpu(TargetId),
    /// A send queue has not room for another request.
    QueueFull(usize),
    /// A commit without a request.
    NothingPosted,
    /// A rollback of no commit that is still to be executed.
    NoCommit,
    /// A rollback of a commit that others follow.
    Later(usize),
    /// A rollback of a commit whose bytecode has run.
    Released,
    /// A doorbell has a value that no commit gave it.
    Doorbell(u32),
    /// A completion queue has not room for another completion.
    Overrun(usize),
    /// A peek for no completion, or for one that the queue cannot hold yet.
    PeekRange {
        /// Which completion it is for, counted from those consumed.
        ahead: u64,
        /// Entries of the queue.
        size: u32,
    },
    /// As many peeks are under way as a completion queue has places for.
    Peeks(usize),
    /// A completion may not be consumed while a peek for it is under way.
    Peeked,
    /// A peek is over, or never was.
    NoPeek,
    /// A poll did not end in time.
    TimedOut,
    /// What a queue was opened with cannot be.
    Setup(&'static str),
    /// No means to raise a word from a graph in the way that is wanted.
    NoMeans(&'static str),
    /// A call of the device's driver failed.
    Driver {
        /// What was to be done.
        what: &'static str,
        /// The driver's code and its name.
        why: String,
        /// The errno nearest to it.
        errno: i32,
    },
}

impl Error {
    /// The errno of a call in C.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoSpace { .. } => libc::ENOSPC,
            Error::Lacks(_) | Error::NoMeans(_) => libc::EOPNOTSUPP,
            Error::NoTarget(_) | Error::NoCommit | Error::NoPeek => libc::ENOENT,
            Error::OutOfPlace(..) | Error::NotForCpu(_) => libc::EFAULT,
            Error::QueueFull(_) | Error::Peeks(_) => libc::ENOMEM,
            Error::Later(_) | Error::Peeked | Error::Released => libc::EBUSY,
            Error::Doorbell(_) => libc::EPROTO,
            Error::Overrun(_) => libc::EOVERFLOW,
            Error::PeekRange { .. } => libc::E2BIG,
            Error::TimedOut => libc::ETIMEDOUT,
            Error::BlockLength(_) | Error::NothingPosted | Error::Setup(_) => libc::EINVAL,
            Error::Driver { errno, .. } => *errno,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSpace { needed, room } => write!(
                f,
                "the call makes {needed} operations and the list has room for {room}: pass a longer list"
            ),
            Error::BlockLength(n) => {
                write!(f, "a block of {n} words: copy 1 to 64 words at once")
            }
            Error::Lacks(caps) => {
                write!(f, "the executor does not have {caps:?}: open the queue with what its caps() returns")
            }
            Error::NoTarget(id) => write!(f, "no memory is registered as {}: register it first", id.0),
            Error::OutOfPlace(place, len) => write!(
                f,
                "{len} bytes at {} of target {} are outside of it or not aligned: check the offset",
                place.offset, place.target.0
            ),
            Error::NotForCpu(id) => write!(
                f,
                "target {} is memory of a device that the CPU cannot access: execute the list on the device",
                id.0
            ),
            Error::QueueFull(n) => {
                write!(f, "{n} requests are queued, as many as the queue takes: execute commits, then post")
            }
            Error::NothingPosted => f.write_str("nothing is posted since the last commit: post first"),
            Error::NoCommit => f.write_str("no such commit is left: it was executed or rolled back"),
            Error::Later(n) => {
                write!(f, "{n} commits follow: roll back the last one first, or pass ABORT_LATE")
            }
            Error::Released => {
                f.write_str("the bytecode of the commit has run: its sends cannot be recalled")
            }
            Error::Doorbell(v) => write!(
                f,
                "the doorbell says {v:#x}, which no commit of this queue wrote: something else writes to its \
                 memory"
            ),
            Error::Overrun(n) => write!(f, "{n} completions wait, as many as the queue has: consume them"),
            Error::PeekRange { ahead, size } => write!(
                f,
                "a peek for completion {ahead} ahead of those consumed, of a queue with {size} entries: peek \
                 for 1 to {size}, or consume completions first"
            ),
            Error::Peeks(n) => write!(f, "{n} peeks are under way: execute or abort one first"),
            Error::Peeked => {
                f.write_str("a peek for this completion is under way: execute or abort it first")
            }
            Error::NoPeek => f.write_str("no such peek is under way: it ended or was aborted"),
            Error::TimedOut => f.write_str("a poll did not end in time: what it waits for was not written"),
            Error::Setup(why) => f.write_str(why),
            Error::NoMeans(why) => f.write_str(why),
            Error::Driver { what, why, .. } => write!(f, "{what} failed: {why}"),
        }
    }
}

impl std::error::Error for Error {}
