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
}

impl Carried {
    pub(crate) fn polled(&self) {
        self.polls.fetch_add(1, Relaxed);
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
