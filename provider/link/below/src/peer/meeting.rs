//! What two endpoints have said until they agree on a fabric, or not.

use std::time::Instant;

use crate::channel::Sort;

/// What was said so far, and is still to be said, for the two to agree.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    /// This side's announce, as the peer has it.
    announced: Option<Vec<u8>>,
    /// What the network below knows the peer by that it was sent to, until that has connected.
    offer: Option<u64>,
    /// The peer's announce has arrived.
    heard: bool,
    /// A message that arrived before its announce.
    early: Option<Vec<u8>>,
    /// When it is given up.
    until: Option<Instant>,
    /// The ping waits until the peer has connected.
    awaits_peer: bool,
    /// A ping, or the answer to one, is still to be sent.
    ping_due: bool,
    pong_due: bool,
    /// Why the fabric does not lead to the peer.
    refused: Option<String>,
}

impl Meeting {
    /// This side's announce is sent.
    pub(crate) fn announce(&mut self, bytes: Vec<u8>, until: Instant, offer: u64) {
        (self.announced, self.until, self.offer) = (Some(bytes), Some(until), Some(offer));
    }

    /// What was announced, unless the network below has connected it, or it was withdrawn.
    pub(crate) fn take_offer(&mut self) -> Option<u64> {
        self.offer.take()
    }

    /// Whether this side's announce was sent.
    #[inline]
    pub(crate) fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// This side's announce; nothing if none was sent.
    pub(crate) fn announced(&self) -> &[u8] {
        self.announced.as_deref().unwrap_or_default()
    }

    /// The peer's announce has arrived. The side that decides sends a ping, now or when the peer has
    /// connected, too; the other one has no deadline of its own, since that of the first one ends its wait.
    /// Returns the message that arrived before.
    pub(crate) fn hear(&mut self, decides: bool, pings: bool) -> Option<Vec<u8>> {
        (self.heard, self.ping_due, self.awaits_peer) = (true, pings, decides && !pings);
        if !decides {
            self.until = None;
        }
        self.early.take()
    }

    /// Whether the peer's announce has arrived.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard
    }

    /// Keeps a message that arrived before its announce, unless there is one.
    pub(crate) fn keep_early(&mut self, bytes: &[u8]) {
        if self.early.is_none() {
            self.early = Some(bytes.to_vec());
        }
    }

    /// Whether the ping waits until the peer has connected.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.awaits_peer
    }

    /// The peer has connected.
    pub(crate) fn owe_ping(&mut self) {
        (self.awaits_peer, self.ping_due) = (false, true);
    }

    /// A ping arrived.
    pub(crate) fn owe_pong(&mut self) {
        self.pong_due = true;
    }

    pub(crate) fn owes_pong(&self) -> bool {
        self.pong_due
    }

    /// Whether a ping or its answer is still to be sent.
    pub(crate) fn owes_message(&self) -> bool {
        self.ping_due || self.pong_due
    }

    /// Ping and answer, and for each whether it is still to be sent.
    pub(crate) fn messages(&mut self) -> [(Sort, &mut bool); 2] {
        [(Sort::Ping, &mut self.ping_due), (Sort::Pong, &mut self.pong_due)]
    }

    /// The two have agreed.
    pub(crate) fn settle(&mut self) {
        self.until = None;
    }

    /// Why it is given up, once its deadline has passed; reported once.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Option<&'static str> {
        self.until.filter(|until| *until <= now)?;
        self.until = None;
        Some(if self.heard { "no message gets there and back" } else { "it says nothing of a fabric" })
    }

    /// Whether it has a deadline, or something to send.
    pub(crate) fn is_under_way(&self) -> bool {
        self.until.is_some() || self.owes_message()
    }

    /// The fabric does not lead to the peer.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.refused = Some(why.to_owned());
    }

    /// Why the fabric does not lead to the peer.
    pub(crate) fn refused(&self) -> &str {
        self.refused.as_deref().unwrap_or_default()
    }
}
