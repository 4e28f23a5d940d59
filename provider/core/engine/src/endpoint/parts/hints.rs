//! What a peer's last transfers say about the next ones: predictors of one peer. `adapt` has the endpoint's.
//! Gains: docs/measurements/predictors.md.
//!
//! | input | output | for |
//! |---|---|---|
//! | a large message is sent, a message comes | [`Hints::is_unanswered`] | eager sizes of messages one way |
//! | cooperative copies that go well or fail | [`Hints::helps`] | whether the peer copies its part |
//! | what it was given to copy, and has begun | [`Hints::delegated`] | whether it is given another one |
//! | how it took rendezvous payloads | [`Hints::fetches`] | the order of writes |
//! | what it could not put | [`Hints::can_put`] | device memory by handles |
//! | what it could not take | [`Hints::takes_bounces`] | device memory by bounce buffers |
//! | whether it answered in time | [`Hints::is_prompt`] | injected messages of devices |

use arrayvec::ArrayVec;
use link_api::PieceCounter;
use wire::Seg;
use xfer::Helper;

/// Whether the peer fetches this side's rendezvous payloads directly, as far as was seen. Once it did not,
/// that is what counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fetches {
    #[default]
    Unknown,
    Directly,
    ByFrames,
}

/// Messages a sender is given ahead: one to copy, and one to go on with.
const MOST_DELEGATED: usize = 2;

/// Most messages after one that was waited for in vain that are not.
const WARY: u8 = 63;

/// How promising it is to wait for a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Promptness {
    /// How many messages are still not to be waited for, and how many that were to be after the last that was
    /// in vain.
    skip: u8,
    skipped: u8,
}

impl Promptness {
    fn is_likely(&mut self) -> bool {
        let likely = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        likely
    }

    fn was(&mut self, prompt: bool) {
        self.skipped = if prompt { 0 } else { (2 * self.skipped + 1).min(WARY) };
        self.skip = self.skipped;
    }
}

#[derive(Debug, Default)]
pub(in crate::endpoint) struct Hints {
    /// It was sent a message longer than those that always travel eagerly, and has not sent one here since.
    unanswered: bool,
    /// It could not put what it was invited to, so it is not asked again.
    puts_not: bool,
    /// It could not take what was in bounce buffers here, so nothing goes to it so.
    bounces_not: bool,
    fetches: Fetches,
    /// Whether it is worth while to have it copy its part of large transfers.
    helper: Helper,
    /// What it was given to copy whole, as far as it has not been seen to begin.
    delegated: ArrayVec<PieceCounter, MOST_DELEGATED>,
    /// The memory of a device's that it named last: where it wanted bytes, or a bounce buffer.
    on_device: Option<Seg>,
    /// Whether it is worth while to wait for it.
    promptness: Promptness,
}

impl Hints {
    #[inline(always)]
    pub(in crate::endpoint) fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    #[inline(always)]
    pub(in crate::endpoint) fn set_unanswered(&mut self, unanswered: bool) {
        self.unanswered = unanswered;
    }

    /// Whether it is worth while to have it copy its part.
    #[inline(always)]
    pub(in crate::endpoint) fn helps(&self) -> bool {
        self.helper.can()
    }

    pub(in crate::endpoint) fn helper(&mut self) -> &mut Helper {
        &mut self.helper
    }

    /// What it was given to copy whole.
    pub(in crate::endpoint) fn delegated(&mut self) -> &mut ArrayVec<PieceCounter, MOST_DELEGATED> {
        &mut self.delegated
    }

    /// It has fetched a payload directly.
    pub(in crate::endpoint) fn note_fetched(&mut self) {
        if self.fetches == Fetches::Unknown {
            self.fetches = Fetches::Directly;
        }
    }

    /// It has requested frames, or will.
    pub(in crate::endpoint) fn note_frames(&mut self) {
        self.fetches = Fetches::ByFrames;
    }

    /// Whether it fetches payloads directly, and thus in order.
    pub(in crate::endpoint) fn fetches_directly(&self) -> bool {
        self.fetches == Fetches::Directly
    }

    pub(in crate::endpoint) fn can_put(&self) -> bool {
        !self.puts_not
    }

    pub(in crate::endpoint) fn note_no_put(&mut self) {
        self.puts_not = true;
    }

    pub(in crate::endpoint) fn takes_bounces(&self) -> bool {
        !self.bounces_not
    }

    pub(in crate::endpoint) fn note_no_bounces(&mut self) {
        self.bounces_not = true;
    }

    pub(in crate::endpoint) fn on_device(&self) -> Option<Seg> {
        self.on_device
    }

    pub(in crate::endpoint) fn note_on_device(&mut self, seg: Option<Seg>) {
        self.on_device = seg.or(self.on_device);
    }

    /// Whether it is likely to answer soon; each time this is asked counts.
    pub(in crate::endpoint) fn is_prompt(&mut self) -> bool {
        self.promptness.is_likely()
    }

    pub(in crate::endpoint) fn note_prompt(&mut self, prompt: bool) {
        self.promptness.was(prompt);
    }

    /// Its channel is gone: another process may have its name next.
    pub(in crate::endpoint) fn reset(&mut self) {
        *self = Hints { unanswered: self.unanswered, ..Hints::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_late_receiver_backs_off_and_is_tried_again() {
        let mut promptness = Promptness::default();
        let mut gaps = Vec::new();
        for _ in 0..9 {
            gaps.push((0..).find(|_| promptness.is_likely()).unwrap());
            promptness.was(false);
        }
        assert_eq!(gaps, [0, 1, 3, 7, 15, 31, 63, 63, 63]);
        while !promptness.is_likely() {}
        promptness.was(true);
        assert!(promptness.is_likely() && promptness.is_likely());
    }
}
