//! Frames that peers send. Nothing in them is trusted.

use wire::{Flags, Head, MAX_SEGS, Offer, Op as WireOp, RmaSeg, Seg, Status};

use super::Endpoint;
use crate::core::{Body, Bound, Core, Message, Reached, RecvOp, Segs, unmoved};
use crate::endpoint::device::staging::Source;
use crate::endpoint::malformed::{Fields, Handled, Malformed, bytes_of, parse_head, parse_rma, parse_segs};
use crate::endpoint::parts::request::{Meta, Out, Request, Then};
use crate::proto::{Reach, When};
use crate::types::*;
use link_api::{Frame, PeerId, RmaLink};

/// Most bytes of headers.
const HEADERS: usize = Head::LEN + 8 + MAX_SEGS * (size_of::<RmaSeg>() + size_of::<Seg>());

/// How a frame names memory of its sender.
fn named_by(op: WireOp, flags: Flags) -> Reach {
    match op {
        WireOp::CoopFetch | WireOp::CoopRma => Reach::Cpu,
        WireOp::Handle | WireOp::ReadRts | WireOp::Bounce | WireOp::Invite => Reach::Handles,
        _ => Reach::of(flags),
    }
}

impl<L: RmaLink> Endpoint<L> {
    #[inline]
    pub(super) fn incoming(&mut self, core: &mut Core, frame: &Frame) {
        let peer = frame.from;
        self.net.peer(peer).has_sent(frame.len);
        if let Err(why) = self.dispatch(core, frame) {
            let head = self.net.link.peek(frame);
            self.net.malformed(peer, head, frame.len, why);
        }
    }

    #[inline(always)]
    fn dispatch(&mut self, core: &mut Core, frame: &Frame) -> Handled {
        let peer = frame.from;
        let bytes: [u8; Head::LEN] = self.net.link.peek(frame).ok_or(Malformed::Head)?;
        let (head, op, flags) = parse_head(&bytes)?;
        match op {
            WireOp::Eager => match self.on_plain_eager(core, frame, &head, flags) {
                Some(()) => Ok(()),
                None => self.on_eager(core, frame, &head, flags),
            },
            WireOp::Rts => {
                self.net.peer(peer).hints.set_unanswered(false);
                match self.on_plain_rts(core, frame, &head, flags) {
                    Some(()) => Ok(()),
                    None => self.on_long(core, peer, Source::Frame(frame, 0), frame.len, &head, op, flags),
                }
            }
            WireOp::Write | WireOp::WriteRts | WireOp::Read | WireOp::Atomic
                if self.net.peer(peer).order.is_some() && self.is_held_back(frame, &head, op, flags) =>
            {
                Ok(())
            }
            WireOp::Write => match self.on_plain_write(core, frame, &head, flags) {
                Some(()) => Ok(()),
                None => self.on_long(core, peer, Source::Frame(frame, 0), frame.len, &head, op, flags),
            },
            WireOp::Data => self.on_data(core, frame, &head),
            WireOp::Body => self.on_body(core, frame, &head),
            WireOp::Fin => self.on_fin(core, peer, &head),
            WireOp::Pause => self.net.on_pause(peer, &head),
            WireOp::Refused => self.on_refused(core, peer, &head),
            WireOp::Withdrawn => self.on_withdrawn(core, peer, &head),
            WireOp::Result => self.on_result(core, frame, &head),
            WireOp::CoopDone => self.on_coop_done(core, peer, &head),
            WireOp::BounceDone => self.on_bounce_done(peer, &head),
            WireOp::Cts
            | WireOp::Handle
            | WireOp::WriteRts
            | WireOp::Read
            | WireOp::Atomic
            | WireOp::CoopFetch
            | WireOp::CoopRma
            | WireOp::Invite
            | WireOp::ReadRts
            | WireOp::Bounce => {
                self.on_long(core, peer, Source::Frame(frame, 0), frame.len, &head, op, flags)
            }
        }
    }

    /// A frame that names memory: its header goes on.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn on_long(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        frame: Source<'_>,
        size: usize,
        head: &Head,
        op: WireOp,
        flags: Flags,
    ) -> Handled {
        if !self.net.peer(peer).flow.limits().allows(named_by(op, flags)) {
            return Err(Malformed::Means);
        }
        let mut bytes = [0u8; HEADERS - Head::LEN];
        let n = self.net.read_from(frame, Head::LEN, &mut bytes);
        let fields = &mut Fields::new(&bytes[..n]);
        match op {
            WireOp::Rts => self.on_rts(core, peer, head, flags, fields),
            WireOp::Cts => self.on_cts(peer, head, flags, fields),
            WireOp::Handle => self.net.on_handle(peer, fields),
            WireOp::Write => self.on_write(core, peer, (frame, size), head, flags, fields),
            WireOp::WriteRts => self.on_write_rts(core, peer, head, flags, fields),
            WireOp::Read => self.on_read(core, peer, head, flags, fields),
            WireOp::Atomic => self.on_atomic(core, peer, (frame, size), head, flags, fields),
            WireOp::CoopFetch => self.on_coop_fetch(core, peer, head, fields),
            WireOp::CoopRma => self.on_coop_rma(core, peer, head, fields),
            WireOp::Invite => self.on_invite(peer, head, fields),
            WireOp::Bounce => self.on_bounce(core, peer, head, fields),
            WireOp::ReadRts => self.on_read_rts(peer, head, flags, fields),
            _ => Err(Malformed::Op),
        }
    }

    fn on_eager(&mut self, core: &mut Core, frame: &Frame, head: &Head, flags: Flags) -> Handled {
        let mut off = Head::LEN;
        let mut ack = None;
        if flags.contains(Flags::ACK) {
            let mut req = [0; 8];
            if self.net.link.read(frame, off, &mut req) < 8 {
                return Err(Malformed::Short(8));
            }
            ack = Some(u64::from_le_bytes(req));
            off += 8;
        }
        let len = frame.len - off;
        let meta = self.net.meta(frame.from, head, flags, len);
        if let Some(matched) = self.bind.matched(core, &meta) {
            self.deliver(core, meta.peer, ack, matched, len, Source::Frame(frame, off));
            return Ok(());
        }
        let held = core.buffers.keep(len, |bytes| {
            self.net.link.read(frame, off, bytes);
        });
        self.keep_unexpected(core, meta, ack, Body::Held(held));
        Ok(())
    }

    fn on_rts(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(head.aux.get())?;
        let offer: Offer = fields.take()?;
        let segs = fields.take_segs(n)?;
        let len = usize::try_from(offer.len.get()).map_err(|_| Malformed::Lengths)?;
        let direct = Reach::of(flags);
        if bytes_of(&segs)? != len as u64 {
            return Err(Malformed::Segments);
        }
        let meta = self.net.meta(peer, head, flags, len);
        let req = offer.req.get();
        match self.bind.matched(core, &meta) {
            Some(matched) => self.fetch(core, peer, req, &segs, direct, len, matched, When::empty()),
            None => {
                let segs = Segs::new(&segs);
                self.keep_unexpected(core, meta, None, Body::Offered { req, segs, direct });
            }
        }
        Ok(())
    }

    /// Gives a waiting message to a receive that has just been posted.
    pub(crate) fn accept(&mut self, core: &mut Core, message: Message, recv: &RecvOp) -> bool {
        self.take_unexpected(core, &message);
        let Message { peer, src, tagged, tag, data, len, ack, body, .. } = message;
        let (matched, spent) =
            self.bind.matched_recv(core, recv, &Meta { peer, src, tagged, tag, data, len });
        match body {
            Body::Held(held) => {
                self.deliver(core, peer, ack, matched, len, Source::Held(held.bytes(len)));
                core.buffers.drop(held);
            }
            Body::Offered { req, segs, direct } => {
                // A thread that sleeps until the link's descriptor is readable makes no call of progress for
                // this.
                let when = if self.net.link.is_armed() { When::empty() } else { When::IN_POST };
                self.fetch(core, peer, req, segs.all(), direct, len, matched, when);
            }
            Body::Withdrawn => self.bind.complete_recv(core, matched, 0, Some(Error::Cancelled)),
        }
        spent
    }

    /// Throws a waiting message away; to its sender it has been received.
    pub(crate) fn discard(&mut self, core: &mut Core, message: Message) {
        self.take_unexpected(core, &message);
        match message.body {
            Body::Held(held) => {
                core.buffers.drop(held);
                if let Some(req) = message.ack {
                    self.net.fin(message.peer, req, Status::Ok, 0);
                }
            }
            Body::Offered { req, .. } => self.net.fin(message.peer, req, Status::Ok, 0),
            Body::Withdrawn => {}
        }
    }

    fn on_fin(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Handled {
        let name = head.tag.get();
        match self.requests.pool.get_mut(name) {
            Some(&mut Request::Out(Out { whole: true, peer: to, seq, len, done_as, .. }))
                if to == peer && !self.net.metered.is_on() =>
            {
                self.requests.pool.end(name);
                let err = crate::core::failure(Status::from_u16(head.aux.get()));
                self.finish_posted(core, (peer, seq, false), &done_as, len, err);
                return Ok(());
            }
            _ => {}
        }
        if self.requests.is_past(&self.net.link, peer, name) || self.requests.forget_withdrawn(peer, name) {
            return Ok(());
        }
        match self.requests.named(peer, name)? {
            // What this side shares is done when this side says so.
            Request::Out(out) if out.coop.as_ref().is_none_or(|p| !p.is_owner()) => {}
            Request::In(_) => return self.on_fin_in(core, peer, head),
            Request::Serve(s) if s.lent => {
                self.was_got(core, name, Status::from_u16(head.aux.get()));
                return Ok(());
            }
            _ => return Err(Malformed::Unfit),
        }
        self.requests.cancel_operation(&mut self.net.link, name);
        let Some(Request::Out(out)) = self.requests.pool.remove(name) else { return Err(Malformed::Unfit) };
        self.requests.end_stream(name);
        self.requests.queues.drop_coop(name);
        if self.requests.injected.has_kept() {
            self.requests.injected.take_kept(name);
        }
        let mut err = crate::core::failure(Status::from_u16(head.aux.get()));
        if out.large && out.asked.is_none() && err.is_none() {
            self.net.peer(peer).hints.note_fetched();
        }
        if err.is_none() && out.done_as.what.contains(What::READ) && head.data.get() != out.len as u64 {
            err = Some(Error::Io);
        }
        if err.is_some() && out.done_as.what.contains(What::RMA | What::WRITE) {
            self.has_heard_of_failure(peer, name);
        }
        self.finish_out(core, &out, err);
        Ok(())
    }

    fn on_write(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        (frame, size): (Source<'_>, usize),
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = usize::from(parse_rma(head.aux.get())?.rma);
        let segs = fields.take_many::<RmaSeg>(n)?;
        let off = Head::LEN + size_of_val(segs);
        let len = size - off;
        let (status, cntrs) = match core.reach(segs, Access::REMOTE_WRITE) {
            Ok(Reached { iov, len: n, cntrs, .. }) if n == len => {
                let ok = self.net.copy_from(frame, off, &iov, 0, len) == len;
                (if ok { Status::Ok } else { unmoved(&iov) }, cntrs)
            }
            Ok(_) => (Status::Malformed, Bound::new()),
            Err(status) => (status, Bound::new()),
        };
        let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
        self.written(core, peer, status, What::RMA, len, data, cntrs);
        if flags.contains(Flags::ACK) {
            self.net.fin(peer, head.tag.get(), status, len);
        } else if status != Status::Ok {
            self.net.refuse(peer, status, false);
        }
        Ok(())
    }

    /// A peer wrote memory here, or tried to.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn written(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        status: Status,
        what: What,
        len: usize,
        data: Option<u64>,
        cntrs: impl IntoIterator<Item = CntrId>,
    ) {
        if status != Status::Ok {
            return self.net.warn_of(peer, status);
        }
        core.count(self.bind.cntrs().remote_write, false);
        for cntr in cntrs {
            if Some(cntr) != self.bind.cntrs().remote_write {
                core.count(Some(cntr), false);
            }
        }
        if let Some(data) = data {
            let standing = self.bind.rx_cq().map_or(0, |cq| core.standing(cq) * size_of::<Completion>());
            if !self.net.may_keep(core, peer, standing) {
                return;
            }
            let entry = Completion {
                ctx: Ctx(0),
                what: what | What::REMOTE_WRITE | What::REMOTE_CQ_DATA,
                len,
                buf: 0,
                data,
                tag: 0,
                src: self.net.peer(peer).src,
                err: None,
                olen: 0,
            };
            core.complete(self.bind.rx_cq(), entry);
        }
    }

    fn on_write_rts(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let (rma, segs, there) = fields.take_access(head.aux.get())?;
        let data = flags.contains(Flags::CQ_DATA).then(|| head.data.get());
        let req = head.tag.get();
        match core.reach(rma, Access::REMOTE_WRITE) {
            Ok(reached) if reached.len as u64 == there => {
                let in_order = core.config.rma_order;
                let then = Then::Write {
                    data,
                    cntrs: reached.cntrs,
                    mrs: reached.mrs,
                    in_order,
                    several: rma.len() > 1,
                };
                let iov = (&reached.iov[..]).into();
                self.fetch_into(
                    core,
                    peer,
                    req,
                    segs,
                    Reach::of(flags),
                    iov,
                    reached.len,
                    then,
                    When::empty(),
                );
            }
            other => {
                let status = other.err().unwrap_or(Status::Malformed);
                self.written(core, peer, status, What::RMA, 0, None, None::<CntrId>);
                self.net.fin(peer, req, status, 0);
            }
        }
        Ok(())
    }

    fn on_read(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let (rma, segs, there) = fields.take_access(head.aux.get())?;
        let req = head.tag.get();
        match core.reach(rma, Access::REMOTE_READ) {
            Ok(reached) if reached.len as u64 == there => {
                self.serve(core, peer, req, segs, Reach::of(flags), reached);
            }
            other => {
                let status = other.err().unwrap_or(Status::Malformed);
                self.net.complain(peer, format_args!("was refused a read: {status:?}"));
                self.net.fin(peer, req, status, 0);
            }
        }
        Ok(())
    }
}
