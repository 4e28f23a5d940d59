//! Which polls read the connections too, and which wait for what a peer sent before it ended.

use std::time::{Duration, Instant};

use link_api::{Gone, PeerId};

/// Of so many polls, all but one read the fabric alone.
const ROUND: u32 = 32;
/// How long what a peer has sent before it ended may take.
const LATE: Duration = Duration::from_secs(2);

/// The count of polls, and what keeps the connections from being read.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    polls: u32,
    /// A peer that has ended, though not all it sent has arrived: until when that is awaited.
    lame: Option<(PeerId, Gone, Instant)>,
    /// When idle peers were looked for last.
    swept: Option<Instant>,
}

impl Turns {
    /// Counts a poll.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.polls = self.polls.wrapping_add(1);
    }

    /// Whether this poll reads the connections, whatever else there is.
    #[inline]
    pub(crate) fn is_for_base(&self) -> bool {
        self.polls % ROUND == 0 || self.lame.is_some()
    }

    /// Whether idle peers are to be looked for, which is done once in so much time.
    pub(crate) fn is_for_idle(&mut self, now: Instant, period: Duration) -> bool {
        let is_due = self.swept.is_none_or(|swept| now.saturating_duration_since(swept) >= period);
        if is_due {
            self.swept = Some(now);
        }
        is_due
    }

    /// A peer has ended for this reason, though not all it sent has arrived.
    pub(crate) fn wait_for(&mut self, peer: PeerId, why: Gone) {
        self.lame = Some((peer, why, Instant::now() + LATE));
    }

    /// Such a peer, its reason, and until when it is awaited.
    pub(crate) fn awaited(&self) -> Option<(PeerId, Gone, Instant)> {
        self.lame
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.lame.is_some()
    }

    /// It is not awaited any more.
    pub(crate) fn stop_waiting(&mut self) {
        self.lame = None;
    }
}
