//! How often further links are looked at, each of which takes a system call.

use std::time::{Duration, Instant};

/// Polls between two looks after one that found something, or after a send.
const FEW: u32 = 1;
/// The most polls between two looks: where a further link has a peer, and where it only listens.
const MOST: u32 = 1024;
const LISTENING: u32 = 8192;
/// The longest time between two looks, if polls are so rare that fewer than these take it.
const LONGEST: Duration = Duration::from_millis(10);

/// Counts polls. Few are between two looks after one that found something and after a send, and twice as many
/// after each look. Where a further link has a peer and shared memory brings no frames they are halved, down
/// to none. Where it only listens they are not: a process waits for peers of its own host there, and a system
/// call a poll would delay each frame and each send that waits for room.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Pace {
    /// Polls until the next look.
    rest: u32,
    /// How many of these a poll is: 0 while there are no further links.
    step: u32,
    /// Shared memory has brought a frame since the last look.
    near: bool,
    period: u32,
    most: u32,
    /// A further link has a peer.
    peers: bool,
    /// The next look is one at shared memory alone, in the place of a poll until it.
    near_only: bool,
    /// When the last look was, as far as is known.
    looked: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            rest: MOST,
            step: 0,
            period: FEW,
            most: LISTENING,
            peers: false,
            near_only: false,
            near: false,
            looked: None,
        }
    }
}

impl Pace {
    /// There are further links from now on.
    pub(super) fn begin(&mut self) {
        (self.step, self.rest) = (1, 0);
    }

    /// A further link has a peer from now on.
    pub(super) fn has_peer(&mut self) {
        (self.most, self.peers) = (MOST, true);
        self.period = self.period.min(MOST);
    }

    /// Counts a poll, unless it is to be a look.
    #[inline(always)]
    pub(super) fn step(&mut self) -> bool {
        if self.rest == 0 {
            return true;
        }
        self.rest -= self.step;
        false
    }

    /// Whether shared memory has brought a frame.
    #[inline(always)]
    pub(super) fn note_near(&mut self, found: bool) {
        self.near |= found;
    }

    /// Further links are polled at this time, or somewhat later.
    pub(super) fn polled(&mut self, now: Instant) {
        self.looked = Some(now);
    }

    /// It is this time, or somewhat later.
    pub(super) fn note_time(&mut self, now: Instant) {
        // The clock is read now and then alone, so that mostly nothing is to be subtracted.
        let is_late = |looked| looked != now && now.saturating_duration_since(looked) >= LONGEST;
        if self.looked.is_some_and(is_late) {
            self.poll_next();
        }
    }

    /// An answer may come by a further link. `only_far`: no peer has sent anything by shared memory, which
    /// needs no polls of its own.
    pub(super) fn hurry(&mut self, only_far: bool) {
        self.period = self.period.min(FEW);
        self.rest = if only_far && self.step > 0 { 0 } else { self.rest.min(self.period) };
        self.near_only &= !only_far;
    }

    /// The next poll is a look: it is that after a sleep.
    pub(super) fn poll_next(&mut self) {
        if self.step > 0 {
            (self.rest, self.near_only) = (0, false);
        }
    }

    /// Whether this look is one at shared memory alone: [`Pace::found`] puts such a poll before the next one,
    /// which does nothing for rings that are not there.
    #[inline(always)]
    pub(super) fn take_near_only(&mut self) -> bool {
        std::mem::take(&mut self.near_only)
    }

    /// Polls between two looks, as it is now.
    #[cfg(all(test, not(loom)))]
    pub(super) fn period(&self) -> u32 {
        self.period
    }

    /// A look has found something. Shared memory has its turn before the next one, and a caller that asks for
    /// more at once does not wait for a system call, which mostly finds nothing. `only_far`: no peer has sent
    /// anything by shared memory.
    pub(super) fn found(&mut self, only_far: bool) {
        (self.period, self.near) = (self.period.min(FEW), false);
        (self.rest, self.near_only) = if only_far && self.step > 0 { (0, true) } else { (1, false) };
    }

    /// A look has found nothing.
    pub(super) fn missed(&mut self) {
        self.rest = self.period;
        let longer = (2 * self.period).clamp(FEW, self.most);
        let near = std::mem::take(&mut self.near);
        self.period = if near || !self.peers { longer } else { self.period / 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls until the next look, which finds nothing.
    fn polls(pace: &mut Pace, near: bool) -> u32 {
        let mut n = 0;
        while !pace.step() || pace.take_near_only() {
            n += 1;
            pace.note_near(near);
            assert!(n <= LISTENING);
        }
        pace.note_near(near);
        pace.missed();
        n
    }

    #[test]
    fn looks_are_frequent_only_while_a_further_link_has_a_peer_and_shared_memory_is_quiet() {
        let mut pace = Pace::default();
        assert!(!(0..2 * MOST).any(|_| pace.step()), "there are no further links");
        pace.begin();
        assert_eq!(polls(&mut pace, false), 0);
        let listening: Vec<u32> = (0..16).map(|n| polls(&mut pace, n % 2 == 0)).collect();
        assert_eq!(listening, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8192, 8192]);
        assert_eq!(polls(&mut pace, false), 8192, "nothing but peers of this host is waited for");
        pace.has_peer();
        assert_eq!(polls(&mut pace, true), 8192, "the look that was due comes when it was");
        assert_eq!((polls(&mut pace, true), polls(&mut pace, true)), (1024, 1024));
        let idle: Vec<u32> = (0..13).map(|_| polls(&mut pace, false)).collect();
        assert_eq!(idle, [1024, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 0]);
        let found: [fn(&mut Pace); 2] = [|pace| pace.found(false), |pace| pace.found(true)];
        let hurry: [fn(&mut Pace); 2] = [|pace| pace.hurry(false), |pace| pace.hurry(true)];
        // What comes between a look that found something and the next poll.
        let then: [fn(&mut Pace); 4] = [
            |pace| (pace.found(true), pace.hurry(false)).1,
            |pace| (pace.found(true), pace.hurry(true)).1,
            |pace| (pace.found(true), pace.poll_next()).1,
            |pace| assert!((pace.found(true), pace.step() && pace.take_near_only()).1),
        ];
        let then = then.into_iter().zip([1, 0, 0, 0]);
        for (soon, until) in
            [(found[0], 1), (found[1], 1), (hurry[0], 1), (hurry[1], 0)].into_iter().chain(then)
        {
            for _ in 0..12 {
                polls(&mut pace, true);
            }
            soon(&mut pace);
            assert_eq!(polls(&mut pace, true), until);
        }
    }
}
