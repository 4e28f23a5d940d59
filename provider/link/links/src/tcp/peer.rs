//! What an endpoint has of a peer.

use std::time::Instant;

use link_api::Gone;
use wire::Addr;

use crate::tcp::channel::connection::Channel;
use crate::tcp::meet::answers::Answers;
use crate::tcp::meet::handshake::Call;

/// A peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) addr: Addr,
    // Elsewhere, since most peers of a large job have none of these.
    pub(super) channel: Option<Box<Channel>>,
    /// What follows it once its end was reported.
    pub(super) next: Option<Box<Channel>>,
    /// Its channel was cut off, which is to be reported.
    pub(super) cut: bool,
    /// What its last channel kept was lost with it.
    pub(super) lost: bool,
    pub(super) call: Option<Box<Call>>,
    /// The last connection that was made here was to its further address.
    pub(super) by_further: bool,
    pub(super) answers: Answers,
    /// There was a channel, or else since when one is tried to be made.
    pub(super) met: bool,
    pub(super) trying: Option<Instant>,
    /// The log has a line on why it was not met.
    pub(super) noted: bool,
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
            answers: Answers::default(),
            met: false,
            trying: None,
            noted: false,
            wants: false,
            expected: None,
            ready: false,
        }
    }

    /// Whether there is a channel whose end is to be reported.
    pub(super) fn is_connected(&self) -> bool {
        self.cut || self.channel.is_some() || self.next.is_some()
    }

    /// A call came to nothing.
    pub(super) fn fail(&mut self, why: Gone) {
        (self.call, self.trying) = (None, None);
        self.answers.fail(why);
    }

    /// There is a channel: what came of calls before has no meaning any more.
    pub(super) fn set_met(&mut self) {
        (self.call, self.expected, self.trying, self.met) = (None, None, None, true);
        self.noted = false;
        self.answers.set_met();
    }

    /// Whether what a send found lacking is there now: room, a channel, or the certainty that there will be
    /// none.
    pub(super) fn is_served(&self) -> bool {
        match &self.channel {
            Some(channel) => channel.ends() || channel.has_much_room(),
            None => self.answers.is_unreported() || self.call.is_none() && self.next.is_none() && !self.cut,
        }
    }
}
