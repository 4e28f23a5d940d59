//! Resting under loom: a producer stores a command and wakes the thread, which is about to sleep. Twins lack
//! what the protocol relies on.

use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, fence};
use loom::thread;

use super::*;
use crate::twin::{Twin, TwinWord};

/// What a twin lacks.
#[derive(Clone, Copy, PartialEq)]
enum Lacks {
    Nothing,
    /// The waker's fence.
    WakersFence,
    /// The thread's fence.
    ThreadsFence,
}

struct Shared {
    command: TwinWord,
    woken: TwinWord,
    asleep: TwinWord,
    /// The descriptor that the thread sleeps on is readable.
    raised: AtomicBool,
}

/// One command, which the thread takes in its first poll, in the poll before its sleep, or once it is woken.
fn model(lacks: Lacks) {
    loom::model(move || {
        let word = || TwinWord::new(Twin::Sound);
        let shared = Arc::new(Shared {
            command: word(),
            woken: word(),
            asleep: word(),
            raised: AtomicBool::new(false),
        });
        let unless = |without: bool| {
            move || {
                if !without {
                    fence(SeqCst)
                }
            }
        };
        let theirs = shared.clone();
        let waker = thread::spawn(move || {
            theirs.command.store(1, Release);
            if wake(&theirs.woken, &theirs.asleep, unless(lacks == Lacks::WakersFence)) {
                theirs.raised.store(true, Release);
            }
        });
        let poll = || shared.command.load(Acquire) != 0;
        let sleeps = may_sleep(&shared.woken, &shared.asleep, unless(lacks == Lacks::ThreadsFence), poll);
        waker.join().unwrap();
        assert!(!sleeps || shared.raised.load(Acquire), "sleeps on a command");
    });
}

/// A call of a waker that comes before the thread is about to sleep keeps it awake, though there is no
/// command yet: the kernel is started after the call.
fn early() {
    loom::model(|| {
        let (woken, asleep) = (TwinWord::new(Twin::Sound), TwinWord::new(Twin::Sound));
        assert!(!wake(&woken, &asleep, || fence(SeqCst)));
        assert!(!may_sleep(&woken, &asleep, || fence(SeqCst), || false), "forgets that it was woken");
        assert!(may_sleep(&woken, &asleep, || fence(SeqCst), || false), "is kept awake for ever");
    });
}

#[test]
fn no_wake_up_is_lost() {
    model(Lacks::Nothing);
    early();
}

#[test]
#[should_panic(expected = "sleeps on a command")]
fn twin_without_the_wakers_fence_sleeps_on_a_command() {
    model(Lacks::WakersFence);
}

#[test]
#[should_panic(expected = "sleeps on a command")]
fn twin_without_the_threads_fence_sleeps_on_a_command() {
    model(Lacks::ThreadsFence);
}
