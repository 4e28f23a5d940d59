//! What came of calls to a peer, and who has yet to have that as an answer.

use std::time::{Duration, Instant};

use link_api::Gone;

/// How long it is known that a peer was not there. A send that was to try again asks once more after
/// that, and hears what comes of it however late it comes for that.
const MEMORY: Duration = Duration::from_secs(1);

/// After how long something may listen where nothing did.
const STALE: Duration = Duration::from_millis(100);

/// Answers of a peer that was not there.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Answers {
    /// Why the last call came to nothing, unless that was answered to the one that asked first.
    failed: Option<(Gone, Instant)>,
    /// A send is to try again, for want of a channel; and why the call that it waited for came to
    /// nothing. Receives that name the peer ask, too, and one that is posted again with each answer would
    /// have every one of them.
    send_waits: bool,
    owed: Option<(Gone, Instant)>,
    /// An answer was thrown away that no send came for in time, and none was heard since.
    tardy: bool,
    /// Such an answer has woken no sleeper.
    unreported: bool,
    /// It is called once more, since nothing listened there some time ago.
    recalled: bool,
}

impl Answers {
    /// A call came to nothing.
    pub(in crate::tcp) fn fail(&mut self, why: Gone) {
        self.failed = Some((why, Instant::now()));
        if std::mem::take(&mut self.send_waits) {
            (self.owed, self.unreported) = (self.failed, true);
        }
    }

    /// A send is to try again.
    pub(in crate::tcp) fn keep_send_waiting(&mut self) {
        self.send_waits = true;
    }

    /// A send has heard why there will be no channel. `met`: there was one.
    pub(in crate::tcp) fn end_send_waiting(&mut self, met: bool) {
        self.take_owed(met);
        (self.send_waits, self.tardy) = (false, false);
    }

    /// Why the call came to nothing that a send waited for. To be asked by a send, and once. `met`: there
    /// was a channel to the peer.
    pub(in crate::tcp) fn take_owed(&mut self, met: bool) -> Option<Gone> {
        self.doubt(met);
        let (why, at) = self.owed.take()?;
        if at.elapsed() >= MEMORY && !self.tardy {
            self.tardy = true;
            return None;
        }
        self.tardy = false;
        // Else the next one would have the same answer again.
        self.failed = self.failed.filter(|(_, since)| *since > at);
        self.recalled = false;
        Some(why)
    }

    /// A refusal of some time ago, by a peer that was there before (`met`), is not reported: something else
    /// may listen by now. One more connection is tried, and what it ends with is reported.
    fn doubt(&mut self, met: bool) {
        let is_stale = |(why, at): &(Gone, Instant)| *why == Gone::Refused && at.elapsed() >= STALE;
        let mut all = self.failed.iter().chain(&self.owed).peekable();
        let is_awaited = self.tardy && self.owed.is_some();
        if !met || self.recalled || is_awaited || all.peek().is_none() || !all.all(is_stale) {
            return;
        }
        self.send_waits |= self.owed.is_some();
        self.tardy |= self.owed.is_some_and(|(_, at)| at.elapsed() >= MEMORY);
        (self.failed, self.owed, self.recalled) = (None, None, true);
    }

    /// Something listens there by now: that nothing did has no meaning any more, and a send that waits has
    /// the answer of this call.
    pub(in crate::tcp) fn set_listens(&mut self) {
        if self.owed.is_some_and(|(why, _)| why == Gone::Refused) {
            (self.owed, self.send_waits) = (None, true);
        }
    }

    /// There is a channel: what came of calls before has no meaning any more.
    pub(in crate::tcp) fn set_met(&mut self) {
        (self.failed, self.owed, self.send_waits, self.recalled) = (None, None, false, false);
        self.tardy = false;
    }

    /// Why it was not there just now. To be asked once. `met`: there was a channel to the peer.
    pub(in crate::tcp) fn take_failure(&mut self, met: bool) -> Option<Gone> {
        self.doubt(met);
        let (why, _) = self.failed.take().filter(|(_, at)| at.elapsed() < MEMORY)?;
        self.recalled = false;
        Some(why)
    }

    /// Whether a send has an answer that no sleeper was woken for.
    pub(in crate::tcp) fn is_unreported(&self) -> bool {
        self.unreported && self.owed.is_some()
    }

    /// A sleeper was woken for the answer, if there is one.
    pub(in crate::tcp) fn set_reported(&mut self) {
        self.unreported = false;
    }
}
