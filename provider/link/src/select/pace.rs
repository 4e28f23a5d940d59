//! How often further links are looked at, each of which takes a system call.

/// The fewest polls and the most between two looks.
const FEWEST: u32 = 1;
const MOST: u32 = 512;

/// Counts polls. The fewest are between two looks after one that found something and after a send, twice as many after each look
/// while shared memory brings frames, and half as many while it does not.
#[derive(Debug)]
pub(super) struct Pace {
    /// Polls until the next look.
    rest: u32,
    /// How many of these a poll is: 0 while there are no further links.
    step: u32,
    period: u32,
    /// Shared memory has brought a frame since the last look.
    near: bool,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { rest: MOST, step: 0, period: FEWEST, near: false }
    }
}

impl Pace {
    /// There are further links from now on.
    pub(super) fn begin(&mut self) {
        (self.step, self.rest) = (1, 0);
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

    /// An answer may come by a further link.
    pub(super) fn hurry(&mut self) {
        self.period = FEWEST;
        self.rest = self.rest.min(FEWEST);
    }

    /// A look has found something. Shared memory has its turn before the next one.
    pub(super) fn found(&mut self) {
        (self.period, self.rest, self.near) = (FEWEST, 1, false);
    }

    /// A look has found nothing.
    pub(super) fn missed(&mut self) {
        self.rest = self.period;
        let period = if std::mem::take(&mut self.near) { 2 * self.period } else { self.period / 2 };
        self.period = period.clamp(FEWEST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls until the next look, which finds nothing.
    fn polls(pace: &mut Pace, near: bool) -> u32 {
        let mut n = 0;
        while !pace.step() {
            n += 1;
            pace.note_near(near);
            assert!(n <= MOST);
        }
        pace.missed();
        n
    }

    #[test]
    fn looks_are_rare_while_shared_memory_is_busy_and_frequent_otherwise() {
        let mut pace = Pace::default();
        assert!(!(0..2 * MOST).any(|_| pace.step()), "there are no further links");
        pace.begin();
        assert_eq!(polls(&mut pace, false), 0);
        let busy: Vec<u32> = (0..12).map(|_| polls(&mut pace, true)).collect();
        assert_eq!(busy, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512]);
        let idle: Vec<u32> = (0..11).map(|_| polls(&mut pace, false)).collect();
        assert_eq!(idle, [512, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1]);
        for soon in [Pace::hurry, Pace::found] {
            for _ in 0..12 {
                polls(&mut pace, true);
            }
            soon(&mut pace);
            assert_eq!(polls(&mut pace, true), 1);
        }
    }
}
