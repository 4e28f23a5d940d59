//! The short way for what nearly all frames are: a message for one posted buffer of host memory, a write to
//! one place. They go straight, with nothing built on the way.
//!
//! Each function answers `None`, and has done nothing, where a frame is of another sort or something
//! is wrong with it: then the general way takes it, and finds out what.

use hmem::Span;
use wire::{Flags, Head, Offer, Op as WireOp, Seg, Status, take};

use crate::core::{Body, Core, Message, Payload, RecvOp, SHORT, Spans};
use crate::endpoint::incoming_message::IncomingMessages;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::transfer::Transfers;
use crate::endpoint::unexpected_quota::Unexpected;
use crate::matching::At;
use crate::proto::{self, Cut, Plan, Reach, Role, When, choose};
use crate::types::*;
use link_api::{Direct, Frame, Grant, How, PeerId, RmaLink, Side, Way};

/// Bytes of a message that cost about as much as one more message: to copy them and to find a place for it.
const BYTES: usize = 4096;

/// A receive of one buffer of host memory, as far as it concerns a message that is short of nothing.
struct Target {
    span: Span,
    ctx: Ctx,
    report: bool,
}

/// A message whose payload travels in its frame.
pub(super) struct Eager {
    peer: PeerId,
    src: FiAddr,
    /// Of its head: whether it is tagged, and whether it has data.
    flags: Flags,
    tag: u64,
    data: u64,
    len: usize,
    /// The sender's request, if it waits to hear of the delivery.
    ack: Option<u64>,
}

/// What a look at a frame comes to.
pub(super) enum Fast {
    /// A message is in its buffer, its completion was reported, and its frame was given back.
    Received,
    /// A message of the plainest sort that no receive is for.
    Unexpected(Eager),
    /// The peer answers, which has not been dealt with.
    Answer,
    /// Something that has not been dealt with.
    Other,
}

impl Target {
    /// Of a receive that is posted, unless it has several buffers or the like.
    #[inline(always)]
    fn posted(recv: &RecvOp, writes: OpFlags) -> Option<Target> {
        let (&Spans::One(span), None, true) = (&recv.iov, recv.multi, recv.tally.is_plain()) else {
            return None;
        };
        Some(Target { span, ctx: recv.ctx, report: recv.flags.intersects(writes) })
    }

    /// Whether so many bytes fit, and the processor can copy them there.
    #[inline(always)]
    fn takes(&self, len: usize) -> bool {
        len <= self.span.len() && self.span.can(hmem::Caps::CPU)
    }
}

impl Eager {
    /// A message from its frame, which is left as it is.
    #[inline(always)]
    fn of(frame: &Frame, head: &Head, flags: Flags, src: FiAddr, (off, ack): (usize, Option<u64>)) -> Eager {
        Eager {
            peer: frame.from,
            src,
            flags,
            tag: head.tag.get(),
            data: head.data.get(),
            len: frame.len - off,
            ack,
        }
    }

    /// The message in memory of its own, as [`apart`] does for its frame.
    #[inline(always)]
    fn apart(&self) -> Eager {
        let &Eager { peer, src, flags, tag, data, len, ack } = self;
        Eager { peer, src, flags, tag, data, len, ack }
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        self.flags.contains(Flags::TAGGED)
    }

    #[inline(always)]
    fn data(&self) -> Option<u64> {
        self.flags.contains(Flags::CQ_DATA).then_some(self.data)
    }

    /// The completion of the receive that it went to.
    #[inline(always)]
    fn entry(&self, target: &Target) -> Completion {
        let mut what = What::RECV | if self.is_tagged() { What::TAGGED } else { What::MSG };
        let mut data = 0;
        if self.flags.contains(Flags::CQ_DATA) {
            what |= What::REMOTE_CQ_DATA;
            data = self.data;
        }
        let (ctx, len, buf, tag, src) = (target.ctx, self.len, target.span.addr(), self.tag, self.src);
        Completion { ctx, what, len, buf, data, tag, src, err: None, olen: 0 }
    }
}

/// Where the completion of a received message goes. A closure in its place would get the message in memory.
trait Sink {
    fn put(self, core: &mut Core, bind: &Bind, message: &Eager, target: &Target);
}

/// The endpoint's queue.
struct Queue;

/// The caller that polls a queue.
struct Caller<'a, R>(&'a mut R);

impl Sink for Queue {
    #[inline(always)]
    fn put(self, core: &mut Core, bind: &Bind, message: &Eager, target: &Target) {
        core.complete_with(bind.rx_cq(), || message.entry(target));
    }
}

impl<R: Report> Sink for Caller<'_, R> {
    #[inline(always)]
    fn put(self, _: &mut Core, _: &Bind, message: &Eager, target: &Target) {
        self.0.report(&message.entry(target));
    }
}

/// The frame in memory of its own: for a call that gets it there, so that it stays in registers where there
/// is no such call.
#[inline(always)]
pub(super) fn apart(&Frame { from, len, slot }: &Frame) -> Frame {
    Frame { from, len, slot }
}

/// No message was in its ring before its receive was posted.
#[inline(always)]
pub(super) fn waited(core: &mut Core, rx: RxId) {
    if let Some(rx) = core.rxs.get_mut(rx.at()) {
        rx.note_late(true);
    }
}

#[inline(always)]
pub(super) fn work_of(frame: &Frame) -> u32 {
    1 + (frame.len / BYTES) as u32
}

impl<L: RmaLink> IncomingMessages<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn transfers(&mut self) -> Transfers<'_, L> {
        Transfers { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn unexpected(&mut self) -> Unexpected<'_, L> {
        Unexpected { id: self.id, net: self.net, requests: self.requests, bind: self.bind }
    }

    /// Ends a receive whose message is in its buffer: the sender gets an answer if it waits for one, the
    /// message is counted, and `to` gets the completion, if the receive is to have one.
    #[inline(always)]
    fn deliver(&mut self, core: &mut Core, message: &Eager, target: &Target, to: impl Sink) {
        if let Some(req) = message.ack {
            self.net.fin(message.peer, req, Status::Ok, message.len);
        }
        core.count(self.bind.cntrs().recv, false);
        if target.report {
            to.put(core, self.bind, message, target);
        }
    }

    /// Receives a message if a receive is posted that it can be copied to, and whose completion is for `cq`.
    #[inline(always)]
    pub(in crate::endpoint) fn receive_fast(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        cq: CqId,
        to: &mut impl Report,
    ) -> Fast {
        let Some((head, flags)) = self.net.plain_head(frame) else { return Fast::Other };
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return Fast::Other };
        let Some(peer) = self.net.peers.get_mut(frame.from) else { return Fast::Other };
        if !head.is(WireOp::Eager) {
            return if head.is(WireOp::Fin) { Fast::Answer } else { Fast::Other };
        }
        peer.has_sent(frame.len);
        let src = peer.src;
        let Some((off, ack)) = self.net.ack_of(frame, flags) else { return Fast::Other };
        let message = Eager::of(frame, &head, flags, src, (off, ack));
        let matcher = rx.matcher(message.is_tagged());
        let Some(at) = matcher.find_posted(src, message.tag) else {
            return Fast::Unexpected(message.apart());
        };
        let target = matcher.found_posted(at).and_then(|recv| Target::posted(recv, self.bind.writes()));
        let Some(target) = target.filter(|t| t.report && self.bind.rx_cq() == Some(cq)) else {
            return Fast::Other;
        };
        if !target.takes(message.len) {
            return Fast::Other;
        }
        if !self.net.take(frame, off, target.span, message.len) {
            return Fast::Other;
        }
        matcher.forget_posted(at);
        rx.note_late(false);
        core.rest = rx.rest();
        self.deliver(core, &message, &target, Caller(to));
        Fast::Received
    }

    /// Receives a message as [`IncomingMessages::receive_fast`] does, whatever queue its completion is for.
    /// The frame is the caller's to give back.
    #[inline]
    pub(in crate::endpoint) fn on_plain_eager(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        let (off, ack) = self.net.ack_of(frame, flags)?;
        let src = self.net.peers.get(frame.from)?.src;
        let message = Eager::of(frame, head, flags, src, (off, ack));
        let (at, target) = self.target(core, &message)?;
        if self.net.link.copy_out(frame, off, &[target.span], 0, message.len) != message.len {
            return None;
        }
        self.arrived(core, at, &message, &target);
        Some(())
    }

    /// A message that is fetched at once.
    #[inline]
    pub(in crate::endpoint) fn on_plain_rts(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        const HEADERS: usize = Head::LEN + size_of::<Offer>() + size_of::<Seg>();
        if head.aux.get() != 1 || frame.len != HEADERS || !flags.contains(Flags::DIRECT) {
            return None;
        }
        let bytes: [u8; HEADERS] = self.net.link.peek(frame)?;
        let mut rest = &bytes[Head::LEN..];
        let (offer, seg): (Offer, Seg) = (take(&mut rest)?, take(&mut rest)?);
        let len = usize::try_from(offer.len.get()).ok().filter(|len| *len > 0)?;
        let from = frame.from;
        if seg.len.get() != offer.len.get() {
            return None;
        }
        let src = self.net.peers.get(from)?.src;
        let message = Eager { len, ..Eager::of(frame, head, flags, src, (HEADERS, Some(offer.req.get()))) };
        let (at, target) = self.target(core, &message)?;
        let state = self.net.peer(from);
        let op = proto::Op::new(Role::Fetch(Reach::of(flags)), len, &[target.span], state.when());
        // Whether more is behind it the general way asks.
        if op.when.contains(When::HELPED) && Cut::is_worth(len)
            || choose(state.flow.limits(), &op) != Plan::InCall
        {
            return None;
        }
        let grant = Grant::Request(offer.req.get());
        self.net.link.access(Way::Get, from, &Direct::new(grant, &[seg], &[target.span], len)).ok()?;
        self.net.peer(from).hints.helper().works();
        self.net.meter(from, Side::Theirs, How::Direct, len);
        self.arrived(core, at, &message, &target);
        Some(())
    }

    /// Gives a message that waits, and was found just now, to a receive of one buffer, if it takes no more
    /// than to copy it and to complete it.
    #[inline(always)]
    pub(crate) fn accept_plain(&mut self, core: &mut Core, at: At, span: Span, op: &Recv<'_>) -> bool {
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return false };
        let matcher = rx.matcher(op.pattern.tag.is_some());
        let Some(message) = matcher.found_waiting(at) else { return false };
        let &mut Message { peer, src, tagged, tag, data, len, ack, .. } = message;
        let Body::Held(held) = &mut message.body else { return false };
        let target = Target { span, ctx: op.ctx, report: self.bind.reports(op.flags) };
        if !target.takes(len) || hmem::write(&[span], 0, held.bytes(len)) != len {
            return false;
        }
        if let Payload::Long(buffer) = held {
            core.buffers.give_back(std::mem::take(buffer));
        }
        matcher.forget_waiting(at);
        let rest = rx.rest();
        let mut flags = if tagged { Flags::TAGGED } else { Flags::empty() };
        flags.set(Flags::CQ_DATA, data.is_some());
        let message = Eager { peer, src, flags, tag, data: data.unwrap_or(0), len, ack };
        self.deliver(core, &message, &target, Queue);
        self.unexpected().drop_weight(core, peer, Message::weight_held(len));
        if !self.requests.has_chores(self.net) {
            core.rest = rest;
        }
        true
    }

    /// Completes a receive with this message, if it is for it and takes no more than a copy. Memory that
    /// vanishes is for the general way.
    #[inline(always)]
    pub(in crate::endpoint) fn receive_this(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        span: Span,
        op: &Recv<'_>,
        rest: u8,
    ) -> bool {
        let target = Target { span, ctx: op.ctx, report: self.bind.reports(op.flags) };
        if let Some(message) = self.fitting(frame, &target, &op.pattern) {
            if self.net.take(frame, Head::LEN, span, message.len) {
                core.rest = rest;
                self.deliver(core, &message, &target, Queue);
                return true;
            }
        }
        self.net.link.land(apart(frame), None);
        false
    }

    /// A message, if it is of the plainest sort and fits a receive.
    #[inline(always)]
    fn fitting(&mut self, frame: &Frame, target: &Target, pattern: &Pattern) -> Option<Eager> {
        let (head, flags) = self.net.plain_head(frame)?;
        let is_plain = head.is(WireOp::Eager) && !flags.contains(Flags::ACK);
        if !is_plain || flags.contains(Flags::TAGGED) != pattern.tag.is_some() {
            return None;
        }
        let peer = self.net.peers.get_mut(frame.from)?;
        let message = Eager::of(frame, &head, flags, peer.src, (Head::LEN, None));
        if !target.takes(message.len) || !pattern.fits(message.src, message.tag) {
            return None;
        }
        peer.has_sent(frame.len);
        Some(message)
    }

    /// The oldest receive that a message fits, if it can be copied there.
    #[inline(always)]
    fn target(&mut self, core: &mut Core, message: &Eager) -> Option<(At, Target)> {
        let matcher = core.rxs.get_mut(self.bind.rx().at())?.matcher(message.is_tagged());
        let at = matcher.find_posted(message.src, message.tag)?;
        let target = Target::posted(matcher.found_posted(at)?, self.bind.writes())?;
        target.takes(message.len).then_some((at, target))
    }

    /// Ends a posted receive whose message is in its buffer.
    #[inline(always)]
    fn arrived(&mut self, core: &mut Core, at: At, message: &Eager, target: &Target) {
        if let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) {
            rx.matcher(message.is_tagged()).forget_posted(at);
        }
        self.deliver(core, message, target, Queue);
        if !self.requests.has_chores(self.net) {
            core.rest_after(self.bind.rx());
        }
    }

    /// Keeps a message of the plainest sort that no receive is for.
    #[inline(always)]
    pub(in crate::endpoint) fn keep_plain(&mut self, core: &mut Core, frame: &Frame, message: &Eager) {
        let &Eager { peer, src, tag, len, ack, .. } = message;
        let (tagged, data, off) = (message.is_tagged(), message.data(), frame.len - len);
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return };
        let (matcher, ep) = (rx.matcher(tagged), self.id);
        let at = if len <= SHORT {
            matcher.wait(src, tag, || {
                let body = Body::Held(Payload::Short([0; SHORT]));
                Message { ep, peer, src, tagged, tag, data, len, ack, body }
            })
        } else {
            let buffer = core.buffers.take(len);
            matcher.wait(src, tag, || {
                let body = Body::Held(Payload::Long(buffer));
                Message { ep, peer, src, tagged, tag, data, len, ack, body }
            })
        };
        // The bytes go to where they stay.
        if let Some(Message { body: Body::Held(held), .. }) = matcher.found_waiting(at) {
            self.net.link.read(frame, off, held.room(len));
        }
        if !self.unexpected().add_weight(core, peer, Message::weight_held(len)) {
            self.unexpected().refuse_unexpected(core, tagged, at);
        }
    }
}
