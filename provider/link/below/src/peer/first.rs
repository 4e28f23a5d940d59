//! The first message by the fabric, which is sent again until its answer has arrived.

use std::time::{Duration, Instant};

/// The first message is sent again after this time without an answer, and after twice the last time from then
/// on; sooner after a failure that the provider reports.
const AGAIN: Duration = Duration::from_millis(500);
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// Doublings of either, at most.
const DOUBLINGS: u32 = 5;
/// So many failures are too many where frames may go by the connection instead.
const FAILURES: u32 = 3;

/// When the first message is sent again, while the two meet.
#[derive(Debug, Default)]
pub(crate) struct First {
    /// When it is sent again, or for the first time where the provider refused it.
    again: Option<Instant>,
    /// How often it was sent, and how often it failed.
    repeats: u32,
    failures: u32,
    /// The peer takes a first message that is repeated.
    repeatable: bool,
}

impl First {
    /// Whether the peer takes a first message that is repeated.
    pub(crate) fn set_repeatable(&mut self, repeatable: bool) {
        self.repeatable = repeatable;
    }

    /// It was sent, for the first time or again. The side that decides repeats it.
    pub(crate) fn note_sent(&mut self, decides: bool) {
        let doubled = self.repeats.min(DOUBLINGS);
        self.again = (decides && self.repeatable).then(|| Instant::now() + AGAIN * (1 << doubled));
        self.repeats += 1;
    }

    /// It failed. Whether it is sent again, after a pause; the connection may serve instead if `fallback`.
    pub(crate) fn note_failed(&mut self, fallback: bool) -> bool {
        self.failures += 1;
        if !self.repeatable || fallback && self.failures >= FAILURES {
            return false;
        }
        let pause = AFTER_FAILURE * (1 << self.failures.min(DOUBLINGS));
        self.again = Some(Instant::now() + pause);
        true
    }

    /// It is sent again at once.
    pub(crate) fn repeat_now(&mut self) {
        self.again = Some(Instant::now());
    }

    /// Whether it is to be sent again, now or later.
    pub(crate) fn is_pending(&self) -> bool {
        self.again.is_some()
    }

    /// Whether it is to be sent again, and not yet.
    pub(crate) fn pauses(&self) -> bool {
        self.again.is_some_and(|again| Instant::now() < again)
    }

    /// Whether it is to be sent again now.
    pub(crate) fn is_due(&self) -> bool {
        self.again.is_some_and(|again| again <= Instant::now())
    }

    /// The two have agreed.
    pub(crate) fn settle(&mut self) {
        self.again = None;
    }
}
