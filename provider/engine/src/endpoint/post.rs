//! Operations the application starts.

use hmem::{Span, total};
use wire::{Aux, Flags, Head, MAX_SEGS, Op as WireOp, Seg};

use super::Endpoint;
use crate::core::{Core, Spans, Tally};
use crate::endpoint::net::taken;
use crate::endpoint::parts::header::{Header, push};
use crate::endpoint::parts::request::{Done, Out, Request};
use crate::proto::{self, Cut, Memory, Plan, Reach, Role, Tried, When, choose};
use crate::types::*;
use link_api::{How, PeerId, Refused, RmaLink, Side};

impl<L: RmaLink> Endpoint<L> {
    /// Sends a message without frills: one buffer that fits its frame, of which no delivery is to be reported
    /// (of an injected one it is not, unless a counter counts it: MPICH and Intel MPI have endpoints whose
    /// level is delivery, for their RMA), to a peer that nothing else waits for. What nearly every message
    /// is. `false`: it is another sort, or did not find room.
    #[inline(always)]
    pub(crate) fn send_plain(&mut self, core: &mut Core, span: Span, op: &Send<'_>) -> bool {
        let len = span.len();
        let delivery = op.flags.contains(OpFlags::DELIVERY);
        if op.flags.contains(OpFlags::FENCE)
            || (delivery && self.is_watched(self.bind.cntrs().send, op.flags, Tally::PLAIN))
            || !span.can(hmem::Caps::CPU)
        {
            return false;
        }
        let Some(peer) = self.net.peers.routed(op.to) else { return false };
        let clear = self.net.peers.get(peer).is_some_and(|p| p.flow.takes_plain(len));
        let report = op.flags.contains(OpFlags::COMPLETION);
        if !clear || self.adapt.is_time_for_progress() || (report && core.is_full(self.bind.tx_cq())) {
            return false;
        }
        let (mut flags, mut what, mut tag, mut data) = (Flags::empty(), What::SEND | What::MSG, 0, 0);
        if let Some(t) = op.tag {
            (flags, what, tag) = (Flags::TAGGED, What::SEND | What::TAGGED, t);
        }
        if let Some(d) = op.data {
            flags |= Flags::CQ_DATA;
            data = d;
        }
        let head = Head::new(WireOp::Eager, flags, 0, tag, data);
        let sent = match self.net.link.send_short::<{ Head::LEN }>(peer, zerocopy::transmute!(head), span) {
            Some(sent) => sent,
            None => self.send_longer(peer, flags, tag, data, span.apart()),
        };
        if let Err(why) = sent {
            let done_as = Done { ctx: op.ctx, what, report, tag, data, tally: Tally::PLAIN };
            return self.plain_refused(peer, why, len, done_as);
        }
        self.adapt.note_sent(len);
        core.count(self.bind.cntrs().send, false);
        if report {
            let (ctx, buf, src, err, olen) = (op.ctx, 0, ADDR_UNSPEC, None, 0);
            core.complete_with(self.bind.tx_cq(), || Completion {
                ctx,
                what,
                len,
                buf,
                data,
                tag,
                src,
                err,
                olen,
            });
        }
        true
    }

    /// Sends such a message in any frame. What it is made of comes in registers: neither its head nor its
    /// buffer's place are in memory where this is not called.
    #[inline(never)]
    fn send_longer(
        &mut self,
        peer: PeerId,
        flags: Flags,
        tag: u64,
        data: u64,
        span: Span,
    ) -> Result<(), Refused> {
        let head = Head::new(WireOp::Eager, flags, 0, tag, data);
        self.net.link.send(peer, zerocopy::IntoBytes::as_bytes(&head), &[span], 0, span.len())
    }

    /// Such a message was refused, or the link keeps a part of it: whether it was sent.
    #[cold]
    #[inline(never)]
    fn plain_refused(&mut self, peer: PeerId, why: Refused, len: usize, done_as: Done) -> bool {
        match why {
            Refused::Kept => {
                self.adapt.note_sent(len);
                self.finish_later(peer, len, done_as);
            }
            // A link says once that a peer is not there, and tries to reach it again when it is asked again.
            Refused::Gone(why) => self.net.peer(peer).refused = Some(why),
            Refused::Busy | Refused::Fault => {}
        }
        why == Refused::Kept
    }

    /// The peer of an operation, if it may be started now.
    fn gate(&mut self, core: &Core, to: FiAddr, flags: OpFlags) -> Result<PeerId, Error> {
        let peer = self.net.peers.routed(to);
        let peer = peer.ok_or(Error::NoAddr)?;
        // What is injected is done when the call returns: clients post it without ever reading the queue.
        let waits = flags & (OpFlags::COMPLETION | OpFlags::INJECT) == OpFlags::COMPLETION;
        if waits && core.is_full(self.bind.tx_cq()) {
            return Err(Error::Again);
        }
        let depth = self.net.quota.depth();
        let state = self.net.peer(peer);
        if state.flow.has_backlog()
            || state.answers.outstanding() >= depth
            || (flags.contains(OpFlags::FENCE) && state.answers.outstanding() > 0)
        {
            return Err(Error::Again);
        }
        if !state.flow.is_path_logged() {
            self.net.peers.note_unlogged(peer);
        }
        Ok(peer)
    }

    /// Like [`Endpoint::gate`], for an operation that takes effect in order with the RMA before it.
    fn gate_in_order(
        &mut self,
        core: &mut Core,
        to: FiAddr,
        len: usize,
        flags: OpFlags,
    ) -> Result<PeerId, Error> {
        if core.config.rma_order && self.adapt.is_time_for_progress() {
            self.progress(core, None);
        }
        let peer = self.gate(core, to, flags)?;
        let state = self.net.peer(peer);
        if core.config.rma_order && state.answers.has_large() {
            // What the target fetches directly it fetches in order; frames it asks for come later.
            if !state.hints.fetches_directly() {
                return Err(Error::Again);
            }
            // It may ask for them now, and holds this one meanwhile: that has to be known before it holds
            // much.
            let fits = state.flow.limits().fits;
            self.adapt.note_sent(len.min(fits));
        }
        Ok(peer)
    }

    /// Whether a completion or a counter tells when the operation is done.
    fn is_watched(&self, cntr: Option<CntrId>, flags: OpFlags, tally: Tally) -> bool {
        flags.contains(OpFlags::COMPLETION) || is_counted(cntr, tally)
    }

    /// Sends the frame of a request that the peer will answer.
    pub(super) fn launch(
        &mut self,
        mut out: Out,
        head: impl FnOnce(u64, &mut Header),
        body: &[Span],
        len: usize,
    ) -> Result<(), Error> {
        let (peer, large, offered) = (out.peer, out.large, out.offered);
        self.net.link.awaits(None);
        let state = self.net.peer(peer);
        out.seq = state.answers.next_seq();
        let name = self.requests.pool.insert(Request::Out(out));
        let mut header = Header::new();
        head(name, &mut header);
        if let Err(why) = taken(self.net.link.send(peer, &header, body, 0, len)) {
            self.requests.pool.remove(name);
            return Err(why.into());
        }
        let state = self.net.peer(peer);
        state.answers.begin(large);
        if offered {
            self.adapt.note_offer();
        }
        Ok(())
    }

    /// What holds of an operation that is posted, and that it was.
    fn when(&mut self, peer: PeerId, flags: OpFlags, len: usize) -> When {
        let mut when = When::empty();
        when.set(When::INJECT, flags.contains(OpFlags::INJECT));
        when.set(When::DELIVERY, flags.contains(OpFlags::DELIVERY));
        when.set(When::IN_A_ROW, self.adapt.is_in_a_row());
        let state = self.net.peer(peer);
        when.set(When::PAUSED, state.flow.is_paused());
        when.set(When::BEHIND_UNACKED, state.answers.is_behind_unacked());
        when.set(When::HELPED, state.hints.helps());
        let is_large = len > state.flow.limits().eager;
        self.adapt.note_large(is_large && !when.contains(When::INJECT));
        when
    }

    pub(crate) fn send(&mut self, core: &mut Core, op: &Send<'_>, tally: Tally) -> Result<(), Error> {
        if self.adapt.is_time_for_progress() {
            self.progress(core, None);
        }
        let peer = self.gate(core, op.to, op.flags)?;
        if let Some(why) = self.net.peer(peer).refused.take() {
            // Of one that has a channel, another process's or one that ends, the link knows more.
            if !self.net.link.is_connected(peer) {
                return Err(why.into());
            }
        }
        let len = total(op.iov);
        let (mut flags, mut what) = (Flags::empty(), What::SEND | What::MSG);
        if op.tag.is_some() {
            (flags, what) = (Flags::TAGGED, What::SEND | What::TAGGED);
        }
        flags.set(Flags::CQ_DATA, op.data.is_some());
        let (tag, data) = (op.tag.unwrap_or(0), op.data.unwrap_or(0));
        let report = op.flags.contains(OpFlags::COMPLETION);
        let done_as = Done { ctx: op.ctx, what, report, tag, data, tally };
        let mut when = self.when(peer, op.flags, len);
        when.set(When::BOTH_WAYS, self.bind.has_receives(core));
        let state = self.net.peer(peer);
        when.set(When::IN_A_ROW, when.contains(When::IN_A_ROW) | state.hints.is_unanswered());
        let is_large = len > state.flow.limits().eager;
        if is_large {
            state.hints.set_unanswered(true);
            when.set(When::TO_MANY, self.adapt.goes_to_many());
            when.set(When::TO_SEVERAL, self.adapt.goes_to_several());
            when.set(When::BEHIND, self.is_behind(peer, len));
        }
        let sent = self.send_as_chosen(core, peer, op, flags, done_as, when);
        // Once, however often it is tried.
        if is_large && sent.is_ok() {
            self.adapt.note_target(peer);
        }
        sent
    }

    /// Whether a message that only goes inside a frame one way had better be offered: the peer has much to
    /// take in already. Offers take little room, so that a program goes on whose peer is elsewhere.
    fn is_behind(&mut self, peer: PeerId, len: usize) -> bool {
        let limits = self.net.peer(peer).flow.limits();
        len > limits.in_a_row && len <= limits.one_way && !self.net.has_room_to_spare(peer, len)
    }

    /// Sends a message of which this holds.
    fn send_as_chosen(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        op: &Send<'_>,
        flags: Flags,
        done_as: Done,
        when: When,
    ) -> Result<(), Error> {
        let len = total(op.iov);
        let mut choice = proto::Op::new(Role::Send, len, op.iov, when);
        if when.contains(When::INJECT) && choice.memory != Memory::Host {
            choice.when.set(When::ONE_DEVICE, self.net.is_on_one_device(peer, op.iov));
        }
        loop {
            let plan = choose(self.net.peer(peer).flow.limits(), &choice);
            match plan {
                Plan::OfferKept => return self.offer_kept(peer, op, flags, done_as),
                Plan::OfferAndWait if self.net.peer(peer).hints.is_prompt() => {
                    return self.inject_from_device(peer, op, flags, done_as);
                }
                Plan::OfferAndWait => choice.tried |= Tried::WAIT,
                Plan::ByHandles if !self.export_or_none(peer, op.iov)? => choice.tried |= Tried::HANDLES,
                Plan::ByHandles | Plan::Rendezvous => {
                    let sent = self.send_rts(peer, op.iov, flags, done_as, plan == Plan::ByHandles);
                    return sent.inspect_err(|_| self.take_handles_back(peer, op.iov));
                }
                _ => return self.send_eager(core, peer, op, flags, done_as),
            }
        }
    }

    /// Sends a message inside its frame.
    fn send_eager(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        op: &Send<'_>,
        flags: Flags,
        done_as: Done,
    ) -> Result<(), Error> {
        let (len, tag, data) = (total(op.iov), done_as.tag, done_as.data);
        let delivery = op.flags.contains(OpFlags::DELIVERY);
        if delivery && self.is_watched(self.bind.cntrs().send, op.flags, done_as.tally) {
            let header = |req: u64, h: &mut Header| {
                push(h, &Head::new(WireOp::Eager, flags | Flags::ACK, 0, tag, data));
                push(h, &req.to_le_bytes());
            };
            let out = Out { whole: true, ..Out::new(peer, Spans::NONE, len, done_as) };
            return self.launch(out, header, op.iov, len);
        }
        let head = Head::new(WireOp::Eager, flags, 0, tag, data);
        let sent = self.net.link.send(peer, zerocopy::IntoBytes::as_bytes(&head), op.iov, 0, len);
        taken(sent)?;
        self.adapt.note_sent(len);
        self.net.meter(peer, Side::Ours, How::Eager, len);
        match sent {
            Err(Refused::Kept) => self.finish_later(peer, len, done_as),
            _ => self.bind.finish(core, &done_as, len, None),
        }
        Ok(())
    }

    pub(crate) fn rma(&mut self, core: &mut Core, op: &Rma<'_>, tally: Tally) -> Result<(), Error> {
        let len = total(op.iov);
        let there = op.remote.iter().try_fold(0u64, |n, s| n.checked_add(s.len.get()));
        if op.remote.len() > MAX_SEGS || there != Some(len as u64) {
            return Err(Error::Invalid);
        }
        let peer = self.gate_in_order(core, op.to, len, op.flags)?;
        let report = op.flags.contains(OpFlags::COMPLETION);
        let what = What::RMA | if op.write { What::WRITE } else { What::READ };
        let done_as = Done { ctx: op.ctx, what, report, tag: 0, data: op.data.unwrap_or(0), tally };
        let cntr = if op.write { self.bind.cntrs().write } else { self.bind.cntrs().read };
        let watched = self.is_watched(cntr, op.flags, tally);
        let one_sided = watched && self.is_one_sided(core, op);
        // What a counter of writes has counted is at the target, whatever was asked for: libraries with a
        // counter alone take it to be, as Sandia OpenSHMEM does where a barrier ends. Other writes that are
        // counted, and atomics, are answered by the target.
        let delivery = op.flags.contains(OpFlags::DELIVERY) || (op.write && is_counted(cntr, tally));
        let mut tried = Tried::empty();
        if let (true, true, [span]) = (one_sided, op.write, op.iov) {
            let short = proto::is_one_sided_frame(self.net.peer(peer).flow.limits(), span);
            if short && !delivery {
                match self.one_sided(core, peer, op, Plan::OneSidedFrame, &done_as) {
                    Ok(()) => return Ok(()),
                    Err(in_vain) => tried = in_vain,
                }
            }
        }
        let mut when = self.when(peer, op.flags, len);
        when.set(When::ONE_SIDED, one_sided);
        when.set(When::DELIVERY, delivery);
        when.set(When::LASTING, core.lasting);
        let delegate = when.contains(When::IN_A_ROW) && Cut::is_delegable(len) && self.net.may_delegate(peer);
        when.set(When::DELEGATE, delegate);
        let role = if op.write { Role::Write } else { Role::Read };
        let mut choice = proto::Op { tried, ..proto::Op::new(role, len, op.iov, when) };
        loop {
            let plan = choose(self.net.peer(peer).flow.limits(), &choice);
            match plan {
                Plan::OneSidedFrame | Plan::InCall | Plan::Cooperative(_) => {
                    match self.one_sided(core, peer, op, plan, &done_as) {
                        Ok(()) => return Ok(()),
                        Err(tried) => choice.tried |= tried,
                    }
                }
                Plan::ByHandles if !self.export_or_none(peer, op.iov)? => choice.tried |= Tried::HANDLES,
                Plan::ByHandles | Plan::Rendezvous => {
                    let sent = self.rma_rts(peer, op, done_as, plan == Plan::ByHandles);
                    return sent.inspect_err(|_| self.take_handles_back(peer, op.iov));
                }
                Plan::OfferKept => return self.write_kept(peer, op, done_as),
                _ => return self.write_eager(peer, op, done_as, watched),
            }
        }
    }

    /// Writes inside a frame.
    fn write_eager(&mut self, peer: PeerId, op: &Rma<'_>, done_as: Done, watched: bool) -> Result<(), Error> {
        let (len, flags) = (total(op.iov), rma_flags(op));
        if watched {
            let out = Out { whole: true, ..Out::new(peer, Spans::NONE, len, done_as) };
            let header = |req, h: &mut Header| rma_head(h, WireOp::Write, flags | Flags::ACK, op, &[], req);
            return self.launch(out, header, op.iov, len);
        }
        let mut header = Header::new();
        rma_head(&mut header, WireOp::Write, flags, op, &[], 0);
        taken(self.net.link.send(peer, &header, op.iov, 0, len))?;
        self.net.sent_unacked(peer);
        self.net.meter(peer, Side::Ours, How::Eager, len);
        Ok(())
    }

    /// Tells the target of a write that it is to fetch, or of a read.
    fn rma_rts(&mut self, peer: PeerId, op: &Rma<'_>, done_as: Done, handles: bool) -> Result<(), Error> {
        let (segs, direct) = segments(op.iov)?;
        let (len, mut flags) = (total(op.iov), rma_flags(op));
        flags.set(Flags::DIRECT, direct && !handles && self.net.peer(peer).flow.limits().allows(Reach::Cpu));
        flags.set(Flags::HANDLES, handles);
        let wire_op = if op.write { WireOp::WriteRts } else { WireOp::Read };
        let large = handles || len > self.net.peer(peer).flow.limits().eager;
        let out = Out { large, ..Out::new(peer, op.iov.into(), len, done_as) };
        self.launch(out, |req, h| rma_head(h, wire_op, flags, op, &segs, req), &[], 0)?;
        if large && (handles || !direct) {
            self.net.peer(peer).hints.note_frames();
        }
        Ok(())
    }

    pub(crate) fn atomic(&mut self, core: &mut Core, op: &Atomic<'_>, tally: Tally) -> Result<(), Error> {
        let len = op.remote.iter().try_fold(0u64, |n, s| n.checked_add(s.len.get()));
        let len = len.and_then(|n| usize::try_from(n).ok()).ok_or(Error::Invalid)?;
        let fetches = total(op.result) > 0;
        let compares = total(op.compare) > 0;
        let operand = if op.op == hmem::AtomicOp::AtomicRead { &[] } else { op.operand };
        let fits = |iov: &[Span], used: bool| total(iov) == if used { len } else { 0 };
        if op.remote.len() > MAX_SEGS
            || len == 0
            || !fits(op.result, fetches)
            || !fits(op.compare, compares)
            || !fits(operand, op.op != hmem::AtomicOp::AtomicRead)
        {
            return Err(Error::Invalid);
        }
        let peer = self.gate_in_order(core, op.to, len, op.flags)?;
        let mut body = arrayvec::ArrayVec::<Span, { 2 * MAX_SEGS }>::new();
        for s in operand.iter().chain(op.compare) {
            body.try_push(*s).map_err(|_| Error::Invalid)?;
        }
        let body_len = total(&body);
        // The values come back in one frame, too, even if none went there.
        if body_len.max(len) + Head::LEN + size_of_val(op.remote)
            > self.net.peer(peer).flow.limits().max_frame()
        {
            return Err(Error::TooBig);
        }
        let report = op.flags.contains(OpFlags::COMPLETION);
        let what = What::ATOMIC | if fetches { What::READ } else { What::WRITE };
        let cntr = if fetches { self.bind.cntrs().read } else { self.bind.cntrs().write };
        let data = op.data.unwrap_or(0);
        let done_as = Done { ctx: op.ctx, what, report, tag: 0, data, tally };
        let mut flags = Flags::empty();
        flags.set(Flags::CQ_DATA, op.data.is_some());
        flags.set(Flags::FETCH, fetches);
        flags.set(Flags::COMPARE, compares);
        let aux = Aux::atomic(op.remote.len(), op.op.code(), op.datatype.code());
        let head = |flags, req, h: &mut Header| {
            push(h, &Head::new(WireOp::Atomic, flags, aux, req, data));
            push(h, op.remote);
        };
        if !fetches && !self.is_watched(cntr, op.flags, tally) {
            let mut header = Header::new();
            head(flags, 0, &mut header);
            taken(self.net.link.send(peer, &header, &body, 0, body_len))?;
            self.net.sent_unacked(peer);
            return Ok(());
        }
        let out = Out { whole: !fetches, ..Out::new(peer, Spans::from(op.result), len, done_as) };
        self.launch(out, |req, h| head(flags | Flags::ACK, req, h), &body, body_len)
    }
}

/// Whether a counter counts an operation; `cntr` is the endpoint's.
#[inline(always)]
fn is_counted(cntr: Option<CntrId>, tally: Tally) -> bool {
    (tally.endpoint && cntr.is_some()) || tally.also.is_some()
}

pub(super) fn rma_flags(op: &Rma<'_>) -> Flags {
    if op.data.is_some() { Flags::CQ_DATA } else { Flags::empty() }
}

pub(super) fn rma_head(h: &mut Header, wire_op: WireOp, flags: Flags, op: &Rma<'_>, segs: &[Seg], req: u64) {
    push(h, &Head::new(wire_op, flags, Aux::rma(op.remote.len(), segs.len()), req, op.data.unwrap_or(0)));
    push(h, op.remote);
    push(h, segs);
}

/// The spans as a peer is told of them, and whether it may follow the addresses.
pub(super) fn segments(iov: &[Span]) -> Result<(arrayvec::ArrayVec<Seg, MAX_SEGS>, bool), Error> {
    let mut segs = arrayvec::ArrayVec::new();
    for s in iov {
        let seg = Seg { addr: s.addr().into(), len: (s.len() as u64).into() };
        segs.try_push(seg).map_err(|_| Error::Invalid)?;
    }
    Ok((segs, hmem::can(iov, hmem::Caps::CMA)))
}
