//! Whether two ends close a connection by which nothing goes: both give back what it takes, and the next
//! operation of either connects anew.
//!
//! An end proposes that by the connection that the two meet by, with how many messages it has sent and
//! taken, and sends none by the fabric until it is answered. The other end closes, and says so, if it counts
//! the same and nothing else is under way there; else it declines. Where both propose at once, the proposal
//! of each is the answer to the other's: both close if the two agree. What counts is what was proposed, since
//! a message may have arrived after that.
//!
//! An end goes on to wait for the answer where its device reports a loss meanwhile: where the other end has
//! closed, nothing acknowledges a message that has come.

use std::time::{Duration, Instant};

/// How many messages an end has sent by the fabric, and how many it has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Counts {
    pub(crate) sent: u32,
    pub(crate) came: u32,
}

impl Counts {
    /// Whether all that either end has sent was taken.
    fn agrees(self, theirs: Counts) -> bool {
        (self.sent, self.came) == (theirs.came, theirs.sent)
    }
}

/// What follows from a proposal of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is closed; the peer is answered so if `true`.
    Close(bool),
    /// It stays; the peer is answered so if `true`.
    Stay(bool),
}

/// A proposal of this end that is not answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Proposal(Option<Counts>);

impl Proposal {
    /// This end, where nothing is under way, proposes.
    fn make(&mut self, ours: Counts) {
        self.0 = Some(ours);
    }

    /// Whether nothing is to be sent.
    #[inline]
    fn holds(&self) -> bool {
        self.0.is_some()
    }

    /// The peer proposes. `ours`: what this end counts, if nothing else is under way.
    fn hear(&mut self, theirs: Counts, ours: Option<Counts>) -> Heard {
        let (says, ours) = match self.0.take() {
            Some(proposed) => (false, Some(proposed)),
            None => (true, ours),
        };
        if ours.is_some_and(|ours| ours.agrees(theirs)) { Heard::Close(says) } else { Heard::Stay(says) }
    }

    /// The peer answers; whether there was something to answer.
    fn hear_answer(&mut self) -> bool {
        self.0.take().is_some()
    }
}

/// How long nothing has gone by a connection, and what the two say of that.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    proposal: Proposal,
    /// Accesses to memory of the peer that were begun. It does not count them.
    used: u32,
    /// As many when the peer has proposed last.
    used_then: u32,
    /// What was counted, and since when it has been so.
    since: Option<(Counts, u32, Instant)>,
}

impl Rest {
    /// An access to memory of the peer begins.
    #[inline]
    pub(crate) fn note_access(&mut self) {
        self.used = self.used.wrapping_add(1);
    }

    /// Whether nothing has gone for this long; that is said once, and again after as long.
    pub(crate) fn is_idle(&mut self, counts: Counts, now: Instant, idle: Duration) -> bool {
        match self.since {
            Some((before, used, since)) if (before, used) == (counts, self.used) => {
                let is_idle = now.saturating_duration_since(since) >= idle;
                if is_idle {
                    self.since = Some((counts, used, now));
                }
                is_idle
            }
            _ => {
                self.since = Some((counts, self.used, now));
                false
            }
        }
    }

    /// Proposes to close.
    pub(crate) fn propose(&mut self, ours: Counts) {
        self.proposal.make(ours);
    }

    /// Whether nothing is to be sent, nor accessed: a proposal is not answered.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.proposal.holds()
    }

    /// The peer proposes. `ours`: what this end counts, if nothing else is under way. One that has accessed
    /// memory since the last proposal has not been idle.
    pub(crate) fn hear(&mut self, theirs: Counts, ours: Option<Counts>) -> Heard {
        let is_unused = std::mem::replace(&mut self.used_then, self.used) == self.used;
        self.proposal.hear(theirs, ours.filter(|_| is_unused))
    }

    /// The peer answers; whether there was something to answer.
    pub(crate) fn hear_answer(&mut self) -> bool {
        self.proposal.hear_answer()
    }
}

#[cfg(test)]
mod tests;
