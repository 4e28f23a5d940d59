//! The words of a group, over any sort of words.
//!
//! A member publishes a step by a word of its own, behind the bytes that belong to it (Release), and others
//! load that word before they take any (Acquire). A member that has finished a step says so the same way, and
//! is looked at before the slot is filled again: what it loaded came before.
//!
//! A member that is about to sleep says so in a word of its own, and in one of the group that all members
//! load: it fences, and polls once more what it waits for. The others publish, fence, and load the group's
//! word. One of the two loads sees the other side's store.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ipc::word::{Wide, Word};
use link_api::Arrival;

/// A step is published; all that belongs to it was stored.
#[inline]
pub(super) fn publish<W: Wide>(step: &W, print: &W, now: u64, what: u64) {
    print.store(what, Relaxed);
    step.store(now, Release);
}

/// Whether a step was published under this print.
#[inline]
pub(super) fn arrival<W: Wide>(step: &W, print: &W, awaited: u64, what: u64) -> Arrival {
    match step.load(Acquire) {
        now if now < awaited => Arrival::Awaited,
        now if now == awaited && print.load(Relaxed) == what => Arrival::Here,
        _ => Arrival::Wrong,
    }
}

/// All up to this step is finished.
#[inline]
pub(super) fn finish<W: Wide>(finished: &W, step: u64) {
    finished.store(step, Release);
}

/// What a member has finished.
#[inline]
pub(super) fn finished<W: Wide>(finished: &W) -> u64 {
    finished.load(Acquire)
}

/// This member is to be woken; the words that it waits for are to be polled behind this.
pub(super) fn sleep<W: Word>(asleep: &W, any: &W, fence: impl FnOnce()) {
    asleep.store(1, Relaxed);
    any.store(1, Release);
    fence();
}

/// After a step was published or finished: whether a member may sleep.
#[inline]
pub(super) fn may_sleep<W: Word>(any: &W, fence: impl FnOnce()) -> bool {
    fence();
    any.load(Acquire) != 0
}

/// Members that sleep are about to be woken: one that sleeps from now on says so again.
pub(super) fn begin_wake<W: Word>(any: &W, fence: impl FnOnce()) {
    any.store(0, Relaxed);
    fence();
}

/// Whether that member sleeps, and is to be woken by this caller.
pub(super) fn take_sleeper<W: Word>(asleep: &W) -> bool {
    asleep.load(Relaxed) != 0 && asleep.fetch_and(0, Relaxed) != 0
}

#[cfg(all(test, loom))]
#[path = "words_loom.rs"]
mod model;
