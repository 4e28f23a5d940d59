//! What each rank of a communicator says of itself in the memory that its ranks share: that it has failed,
//! that it calls no more collectives, and what its process is, which may have ended.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use device_ops::board::STRIDE;
use device_ops::nccl::Rank;
use ipc::Mapping;
use ipc::process::Name;

/// Where the name of a rank's process is, behind its word, whether NCCL or the device has failed there, and
/// whether it posts no more collectives that return a request, and whether it has nothing open of another
/// rank's memory any more.
pub(super) const PROCESS: usize = 8;
pub(super) const FAILED: usize = 16;
pub(super) const LEFT: usize = 48;
pub(super) const CLOSED: usize = 56;

/// A word of a rank's, of as many ranks as the memory was made for.
pub(super) fn word(memory: &Mapping, ranks: usize, rank: usize, at: usize) -> &AtomicU64 {
    assert!(rank < ranks && at < STRIDE && ranks * STRIDE <= memory.len());
    // SAFETY: inside, as was checked, and aligned: both are multiples of 8.
    unsafe { memory.wide(rank * STRIDE + at) }
}

/// The process of a rank, once that has come.
pub(super) fn process(memory: &Mapping, ranks: usize, rank: usize) -> Option<Name> {
    let name = word(memory, ranks, rank, PROCESS).load(Acquire);
    let name = Name { process: (name >> 32) as u32, namespace: name as u32 };
    (name.process != 0).then_some(name)
}

/// Why a rank posts no more collectives that return a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// MPI_Finalize has begun there.
    Finalize = 1,
    /// A rank has written words that cannot be: what this rank has posted it may never do.
    Broken = 2,
}

/// At which ranks of a communicator NCCL, or the device, has failed, and which ones are gone.
#[derive(Clone, Debug)]
pub(super) struct Marks {
    memory: Arc<Mapping>,
    at: Rank,
}

impl Marks {
    pub(super) fn new(memory: Arc<Mapping>, at: Rank) -> Marks {
        Marks { memory, at }
    }

    /// One of them.
    pub(super) fn one_failed(&self) -> Option<usize> {
        let ranks = self.at.size;
        (0..ranks).find(|rank| word(&self.memory, ranks, *rank, FAILED).load(Acquire) != 0)
    }

    /// Others see that it has failed here; what they get of this rank afterwards counts for nothing.
    pub(super) fn mark_failed(&self) {
        word(&self.memory, self.at.size, self.at.rank, FAILED).store(1, Release);
    }

    /// This rank has nothing open of another's memory any more.
    pub(super) fn mark_closed(&self) {
        word(&self.memory, self.at.size, self.at.rank, CLOSED).store(1, Release);
    }

    /// Whether no rank has, nor will have.
    pub(super) fn have_all_closed(&self) -> bool {
        let ranks = self.at.size;
        let gone = |r: usize| process(&self.memory, ranks, r).is_some_and(Name::has_ended);
        (0..ranks).all(|r| word(&self.memory, ranks, r, CLOSED).load(Acquire) != 0 || gone(r))
    }

    /// How many ranks there are.
    pub(super) fn ranks(&self) -> usize {
        self.at.size
    }

    /// A rank whose process has ended.
    pub(super) fn one_gone(&self) -> Option<usize> {
        let ranks = self.at.size;
        (0..ranks).find(|r| process(&self.memory, ranks, *r).is_some_and(Name::has_ended))
    }

    /// This rank posts no more collectives that return a request. [`Left::Broken`] stays.
    pub(super) fn mark_left(&self, why: Left) {
        if self.has_left(self.at.rank) != Some(Left::Broken) {
            word(&self.memory, self.at.size, self.at.rank, LEFT).store(why as u64, Release);
        }
    }

    /// Why a rank posts no more of them, where it does not.
    pub(super) fn has_left(&self, rank: usize) -> Option<Left> {
        match word(&self.memory, self.at.size, rank, LEFT).load(Acquire) {
            0 => None,
            2 => Some(Left::Broken),
            _ => Some(Left::Finalize),
        }
    }
}
