//! What an endpoint has of a peer.

use std::time::{Duration, Instant};

use link_api::Gone;
use wire::Addr;

use super::channel::connection::Channel;
use super::handshake::Call;

/// How long it is known that a peer was not there. A send that was told to try again asks once more after
/// that, and hears what comes of it however late it comes for that.
const MEMORY: Duration = Duration::from_secs(1);

/// After how long something may listen where nothing did.
const STALE: Duration = Duration::from_millis(100);

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) addr: Addr,
    // Elsewhere, since most peers of a large job have none of these.
    pub(super) channel: Option<Box<Channel>>,
    /// What follows it once its end was told of.
    pub(super) next: Option<Box<Channel>>,
    /// Its channel was cut off, which is to be told of.
    pub(super) cut: bool,
    /// What its last channel kept was lost with it.
    pub(super) lost: bool,
    pub(super) call: Option<Box<Call>>,
    /// The last connection that was made here was to its further address.
    pub(super) by_further: bool,
    /// Why the last call came to nothing, unless that was answered to the one that asked first.
    failed: Option<(Gone, Instant)>,
    /// A send has been told to try again, for want of a channel; and why the call that it waited for came to
    /// nothing. Receives that name the peer ask, too, and one that is posted again with each answer would
    /// have every one of them.
    send_waits: bool,
    owed: Option<(Gone, Instant)>,
    /// An answer was thrown away that no send came for in time, and none was told since.
    tardy: bool,
    /// That there is such an answer has not been told to a sleeper.
    pub(super) owed_untold: bool,
    /// It is called once more, since nothing listened there some time ago.
    recalled: bool,
    /// There was a channel, or else since when one is tried to be made.
    pub(super) met: bool,
    pub(super) trying: Option<Instant>,
    /// A send found no channel, or no room.
    pub(super) wants: bool,
    /// A receive waits for it: until when, and whether a call was made for that.
    pub(super) expected: Option<(Instant, bool)>,
    /// It is among those that may have a frame.
    pub(super) ready: bool,
}

// There is one for each address that the application knows of.
const _: () = assert!(size_of::<Peer>() <= 192);

impl Peer {
    pub(super) fn new(addr: Addr) -> Peer {
        Peer {
            addr,
            channel: None,
            next: None,
            cut: false,
            lost: false,
            call: None,
            by_further: false,
            failed: None,
            send_waits: false,
            owed: None,
            tardy: false,
            owed_untold: false,
            recalled: false,
            met: false,
            trying: None,
            wants: false,
            expected: None,
            ready: false,
        }
    }

    /// Whether there is a channel whose end is to be told of.
    pub(super) fn is_connected(&self) -> bool {
        self.cut || self.channel.is_some() || self.next.is_some()
    }

    pub(super) fn fail(&mut self, why: Gone) {
        (self.call, self.trying) = (None, None);
        self.failed = Some((why, Instant::now()));
        if std::mem::take(&mut self.send_waits) {
            (self.owed, self.owed_untold) = (self.failed, true);
        }
    }

    /// A send was told to try again.
    pub(super) fn keep_send_waiting(&mut self) {
        self.send_waits = true;
    }

    /// A send was told why there will be no channel.
    pub(super) fn end_send_waiting(&mut self) {
        self.take_owed();
        (self.send_waits, self.tardy) = (false, false);
    }

    /// Why the call came to nothing that a send waited for. To be asked by a send, and once.
    pub(super) fn take_owed(&mut self) -> Option<Gone> {
        self.doubt();
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

    /// A refusal of some time ago, by a peer that was there before, is not reported: something else may
    /// listen by now. One more connection is tried, and what it ends with is reported.
    fn doubt(&mut self) {
        let is_stale = |(why, at): &(Gone, Instant)| *why == Gone::Refused && at.elapsed() >= STALE;
        let mut all = self.failed.iter().chain(&self.owed).peekable();
        let is_awaited = self.tardy && self.owed.is_some();
        if !self.met || self.recalled || is_awaited || all.peek().is_none() || !all.all(is_stale) {
            return;
        }
        self.send_waits |= self.owed.is_some();
        self.tardy |= self.owed.is_some_and(|(_, at)| at.elapsed() >= MEMORY);
        (self.failed, self.owed, self.recalled) = (None, None, true);
    }

    /// Something listens there by now: that nothing did has no meaning any more, and a send that waits has
    /// the answer of this call.
    pub(super) fn set_listens(&mut self) {
        if self.owed.is_some_and(|(why, _)| why == Gone::Refused) {
            (self.owed, self.send_waits) = (None, true);
        }
    }

    /// There is a channel: what came of calls before has no meaning any more.
    pub(super) fn set_met(&mut self) {
        (self.call, self.expected, self.trying, self.met) = (None, None, None, true);
        (self.failed, self.owed, self.send_waits, self.recalled) = (None, None, false, false);
        self.tardy = false;
    }

    /// Why it was not there just now. To be asked once.
    pub(super) fn take_failure(&mut self) -> Option<Gone> {
        self.doubt();
        let (why, _) = self.failed.take().filter(|(_, at)| at.elapsed() < MEMORY)?;
        self.recalled = false;
        Some(why)
    }

    /// Whether what a send found lacking is there now: room, a channel, or the certainty that there will be
    /// none.
    pub(super) fn is_served(&self) -> bool {
        match &self.channel {
            Some(channel) => channel.ends() || channel.has_much_room(),
            None => {
                self.owed_untold && self.owed.is_some()
                    || self.call.is_none() && self.next.is_none() && !self.cut
            }
        }
    }
}
