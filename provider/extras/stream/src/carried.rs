//! What the agent of an endpoint says to its other threads.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What the agent says to the other threads of its endpoint.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    lost: AtomicBool,
    /// All that this side has said arrived, its end too.
    ended: AtomicBool,
    /// Lists have puts or gets.
    asked: AtomicBool,
    polls: AtomicU64,
    /// How much the carrier has done of what was begun.
    done: AtomicU64,
}

impl Carried {
    /// The agent has polled, and the carrier has done so much.
    pub(crate) fn polled(&self, done: u64) {
        self.polls.fetch_add(1, Relaxed);
        self.done.store(done, Relaxed);
    }

    pub(crate) fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    pub(crate) fn loses(&self) {
        self.lost.store(true, Release);
    }

    pub(crate) fn ends(&self) {
        self.ended.store(true, Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    pub(crate) fn asks(&self) {
        self.asked.store(true, Release);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Acquire)
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Relaxed)
    }
}
