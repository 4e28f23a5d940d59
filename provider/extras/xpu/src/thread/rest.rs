//! How a drain's thread rests, and what ends that: the words of the protocol, and nothing that sleeps.
//!
//! A device stores its commands and can wake no thread. So a rest has a limit, and what knows that commands
//! come may end it: the program, before it starts a kernel. A waker sets `woken`, and the thread that rests,
//! or is about to, finds it: each side stores its own word and then loads the other's, with a full fence in
//! between, so that one of the two loads sees the other's store. Commands that were stored before the call
//! are found by the poll behind the thread's fence.

use std::sync::atomic::Ordering::Relaxed;

use ipc::word::Word;

/// The waker's side, behind what the thread is to find: whether the thread has to be woken from its sleep.
pub(crate) fn wake<W: Word>(woken: &W, asleep: &W, full_fence: impl Fn()) -> bool {
    woken.store(1, Relaxed);
    full_fence();
    asleep.load(Relaxed) != 0
}

/// The thread's side: whether it may sleep. `poll`: whether there is something to do.
pub(crate) fn may_sleep<W: Word>(
    woken: &W,
    asleep: &W,
    full_fence: impl Fn(),
    poll: impl FnOnce() -> bool,
) -> bool {
    asleep.store(1, Relaxed);
    full_fence();
    let rests = woken.load(Relaxed) == 0 && !poll();
    if !rests {
        awake(woken, asleep);
    }
    rests
}

/// The thread's side: it is awake, and polls from now on for what it was woken for.
pub(crate) fn awake<W: Word>(woken: &W, asleep: &W) {
    asleep.store(0, Relaxed);
    woken.store(0, Relaxed);
}

#[cfg(all(test, loom))]
#[path = "rest_loom.rs"]
mod model;
