//! The short way for what nearly all frames are: a message for one posted buffer of host memory, a write to
//! one place. They go straight, with nothing built on the way.
//!
//! Each function answers `None`, and has done nothing, where a frame is of another sort or something
//! is wrong with it: then the general way takes it, and finds out what.

use hmem::Span;
use wire::{Flags, Head, Offer, Op as WireOp, Seg, Status, take};

use crate::core::{Body, Core, Message, Payload, RecvOp, SHORT, Spans};
use crate::endpoint::receive::Receives;
use crate::endpoint::transfer::Transfers;
use crate::endpoint::unexpected::Unexpected;
use crate::matching::At;
use crate::proto::{self, Cut, Plan, Reach, Role, When, choose};
use crate::types::*;
use link_api::{Direct, Frame, Grant, How, PeerId, RmaLink, Side};

/// Bytes of a message that cost about as much as one more message: to copy them and to find a place for it.
const BYTES: usize = 4096;

/// Source, tag and data of a message.
type Sight = (FiAddr, u64, Option<u64>);

/// What counts of the receive that a plain message is for.
struct Target {
    span: Span,
    ctx: Ctx,
    report: bool,
}

/// A message in a frame of its own, of so many headers.
pub(super) struct Plain {
    head: Head,
    flags: Flags,
    src: FiAddr,
    off: usize,
    /// The sender's request, if it waits to hear of the delivery.
    ack: Option<u64>,
}

/// What a look at a frame comes to.
pub(super) enum Fast {
    /// A message is in its buffer, its completion was reported, and its frame was given back.
    Received,
    /// A message of the plainest sort that no receive is for.
    Unexpected(Plain),
    /// The peer answers, which has not been dealt with.
    Answer,
    /// Something that has not been dealt with.
    Other,
}

impl Target {
    /// Of a receive that a message of `len` bytes can go to without frills.
    #[inline(always)]
    fn of(recv: &RecvOp, len: usize, writes: OpFlags) -> Option<Target> {
        let (&Spans::One(span), None) = (&recv.iov, recv.multi) else { return None };
        let (ctx, report) = (recv.ctx, recv.flags.intersects(writes));
        let fits = len <= span.len() && span.can(hmem::Caps::CPU) && recv.tally.is_plain();
        fits.then_some(Target { span, ctx, report })
    }
}

/// What is told of a message that has been received.
#[inline(always)]
fn entry(target: &Target, head: &Head, flags: Flags, src: FiAddr, len: usize) -> Completion {
    let mut what = What::RECV | if flags.contains(Flags::TAGGED) { What::TAGGED } else { What::MSG };
    let mut data = 0;
    if flags.contains(Flags::CQ_DATA) {
        what |= What::REMOTE_CQ_DATA;
        data = head.data.get();
    }
    let (ctx, buf, tag) = (target.ctx, target.span.addr(), head.tag.get());
    Completion { ctx, what, len, buf, data, tag, src, err: None, olen: 0 }
}

/// The frame in memory of its own: for a call that gets it there, so that it stays in registers where there
/// is no such call.
#[inline(always)]
pub(super) fn apart(&Frame { from, len, slot }: &Frame) -> Frame {
    Frame { from, len, slot }
}

#[inline(always)]
pub(super) fn work_of(frame: &Frame) -> u32 {
    1 + (frame.len / BYTES) as u32
}

impl<L: RmaLink> Receives<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn transfers(&mut self) -> Transfers<'_, L> {
        Transfers { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn unexpected(&mut self) -> Unexpected<'_, L> {
        Unexpected { id: self.id, net: self.net, requests: self.requests, bind: self.bind }
    }

    /// Receives a message, if it takes no more than to copy it and to tell of it in `cq`.
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
        let len = frame.len - off;
        let matcher = rx.matcher(flags.contains(Flags::TAGGED));
        let Some(at) = matcher.find_posted(src, head.tag.get()) else {
            return Fast::Unexpected(Plain { head, flags, src, off, ack });
        };
        let target = matcher.found_posted(at).and_then(|recv| Target::of(recv, len, self.bind.writes()));
        let Some(target) = target.filter(|t| t.report && self.bind.rx_cq() == Some(cq)) else {
            return Fast::Other;
        };
        matcher.forget_posted(at);
        rx.note_late(false);
        core.rest = rx.rest();
        if !self.net.link.take(frame, off, target.span, len) {
            self.net.take_apart(frame.from, frame.len, frame.slot, off, target.span.apart());
        }
        if let Some(req) = ack {
            self.net.fin(frame.from, req, Status::Ok, len);
        }
        core.count(self.bind.cntrs().recv, false);
        to.report(&entry(&target, &head, flags, src, len));
        Fast::Received
    }

    #[inline]
    pub(in crate::endpoint) fn on_plain_eager(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        let (off, ack) = self.net.ack_of(frame, flags)?;
        let len = frame.len - off;
        let target = self.target(core, frame.from, head, flags, len)?;
        self.net.link.copy_out(frame, off, &[target.1.span], 0, len);
        if let Some(req) = ack {
            self.net.fin(frame.from, req, Status::Ok, len);
        }
        self.arrived(core, target, head, flags, len);
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
        let target = self.target(core, from, head, flags, len)?;
        let state = self.net.peer(from);
        let op = proto::Op::new(Role::Fetch(Reach::of(flags)), len, &[target.1.span], state.when());
        // Whether more is behind it the general way asks.
        if op.when.contains(When::HELPED) && Cut::is_worth(len)
            || choose(state.flow.limits(), &op) != Plan::InCall
        {
            return None;
        }
        let grant = Grant::Request(offer.req.get());
        self.net.link.get(from, &Direct::new(grant, &[seg], &[target.1.span], len)).ok()?;
        self.net.peer(from).hints.helper().works();
        self.net.meter(from, Side::Theirs, How::Direct, len);
        self.net.fin(from, offer.req.get(), Status::Ok, len);
        self.arrived(core, target, head, flags, len);
        Some(())
    }

    /// Gives a message that waits, and was found just now, to a receive of one buffer, if it takes no more
    /// than to copy it and to tell of it.
    #[inline(always)]
    pub(crate) fn accept_plain(&mut self, core: &mut Core, at: At, span: Span, op: &Recv<'_>) -> bool {
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return false };
        let matcher = rx.matcher(op.pattern.tag.is_some());
        let Some(message) = matcher.found_waiting(at) else { return false };
        let &mut Message { peer, src, tag, data, len, ack, .. } = message;
        let Body::Held(held) = &mut message.body else { return false };
        let goes = len <= span.len() && span.can(hmem::Caps::CPU);
        if !goes || hmem::write(&[span], 0, held.bytes(len)) != len {
            return false;
        }
        if let Payload::Long(buffer) = held {
            core.buffers.give_back(std::mem::take(buffer));
        }
        matcher.forget_waiting(at);
        let rest = rx.rest();
        if let Some(req) = ack {
            self.net.fin(peer, req, Status::Ok, len);
        }
        self.unexpected().weighs_less(core, peer, Message::weight_held(len));
        if !self.requests.has_chores(self.net) {
            core.rest = rest;
        }
        self.bind.received_plain(core, op, (src, tag, data), span.addr(), len);
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
        if let Some((sight, len)) = self.fitting(frame, span, &op.pattern) {
            if self.net.link.take(frame, Head::LEN, span, len)
                || self.net.take_long(frame.from, frame.len, frame.slot, span.apart())
            {
                core.rest = rest;
                self.bind.received_plain(core, op, sight, span.addr(), len);
                return true;
            }
        }
        self.net.link.put_back(apart(frame));
        false
    }

    /// No message was in its ring before its receive was posted.
    #[inline(never)]
    pub(in crate::endpoint) fn waited(&mut self, core: &mut Core) {
        if let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) {
            rx.note_late(true);
        }
    }

    /// Source, tag and data of a message, and its length, if it is of the plainest sort and fits a receive.
    #[inline(always)]
    fn fitting(&mut self, frame: &Frame, span: Span, pattern: &Pattern) -> Option<(Sight, usize)> {
        let (head, flags) = self.net.plain_head(frame)?;
        let is_plain = head.is(WireOp::Eager) && !flags.contains(Flags::ACK);
        if !is_plain || flags.contains(Flags::TAGGED) != pattern.tag.is_some() {
            return None;
        }
        let peer = self.net.peers.get_mut(frame.from)?;
        let (src, tag) = (peer.src, head.tag.get());
        let len = frame.len - Head::LEN;
        let goes = len <= span.len() && span.can(hmem::Caps::CPU);
        if !goes || !pattern.fits(src, tag) {
            return None;
        }
        peer.has_sent(frame.len);
        Some(((src, tag, flags.contains(Flags::CQ_DATA).then(|| head.data.get())), len))
    }

    /// The oldest receive that a message of `len` bytes fits, if it is plain and long enough, and what the
    /// message's sender is called.
    #[inline(always)]
    fn target(
        &mut self,
        core: &mut Core,
        from: PeerId,
        head: &Head,
        flags: Flags,
        len: usize,
    ) -> Option<(At, Target, FiAddr)> {
        let src = self.net.peers.get(from)?.src;
        let matcher = core.rxs.get_mut(self.bind.rx().at())?.matcher(flags.contains(Flags::TAGGED));
        let at = matcher.find_posted(src, head.tag.get())?;
        Some((at, Target::of(matcher.found_posted(at)?, len, self.bind.writes())?, src))
    }

    /// Completes a receive whose bytes have come.
    #[inline(always)]
    fn arrived(
        &mut self,
        core: &mut Core,
        (at, target, src): (At, Target, FiAddr),
        head: &Head,
        flags: Flags,
        len: usize,
    ) {
        if let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) {
            rx.matcher(flags.contains(Flags::TAGGED)).forget_posted(at);
        }
        if !self.requests.has_chores(self.net) {
            core.rest_after(self.bind.rx());
        }
        core.count(self.bind.cntrs().recv, false);
        if target.report {
            core.complete_with(self.bind.rx_cq(), || entry(&target, head, flags, src, len));
        }
    }

    /// Keeps a message of the plainest sort that no receive is for.
    #[inline(always)]
    pub(in crate::endpoint) fn keep_plain(&mut self, core: &mut Core, frame: &Frame, plain: &Plain) {
        let &Plain { head, flags, src, off, ack } = plain;
        let (peer, len) = (frame.from, frame.len - off);
        let (tagged, tag) = (flags.contains(Flags::TAGGED), head.tag.get());
        let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
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
        if !self.unexpected().weighs_more(core, peer, Message::weight_held(len)) {
            self.unexpected().refuse_unexpected(core, tagged, at);
        }
    }
}
