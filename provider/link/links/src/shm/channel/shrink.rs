//! Pages of rings that are hardly used any more.
//!
//! A ring takes memory as far as it was once used: where its consumer was behind, all of it. A burst to all
//! peers would so leave a full ring from each process to each other. Now and then each ring is looked at: of
//! one that little went through since, and that is empty, the sender gives the pages back to the kernel
//! (MADV_REMOVE), but for the first, with the control words, and that which the consumer polls. They read 0
//! then, which is no record. The next lap is short again.
//!
//! A page that is locked for a device must not go: the device would read it still, and the processor a new
//! one. The sender knows its own locks. Two words stand for those of the consumer: the sender says that it
//! gives pages back, then looks whether the consumer allows that; the consumer forbids it, then looks whether
//! the sender is at it, and locks nothing if so. Each needs a full fence between the two. A consumer that
//! knows nothing of this allows nothing.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use ipc::word::Word;

/// From one look at a ring to the next, at least.
const ROUND: Duration = Duration::from_secs(1);
/// From one look at some rings to that at the next ones, while a round lasts.
const STEP: Duration = Duration::from_millis(5);
/// Peers whose rings are looked at together, up to the first one that gives pages back: that takes about a
/// microsecond for each page.
pub(in crate::shm) const TOGETHER: usize = 8;
/// From such a one to the look at the next ones.
const PAUSE: Duration = Duration::from_micros(5000 / TOGETHER as u64);

/// Sender: from now on, until [`end`], pages are given back; `false` if the consumer does not allow that.
pub(in crate::shm) fn begin(giving: &impl Word, allowed: &impl Word, fence: impl FnOnce()) -> bool {
    giving.store(1, Relaxed);
    fence();
    let begun = allowed.load(Relaxed) == 1;
    if !begun {
        end(giving);
    }
    begun
}

/// Sender: no page is given back any more.
pub(in crate::shm) fn end(giving: &impl Word) {
    // Release: the pages are gone before.
    giving.store(0, Release);
}

/// Consumer: no page is given back any more, for good, if this is true. Else it is to be asked again.
pub(in crate::shm) fn forbid(giving: &impl Word, allowed: &impl Word, fence: impl FnOnce()) -> bool {
    allowed.store(0, Relaxed);
    fence();
    // Acquire: pages that are locked next are none of those that went.
    giving.load(Acquire) == 0
}

/// Which rings are looked at next, and when.
#[derive(Debug)]
pub(in crate::shm) struct Shrinking {
    round: Instant,
    /// When rings are looked at next.
    due: Instant,
    next: usize,
}

impl Shrinking {
    pub(in crate::shm) fn new() -> Shrinking {
        let now = Instant::now();
        Shrinking { round: now, due: now + STEP, next: 0 }
    }

    /// The first of the peers whose rings are looked at now.
    pub(in crate::shm) fn is_due(&mut self, now: Instant, peers: usize) -> Option<usize> {
        if self.next >= peers {
            if now.duration_since(self.round) < ROUND {
                return None;
            }
            self.round = now;
            self.next = 0;
        }
        if now < self.due {
            return None;
        }
        self.due = now + STEP;
        let first = self.next;
        self.next += TOGETHER;
        Some(first)
    }

    /// Pages were given back of the ring to that peer, and those behind it were not looked at.
    pub(in crate::shm) fn gave(&mut self, peer: usize, now: Instant) {
        self.next = peer + 1;
        self.due = now + PAUSE;
    }
}

#[cfg(all(test, loom))]
#[path = "shrink_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
#[path = "shrink_tests.rs"]
mod tests;
