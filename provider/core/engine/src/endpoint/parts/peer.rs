//! What an endpoint knows of a peer.

use link_api::{Gone, Path};

use crate::endpoint::parts::answers::Answers;
use crate::endpoint::parts::cumulative::Cumulative;
use crate::endpoint::parts::flow::Flow;
use crate::endpoint::parts::held_back::Order;
use crate::endpoint::parts::hints::Hints;
use crate::endpoint::parts::quota::Complaints;
use crate::proto::When;
use crate::types::*;

/// What short messages touch comes first, on one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Peer {
    /// What the address vector calls it.
    pub(crate) src: FiAddr,
    pub(in crate::endpoint) flow: Flow,
    pub(in crate::endpoint) hints: Hints,
    pub(in crate::endpoint) answers: Answers,
    /// Bytes that messages of it take up which wait to be received.
    pub(in crate::endpoint) waiting: usize,
    /// It ended, or could not be reached, when that was last known; it may have come back since.
    pub(in crate::endpoint) gone: Option<Gone>,
    /// The link knows that receives wait for it, or that it was there.
    pub(in crate::endpoint) expected: bool,
    /// This side has asked the peer to send no more for now.
    pub(in crate::endpoint) pause_sent: bool,
    /// It has been asked to offer long messages for a while, and has offered none since.
    pub(in crate::endpoint) ahead_sent: bool,
    /// The link's answer to a message of [`Endpoint::send_plain`](super::Endpoint); the general post of the
    /// same message, which follows, returns it.
    pub(in crate::endpoint) refused: Option<Gone>,
    /// It is tried to reach it, for the receives posted that name it.
    pub(in crate::endpoint) connecting: bool,
    /// Entries of the address vector that lead to it.
    pub(in crate::endpoint) routes: u32,
    /// What it did wrong.
    pub(in crate::endpoint) complaints: Complaints,
    /// What its accesses have to wait for, if there is anything.
    pub(in crate::endpoint) order: Option<Box<Order>>,
    /// Writes to it that share answers, once there was one.
    pub(in crate::endpoint) cumulative: Option<Box<Cumulative>>,
    /// The name of its last write here that requested no answer, and has none yet; 0: there is none.
    pub(in crate::endpoint) unanswered: u64,
}

impl Peer {
    /// One of which nothing is known.
    pub(in crate::endpoint) fn new(path: &Path, metered: bool) -> Peer {
        Peer {
            src: ADDR_UNSPEC,
            flow: Flow::new(path, metered),
            hints: Hints::default(),
            answers: Answers::default(),
            waiting: 0,
            gone: None,
            expected: false,
            pause_sent: false,
            ahead_sent: false,
            refused: None,
            connecting: false,
            routes: 0,
            complaints: Complaints::default(),
            order: None,
            cumulative: None,
            unanswered: 0,
        }
    }

    /// It has sent a frame of so many bytes.
    #[inline(always)]
    pub(in crate::endpoint) fn has_sent(&mut self, len: usize) {
        if self.hints.is_unanswered() && len > self.flow.limits().eager {
            self.hints.set_unanswered(false);
        }
    }

    /// What of it an operation's plan depends on that takes in bytes.
    #[inline]
    pub(in crate::endpoint) fn when(&self) -> When {
        if self.hints.helps() { When::HELPED } else { When::empty() }
    }

    /// A message to it is under way until it has been sent on.
    pub(in crate::endpoint) fn keep_unsent(&mut self) {
        self.answers.begin(false);
        self.flow.keep_unsent();
    }

    pub(in crate::endpoint) fn let_go_unsent(&mut self) {
        self.answers.end(false);
        self.flow.let_go_unsent();
    }

    /// Its channel is gone: what was on its way is, too, and another path may follow. Whether it was asked to
    /// send no more.
    pub(in crate::endpoint) fn close(&mut self, path: &Path, why: Gone) -> bool {
        self.flow.reset(path);
        self.hints.reset();
        self.answers.reset();
        self.order = None;
        (self.cumulative, self.unanswered) = (None, 0);
        self.gone = Some(why);
        self.connecting = false;
        self.expected = false;
        self.ahead_sent = false;
        std::mem::take(&mut self.pause_sent)
    }
}
