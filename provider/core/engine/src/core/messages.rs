//! Receives that are posted, and messages that wait for one.

use wire::Seg;

use super::{Payload, Spans, Tally};
use crate::matching::{Matcher, Posted, Waiting};
use crate::proto::Reach;
use crate::types::*;
use link_api::PeerId;

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct RecvOp {
    pub(crate) pattern: Pattern,
    pub(crate) iov: Spans,
    pub(crate) ctx: Ctx,
    pub(crate) flags: OpFlags,
    /// Of a multi-receive buffer: its state in [`RxContext::multi`].
    pub(crate) multi: Option<u64>,
    pub(crate) tally: Tally,
}

impl RecvOp {
    /// Bytes of its buffers.
    pub(crate) fn len(&self) -> usize {
        hmem::total(&self.iov)
    }
}

impl Posted for RecvOp {
    fn pattern(&self) -> &Pattern {
        &self.pattern
    }
    fn ctx(&self) -> Ctx {
        self.ctx
    }
}

/// A multi-receive buffer: how much is used, how many messages are still coming in.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    pub(crate) used: usize,
    pub(crate) coming: usize,
    /// No more messages will be put in; the last one gives the buffer back.
    pub(crate) spent: bool,
}

/// How a waiting message's bytes are to be had.
#[derive(Debug)]
pub(crate) enum Body {
    /// They are here.
    Held(Payload),
    /// The sender keeps them.
    Offered { req: u64, segs: Segs, direct: Reach },
    /// The sender has cancelled it, after the application had claimed it here.
    Withdrawn,
}

/// Where the bytes of a message are: nearly always one place.
#[derive(Debug)]
pub(crate) enum Segs {
    One(Seg),
    Many(Box<[Seg]>),
}

impl Segs {
    pub(crate) fn new(segs: &[Seg]) -> Segs {
        match segs {
            [one] => Segs::One(*one),
            many => Segs::Many(many.into()),
        }
    }

    pub(crate) fn all(&self) -> &[Seg] {
        match self {
            Segs::One(one) => std::slice::from_ref(one),
            Segs::Many(many) => many,
        }
    }
}

/// An unexpected message: no receive has matched it yet.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) ep: EpId,
    pub(crate) peer: PeerId,
    pub(crate) src: FiAddr,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) len: usize,
    /// The sender's request, if it waits to hear of the delivery.
    pub(crate) ack: Option<u64>,
    pub(crate) body: Body,
}

impl Message {
    /// Bytes it takes up.
    pub(crate) fn weight(&self) -> usize {
        Message::weight_held(if let Body::Held(_) = self.body { self.len } else { 0 })
    }

    /// Bytes that a message takes up of which so many are here.
    #[inline(always)]
    pub(crate) fn weight_held(len: usize) -> usize {
        /// With its place in a queue and in an index.
        const OVERHEAD: usize = 256;
        OVERHEAD + len
    }

    /// Whether a peer offered it under that name.
    fn is_offer(&self, ep: EpId, peer: PeerId, name: u64) -> bool {
        self.ep == ep && self.peer == peer && matches!(self.body, Body::Offered { req, .. } if req == name)
    }

    pub(crate) fn is_offered(&self) -> bool {
        matches!(self.body, Body::Offered { .. })
    }
}

impl Waiting for Message {
    fn src(&self) -> FiAddr {
        self.src
    }
    fn tag(&self) -> u64 {
        self.tag
    }
}

/// What receives are posted to.
/// What each message touches comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RxContext {
    /// See [`RxContext::is_late`].
    late: u8,
    /// Its endpoint, if it has one alone.
    sole: Option<EpId>,
    pub(crate) tagged: Matcher<RecvOp, Message>,
    pub(crate) plain: Matcher<RecvOp, Message>,
    pub(crate) claimed: Vec<(Ctx, Message)>,
    pub(crate) multi: crate::pool::Pool<Multi>,
    pub(crate) min_multi_recv: usize,
    pub(crate) eps: Vec<EpId>,
    pub(crate) shared: bool,
}

/// So many messages in a row that were there before their receive are a stream. Of a peer that is answered
/// each time a few are, by chance; to look for the next one then waits for its line, and takes it away from
/// the sender.
const LATE: u8 = 8;

/// Polls that take nothing in after a receive has completed, while no other is posted. The message that
/// follows is as well off in its ring as in a buffer, and a look at the ring's next line takes that line away
/// from the sender, which is about to write it. Two, since a library may poll once more, after the poll that
/// has its message, before it returns. A read of the queue that goes on from one message to the next ones is
/// not kept from them.
const REST: u8 = 2;

impl RxContext {
    pub(crate) fn new(shared: bool) -> Self {
        RxContext {
            tagged: Matcher::new(),
            plain: Matcher::new(),
            claimed: Vec::new(),
            multi: crate::pool::Pool::with_capacity(0),
            min_multi_recv: 64,
            eps: Vec::new(),
            sole: None,
            shared,
            late: 0,
        }
    }

    /// Whether no receive is posted.
    #[inline(always)]
    pub(crate) fn nothing_posted(&self) -> bool {
        self.tagged.nothing_posted() && self.plain.nothing_posted()
    }

    /// Its endpoint, if it has one alone.
    #[inline(always)]
    pub(crate) fn sole(&self) -> Option<EpId> {
        self.sole
    }

    /// An endpoint receives by it.
    pub(crate) fn add_ep(&mut self, ep: EpId) {
        self.eps.push(ep);
        self.note_sole();
    }

    /// An endpoint receives by it no more.
    pub(crate) fn remove_ep(&mut self, ep: EpId) {
        self.eps.retain(|e| *e != ep);
        self.note_sole();
    }

    fn note_sole(&mut self) {
        self.sole = if let &[ep] = &self.eps[..] { Some(ep) } else { None };
    }

    /// Polls that take nothing in, now that a message has gone to a receive.
    #[inline(always)]
    pub(crate) fn rest(&self) -> u8 {
        if self.nothing_posted() { REST } else { 0 }
    }

    /// Whether the next message is likely to be in its ring before its receive is posted: the last ones were
    /// found by the first poll. A sender that waits for answers has its line of the ring to itself meanwhile.
    #[inline(always)]
    pub(crate) fn is_late(&self) -> bool {
        self.late >= LATE
    }

    /// A message that a receive was posted for has come, or is looked for in vain; `waited`: no poll found
    /// one before.
    #[inline(always)]
    pub(crate) fn note_late(&mut self, waited: bool) {
        if waited {
            self.late = 0;
        } else if !self.is_late() {
            self.late += 1;
        }
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &Message> {
        let waiting = self.tagged.waiting().chain(self.plain.waiting());
        waiting.chain(self.claimed.iter().map(|(_, m)| m))
    }

    /// Bytes that waiting messages of a peer take up.
    pub(crate) fn weight_of(&self, ep: EpId, peer: PeerId) -> usize {
        self.waiting().filter(|m| m.ep == ep && m.peer == peer).map(Message::weight).sum()
    }

    /// The peer is gone: what it has offered is not to be had any more.
    pub(crate) fn close_peer(&mut self, ep: EpId, peer: PeerId) {
        self.claimed.retain(|(_, m)| !(m.ep == ep && m.peer == peer && m.is_offered()));
        // Its successor under the same name has not requested these answers.
        for (_, m) in self.claimed.iter_mut().filter(|(_, m)| m.ep == ep && m.peer == peer) {
            m.ack = None;
        }
        for m in [&mut self.tagged, &mut self.plain] {
            m.drop_waiting(|m| m.ep == ep && m.peer == peer && m.is_offered());
            m.edit_waiting(|m| m.ep == ep && m.peer == peer, |m| m.ack = None);
        }
    }

    /// The message that a peer offered under that name, if it waits.
    pub(crate) fn offered(&mut self, ep: EpId, peer: PeerId, name: u64) -> Option<&mut Message> {
        let is_it = |m: &Message| m.is_offer(ep, peer, name);
        let (tagged, plain) = (&mut self.tagged, &mut self.plain);
        let waiting = tagged.latest_waiting(is_it).or_else(|| plain.latest_waiting(is_it));
        waiting.or_else(|| self.claimed.iter_mut().map(|(_, m)| m).find(|m| is_it(m)))
    }

    /// The message that a peer offered under that name is not to be had any more: taken out if it waits, and
    /// `Some(None)` if the application has claimed it. `None`: it neither waits nor was claimed.
    pub(crate) fn withdraw(&mut self, ep: EpId, peer: PeerId, name: u64) -> Option<Option<Message>> {
        let is_it = |m: &Message| m.is_offer(ep, peer, name);
        for matcher in [&mut self.tagged, &mut self.plain] {
            let taken = matcher.take_oldest(is_it);
            if taken.is_some() {
                return Some(taken);
            }
        }
        let (_, claimed) = self.claimed.iter_mut().find(|(_, m)| is_it(m))?;
        claimed.body = Body::Withdrawn;
        Some(None)
    }

    #[inline]
    pub(crate) fn matcher(&mut self, tagged: bool) -> &mut Matcher<RecvOp, Message> {
        if tagged { &mut self.tagged } else { &mut self.plain }
    }
}
