//! Frames without frills, which nearly all are: a message for one buffer that nobody else has a word
//! in, a write to one place. They go straight, with nothing built on the way.
//!
//! Each function answers `None`, and has done nothing, where a frame is of another sort or something
//! is wrong with it: then the general way takes it, and finds out what.

use hmem::Span;
use wire::{Aux, Flags, Head, Offer, RmaSeg, Seg, Status, take};

use super::Endpoint;
use crate::core::{Core, Spans, Tally};
use crate::link::{Frame, Link, PeerId};
use crate::matching::At;
use crate::proto::Thresholds;
use crate::types::*;

/// The receive that a message is for.
struct Target {
    at: At,
    span: Span,
    ctx: Ctx,
    tally: Tally,
    report: bool,
    /// What the message's sender is called.
    src: FiAddr,
}

impl<L: Link> Endpoint<L> {
    /// The oldest receive that a message of `len` bytes fits, if it is plain and long enough.
    #[inline(always)]
    fn target(
        &mut self,
        core: &mut Core,
        from: PeerId,
        head: &Head,
        flags: Flags,
        len: usize,
    ) -> Option<Target> {
        let src = self.peer(from).src;
        let matcher = core.rxs.get_mut(self.rx.at())?.matcher(flags.contains(Flags::TAGGED));
        let at = matcher.find_posted(src, head.tag.get())?;
        let recv = matcher.posted_mut(at)?;
        let (&Spans::One(span), None) = (&recv.iov, recv.multi) else { return None };
        let (ctx, tally, report) = (recv.ctx, recv.tally, recv.flags.contains(OpFlags::COMPLETION));
        let fits = len <= span.len() && span.kind().is_system();
        fits.then_some(Target { at, span, ctx, tally, report, src })
    }

    /// Completes a receive whose bytes have come.
    #[inline(always)]
    fn arrived(&mut self, core: &mut Core, target: Target, head: &Head, flags: Flags, len: usize) {
        let Target { at, span, ctx, tally, report, src } = target;
        let tagged = flags.contains(Flags::TAGGED);
        if let Some(rx) = core.rxs.get_mut(self.rx.at()) {
            rx.matcher(tagged).forget_posted(at);
        }
        core.tally(tally, self.cntrs.recv, false);
        if report {
            let mut what = What::RECV | if tagged { What::TAGGED } else { What::MSG };
            let mut data = 0;
            if flags.contains(Flags::CQ_DATA) {
                what |= What::REMOTE_CQ_DATA;
                data = head.data.get();
            }
            let (buf, tag) = (span.addr(), head.tag.get());
            let entry = || Completion { ctx, what, len, buf, data, tag, src, err: None, olen: 0 };
            core.complete_with(self.rx_cq, entry);
        }
    }

    #[inline]
    pub(super) fn on_plain_eager(
        &mut self,
        core: &mut Core,
        frame: &L::Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        if flags.contains(Flags::ACK) {
            return None;
        }
        let len = frame.len() - Head::LEN;
        let target = self.target(core, frame.from(), head, flags, len)?;
        self.link.copy_out(frame, Head::LEN, &[target.span], 0, len);
        self.arrived(core, target, head, flags, len);
        Some(())
    }

    /// A message that is fetched at once.
    #[inline]
    pub(super) fn on_plain_rts(
        &mut self,
        core: &mut Core,
        frame: &L::Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        const HEADERS: usize = Head::LEN + size_of::<Offer>() + size_of::<Seg>();
        if head.aux.get() != 1 || frame.len() != HEADERS || !flags.contains(Flags::DIRECT) {
            return None;
        }
        let bytes: [u8; HEADERS] = self.link.first(frame)?;
        let mut rest = &bytes[Head::LEN..];
        let (offer, seg): (Offer, Seg) = (take(&mut rest)?, take(&mut rest)?);
        let len = usize::try_from(offer.len.get()).ok().filter(|len| *len > 0)?;
        let from = frame.from();
        // Both sides copy what is large.
        if seg.len.get() != offer.len.get()
            || self.peer(from).frames_only
            || Thresholds::pieces(len).is_some()
        {
            return None;
        }
        let target = self.target(core, from, head, flags, len)?;
        self.link.get(from, &[seg], 0, &[target.span], 0, len).ok()?;
        self.peer(from).shares.may();
        self.fin(from, offer.req.get(), Status::Ok, len);
        self.arrived(core, target, head, flags, len);
        Some(())
    }

    #[inline]
    pub(super) fn on_plain_write(
        &mut self,
        core: &mut Core,
        frame: &L::Frame,
        head: &Head,
        flags: Flags,
    ) -> Option<()> {
        const HEADERS: usize = Head::LEN + size_of::<RmaSeg>();
        if head.aux.get() != Aux::rma(1, 0) {
            return None;
        }
        let bytes: [u8; HEADERS] = self.link.first(frame)?;
        let seg: RmaSeg = take(&mut &bytes[Head::LEN..])?;
        let len = frame.len() - HEADERS;
        let (span, cntr) = core.reach_plain(&seg)?;
        if span.len() != len || !span.kind().is_system() {
            return None;
        }
        self.link.copy_out(frame, HEADERS, &[span], 0, len);
        let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
        self.written(core, frame.from(), Status::Ok, What::RMA, len, data, cntr);
        if flags.contains(Flags::ACK) {
            self.fin(frame.from(), head.tag.get(), Status::Ok, len);
        }
        Some(())
    }
}
