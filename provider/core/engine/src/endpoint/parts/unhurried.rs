//! Conditions under which a call of progress does more than to poll for frames, apart from queues that are
//! not empty.

/// In one word, which each call of progress tests: whether the endpoint has a meter, whether it has unsent
/// messages ([`crate::endpoint::unsent`]), accesses in order, writes behind which no answer was requested
/// ([`crate::endpoint::parts::cumulative`]), and the number of peers that were sent a `Pause`.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Unhurried(usize);

impl Unhurried {
    const METERED: usize = 1;
    const UNSENT: usize = 2;
    const IN_ORDER: usize = 4;
    const TAILS: usize = 8;
    const PAUSED: usize = 16;

    /// Not 0 if any of them holds.
    #[inline(always)]
    pub(in crate::endpoint) fn any(&self) -> usize {
        self.0
    }

    pub(in crate::endpoint) fn set_metered(&mut self) {
        self.0 |= Self::METERED;
    }

    pub(in crate::endpoint) fn set_unsent(&mut self, are: bool) {
        self.set(Self::UNSENT, are);
    }

    pub(in crate::endpoint) fn set_in_order(&mut self, are: bool) {
        self.set(Self::IN_ORDER, are);
    }

    pub(in crate::endpoint) fn set_tails(&mut self, are: bool) {
        self.set(Self::TAILS, are);
    }

    pub(in crate::endpoint) fn has_tails(&self) -> bool {
        self.0 & Self::TAILS != 0
    }

    fn set(&mut self, bit: usize, on: bool) {
        self.0 = self.0 & !bit | if on { bit } else { 0 };
    }

    pub(in crate::endpoint) fn has_paused(&self) -> bool {
        self.0 >= Self::PAUSED
    }

    pub(in crate::endpoint) fn pause(&mut self) {
        self.0 += Self::PAUSED;
    }

    /// One peer fewer is paused, if this one was.
    pub(in crate::endpoint) fn resume(&mut self, was: bool) {
        if was {
            self.0 = self.0.saturating_sub(Self::PAUSED);
        }
    }

    pub(in crate::endpoint) fn resume_all(&mut self) {
        self.0 &= Self::PAUSED - 1;
    }
}
