//! The short way for what nearly all frames are: a message for one posted buffer of host memory, a write to one
//! place. They go straight, with nothing built on the way.
//!
//! Each function answers `None`, and has done nothing, where a frame is of another sort or something
//! is wrong with it: then the general way takes it, and finds out what.

use hmem::Span;
use wire::{Aux, Flags, Head, Offer, Op as WireOp, RmaSeg, Seg, Status, take};

use super::Endpoint;
use crate::core::{Core, RecvOp, Spans, Tally};
use crate::matching::At;
use crate::proto::{self, Plan, Reach, Role, choose};
use crate::types::*;
use link_api::{Frame, Grant, How, PeerId, PollFrame, RmaLink, Side};

/// What counts of the receive that a plain message is for.
struct Target {
    span: Span,
    ctx: Ctx,
    tally: Tally,
    report: bool,
}

impl Target {
    /// Of a receive that a message of `len` bytes can go to without frills.
    #[inline(always)]
    fn of(recv: &RecvOp, len: usize) -> Option<Target> {
        let (&Spans::One(span), None) = (&recv.iov, recv.multi) else { return None };
        let (ctx, tally, report) = (recv.ctx, recv.tally, recv.flags.contains(OpFlags::COMPLETION));
        let fits = len <= span.len() && span.can(hmem::Caps::CPU);
        fits.then_some(Target { span, ctx, tally, report })
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

impl<L: RmaLink> Endpoint<L> {
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
        let src = self.peers.get(from.0 as usize)?.src;
        let matcher = core.rxs.get_mut(self.rx.at())?.matcher(flags.contains(Flags::TAGGED));
        let at = matcher.find_posted(src, head.tag.get())?;
        Some((at, Target::of(matcher.found_posted(at)?, len)?, src))
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
        if let Some(rx) = core.rxs.get_mut(self.rx.at()) {
            rx.matcher(flags.contains(Flags::TAGGED)).forget_posted(at);
        }
        core.tally(target.tally, self.cntrs.recv, false);
        if target.report {
            core.complete_with(self.rx_cq, || entry(&target, head, flags, src, len));
        }
    }

    /// What a call of progress does that finds nothing, or a message of the plainest sort: what there is
    /// to tell of that does not go into the queue `cq`, which is empty.
    #[inline(always)]
    pub(crate) fn poll_fast(&mut self, core: &mut Core, cq: CqId) -> PollFast {
        if self.has_chores() {
            return PollFast::Unknown;
        }
        self.bytes_since_progress = 0;
        self.posting = false;
        let frame = match self.link.poll_frame() {
            PollFrame::Nothing => return PollFast::Nothing,
            PollFrame::Unknown => return PollFast::Unknown,
            PollFrame::Frame(frame) => frame,
        };
        if self.rx_cq == Some(cq) {
            if let Some(entry) = self.receive_fast(core, &frame) {
                self.link.release(frame);
                return PollFast::Message(entry);
            }
        }
        self.take_in(core, frame);
        PollFast::Other
    }

    #[inline(never)]
    fn take_in(&mut self, core: &mut Core, frame: Frame) {
        self.incoming(core, &frame);
        self.link.release(frame);
    }

    /// Receives a message for the oldest receive, if it takes no more than to copy it and to tell of it.
    #[inline(always)]
    fn receive_fast(&mut self, core: &mut Core, frame: &Frame) -> Option<Completion> {
        const WITH: Flags = Flags::TAGGED.union(Flags::CQ_DATA);
        let head: Head = zerocopy::transmute!(self.link.peek::<{ Head::LEN }>(frame)?);
        let flags = head.flags()?;
        if head.op() != Some(WireOp::Eager) || !WITH.contains(flags) {
            return None;
        }
        let len = frame.len - Head::LEN;
        let src = self.peers.get(frame.from.0 as usize)?.src;
        let matcher = core.rxs.get_mut(self.rx.at())?.matcher(flags.contains(Flags::TAGGED));
        let recv = matcher.first_posted()?;
        if !recv.pattern.fits(src, head.tag.get()) {
            return None;
        }
        let target = Target::of(recv, len)?;
        if !target.report {
            return None;
        }
        matcher.forget_first();
        self.link.copy_out(frame, Head::LEN, &[target.span], 0, len);
        core.tally(target.tally, self.cntrs.recv, false);
        Some(entry(&target, &head, flags, src, len))
    }

    #[inline]
    pub(super) fn on_plain_eager(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        if flags.contains(Flags::ACK) {
            return None;
        }
        let len = frame.len - Head::LEN;
        let target = self.target(core, frame.from, head, flags, len)?;
        self.link.copy_out(frame, Head::LEN, &[target.1.span], 0, len);
        self.arrived(core, target, head, flags, len);
        Some(())
    }

    /// A message that is fetched at once.
    #[inline]
    pub(super) fn on_plain_rts(
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
        let bytes: [u8; HEADERS] = self.link.peek(frame)?;
        let mut rest = &bytes[Head::LEN..];
        let (offer, seg): (Offer, Seg) = (take(&mut rest)?, take(&mut rest)?);
        let len = usize::try_from(offer.len.get()).ok().filter(|len| *len > 0)?;
        let from = frame.from;
        if seg.len.get() != offer.len.get() {
            return None;
        }
        let target = self.target(core, from, head, flags, len)?;
        let state = self.peer(from);
        let op = proto::Op::new(Role::Fetch(Reach::of(flags)), len, &[target.1.span], state.when());
        if choose(&state.limits, &op) != Plan::InCall {
            return None;
        }
        let grant = Grant::Request(offer.req.get());
        self.link.get(from, grant, &[seg], 0, &[target.1.span], 0, len).ok()?;
        self.peer(from).helper.works();
        self.meter(from, Side::Theirs, How::Direct, len);
        self.fin(from, offer.req.get(), Status::Ok, len);
        self.arrived(core, target, head, flags, len);
        Some(())
    }

    #[inline]
    pub(super) fn on_plain_write(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        const HEADERS: usize = Head::LEN + size_of::<RmaSeg>();
        if head.aux.get() != Aux::rma(1, 0) {
            return None;
        }
        let bytes: [u8; HEADERS] = self.link.peek(frame)?;
        let seg: RmaSeg = take(&mut &bytes[Head::LEN..])?;
        let len = frame.len - HEADERS;
        let (span, cntr) = core.reach_plain(&seg)?;
        if span.len() != len || !span.can(hmem::Caps::CPU) {
            return None;
        }
        if self.link.copy_out(frame, HEADERS, &[span], 0, len) != len {
            return None;
        }
        let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
        self.written(core, frame.from, Status::Ok, What::RMA, len, data, cntr);
        if flags.contains(Flags::ACK) {
            self.fin(frame.from, head.tag.get(), Status::Ok, len);
        }
        Some(())
    }
}
