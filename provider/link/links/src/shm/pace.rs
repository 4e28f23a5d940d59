//! How often a poll reads the clock and the sockets: reading either costs more than a poll of a ring.

use std::time::{Duration, Instant};

/// Polls between two readings of the clock, the fewer the longer they take.
const PACE: std::ops::RangeInclusive<u32> = 16..=128;

/// Polls between two polls of rings that are not hot: idle peers cost next to nothing, and get a turn also
/// while the hot ones never stop.
pub(super) const REST: u32 = 4;

/// Of so many polls while one peer is waited for, one polls the others' rings too. Their messages would be
/// taken in as unexpected, and a poll of a ring takes its next line away from the sender, which is about to
/// write it.
pub(super) const OTHERS: u32 = 16;

/// Time between two readings of the sockets.
const GAP: Duration = Duration::from_micros(50);
/// The same while no peer has sent anything yet: the first one should not wait.
const EAGER_GAP: Duration = Duration::from_micros(2);
/// A peer that has sent nothing for so long is not hot any more.
const COOL: Duration = Duration::from_millis(1);

/// The count of polls, and when each of the rarer duties was last done.
#[derive(Debug)]
pub(super) struct Pace {
    /// Polls so far, and at which one to read the clock.
    calls: u32,
    clock_at: u32,
    /// Polls from one reading of the clock to the next.
    pace: u32,
    /// The next poll has more to do than to poll rings.
    slow: bool,
    /// From one poll to the next it took longer than from one reading of the sockets to the next, when that
    /// was last known.
    rare: bool,
    /// Another link of the endpoint carries frames: the first call by this one may wait a little.
    patient: bool,
    /// When the clock was last read, and the sockets.
    clock_read: Instant,
    serviced: Instant,
    /// When the rings that are hot were last chosen.
    cooled: Instant,
}

/// What is due at a reading of the clock.
pub(super) struct Due {
    pub(super) now: Instant,
    pub(super) sockets: bool,
}

impl Pace {
    pub(super) fn new() -> Pace {
        let now = Instant::now();
        Pace {
            calls: 0,
            clock_at: *PACE.start(),
            pace: *PACE.start(),
            slow: true,
            rare: false,
            patient: false,
            clock_read: now,
            serviced: now,
            cooled: now,
        }
    }

    pub(super) fn set_patient(&mut self) {
        self.patient = true;
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn is_patient(&self) -> bool {
        self.patient
    }

    /// When the clock was last read.
    pub(super) fn clock(&self) -> Instant {
        self.clock_read
    }

    /// Counts a poll that polls rings alone; `false`, and nothing is counted, if it has more to do, as where
    /// a frame is `held`.
    #[inline(always)]
    pub(super) fn count_quick(&mut self, held: bool) -> bool {
        let calls = self.calls.wrapping_add(1);
        if (calls == self.clock_at) | self.slow | held {
            return false;
        }
        self.calls = calls;
        true
    }

    /// Counts a poll; whether it has more to do than to poll rings.
    #[inline(always)]
    pub(super) fn count(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        self.calls == self.clock_at || self.slow
    }

    /// Whether this poll polls rings that are not hot too.
    #[inline(always)]
    pub(super) fn is_time_for_cold(&self) -> bool {
        self.calls % REST == 0
    }

    /// Whether this poll polls the rings of others than the awaited peer.
    #[inline(always)]
    pub(super) fn is_time_for_others(&self) -> bool {
        self.calls % OTHERS == 0
    }

    /// Whether polls are rare: then each polls all rings, since what others have sent may be more than
    /// messages.
    #[inline(always)]
    pub(super) fn is_rare(&self) -> bool {
        self.rare
    }

    /// The next poll has more to do than to poll rings.
    pub(super) fn be_slow(&mut self) {
        self.slow = true;
    }

    /// Whether each poll asks if it is time to read the sockets: nothing else brings anything where no peer
    /// has a ring.
    pub(super) fn is_eager(&self, no_rings: bool) -> bool {
        no_rings && !self.patient
    }

    /// Whether this poll reads the clock.
    pub(super) fn reads_clock(&self, no_rings: bool) -> bool {
        self.calls == self.clock_at || self.is_eager(no_rings)
    }

    /// Reads the clock.
    pub(super) fn tick(&mut self, no_rings: bool) -> Due {
        let gap = if self.is_eager(no_rings) { EAGER_GAP } else { GAP };
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.clock_read, now));
        self.rare = since > GAP * self.pace;
        let pace = if since > GAP { self.pace / 2 } else { self.pace * 2 };
        self.pace = pace.clamp(*PACE.start(), *PACE.end());
        let sockets = now.duration_since(self.serviced) >= gap;
        if sockets {
            self.serviced = now;
        }
        Due { now, sockets }
    }

    /// Whether the hot rings are to be chosen anew, of `hot` that there are; each time it says so counts.
    pub(super) fn is_time_to_cool(&mut self, now: Instant, hot: usize) -> bool {
        let due = hot > 1 && now.duration_since(self.cooled) >= COOL;
        if due {
            self.cooled = now;
        }
        due
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn never_cool(&mut self) {
        self.cooled = Instant::now() + Duration::from_secs(3600);
    }

    /// A poll that had more to do is over; `again`: the next one has, too.
    pub(super) fn done(&mut self, again: bool) {
        if self.calls == self.clock_at {
            self.clock_at = self.calls.wrapping_add(self.pace);
        }
        self.slow = again;
    }
}
