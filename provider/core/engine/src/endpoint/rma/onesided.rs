//! RMA that needs nothing of its target.
//!
//! Peers see each other's registrations ([`RmaLink::published`]). So a read, and a write that is large or
//! that is to be delivered when it completes or is counted, is one direct copy, made in the call that posts
//! it. Another small write goes into a frame, which takes no time at all; since the registration allows it,
//! it completes at once, too.
//!
//! What is so large that both had better copy is copied cooperatively (`coop.rs`): the target copies pieces
//! while it is there, and the initiator copies what it does not.
//!
//! What a target has to see (remote CQ data, counters), what is requested in order, and what cannot be
//! reached directly goes the way of frames. So does what is posted behind a frame that the target does not
//! answer, until a later one has been answered: it would overtake the former.

use hmem::{Span, total};
use wire::{Aux, Flags, Head, MAX_SEGS, Op as WireOp, Seg};
use zerocopy::IntoBytes;

use crate::core::{Core, Spans, Tally};
use crate::endpoint::parts::header::{Header, push, segments};
use crate::endpoint::parts::request::{Done, OneSided, Out, Request};
use crate::endpoint::post::{Post, copied, is_counted};
use crate::proto::{self, Cut, Plan, Reach, Role, Tried, When, choose};
use crate::types::*;
use link_api::{Cork, Direct, Grant, How, Once, OpId, PeerId, Region, RmaCaps, RmaLink, Side, Way};

/// The place that an operation names, if the peer exposes it for that.
fn place(memory: &Region, addr: u64, len: u64, write: bool) -> Option<Seg> {
    let allowed = if write { memory.write } else { memory.read };
    let off = addr.checked_sub(if memory.virt_addr { memory.addr } else { 0 })?;
    let inside = off.checked_add(len).is_some_and(|end| end <= memory.len);
    let first = memory.addr.checked_add(off)?;
    (allowed && !memory.target_must_observe && inside).then_some(Seg { addr: first.into(), len: len.into() })
}

fn rma_flags(op: &Rma<'_>) -> Flags {
    if op.data.is_some() { Flags::CQ_DATA } else { Flags::empty() }
}

fn rma_head(h: &mut Header, wire_op: WireOp, flags: Flags, op: &Rma<'_>, segs: &[Seg], req: u64) {
    push(h, &Head::new(wire_op, flags, Aux::rma(op.remote.len(), segs.len()), req, op.data.unwrap_or(0)));
    push(h, op.remote);
    push(h, segs);
}

impl<L: RmaLink> Post<'_, L> {
    /// Writes inside a frame.
    fn write_eager(&mut self, peer: PeerId, op: &Rma<'_>, done_as: Done, watched: bool) -> Result<(), Error> {
        let (len, flags) = (total(op.iov), rma_flags(op));
        if watched {
            let state = self.net.peer(peer);
            let shares = state.flow.limits().is_by_frames();
            let outstanding = state.answers.outstanding();
            let (mut asks, mut gathers) = (true, false);
            if shares {
                let cumulative = state.cumulative.get_or_insert_default();
                // The target's program sees the end of one with data, and may make no call for long.
                asks = flags.contains(Flags::CQ_DATA) || cumulative.asks(len, outstanding);
                gathers = cumulative.gathers(asks);
            }
            // A call of progress comes, since the caller waits for some of them; for one that is injected
            // without a completion it may not. An application that sleeps until the link has something makes
            // no call.
            let is_waited_for = !op.flags.contains(OpFlags::INJECT) || op.flags.contains(OpFlags::COMPLETION);
            let gathers = gathers && is_waited_for && !self.net.link.is_armed();
            let flags = if asks { flags | Flags::ACK } else { flags };
            let out = Out { whole: true, ..Out::new(peer, Spans::NONE, len, done_as) };
            let mut name = 0;
            let header = |req, h: &mut Header| {
                name = req;
                rma_head(h, WireOp::Write, flags, op, &[], req);
            };
            if gathers {
                self.net.link.cork(Cork::Gather);
            }
            let launched = self.launch(out, header, op.iov, len);
            if gathers {
                self.net.link.cork(if asks { Cork::Off } else { Cork::Leave });
            }
            launched?;
            if shares {
                self.net.posted_write(peer, (!asks).then_some(name));
            }
            return Ok(());
        }
        let mut header = Header::new();
        rma_head(&mut header, WireOp::Write, flags, op, &[], 0);
        self.net.link.send(peer, &header, op.iov, 0, len)?;
        self.net.sent_unacked(peer);
        self.net.meter(peer, Side::Ours, How::Eager, len);
        Ok(())
    }

    /// Announces to the target a write that it is to fetch, or a read.
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

    /// Offers an injected write that no frame holds: its bytes are kept here.
    fn write_kept(&mut self, peer: PeerId, op: &Rma<'_>, done_as: Done) -> Result<(), Error> {
        let bytes = copied(op.iov)?;
        let seg = Seg { addr: 0.into(), len: (bytes.len() as u64).into() };
        let mut name = 0;
        let header = |req: u64, h: &mut Header| {
            name = req;
            rma_head(h, WireOp::WriteRts, rma_flags(op), op, &[seg], req);
        };
        let out = Out { large: true, ..Out::new(peer, Spans::NONE, bytes.len(), done_as) };
        self.launch(out, header, &[], 0)?;
        // The target holds what comes behind it.
        self.net.peer(peer).hints.note_frames();
        self.requests.injected.keep(name, bytes);
        Ok(())
    }

    /// Does the operation as planned, without the target or together with it. Otherwise nothing has happened,
    /// and this is what was tried in vain.
    #[inline]
    fn one_sided(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        op: &Rma<'_>,
        plan: Plan,
        done: &Done,
    ) -> Result<(), Tried> {
        let ([seg], len) = (op.remote, total(op.iov)) else { return Err(Tried::ONE_SIDED) };
        let (memory, version) = self.net.link.published(peer, seg.key.get()).ok_or(Tried::ONE_SIDED)?;
        let there = place(&memory, seg.addr.get(), len as u64, op.write).ok_or(Tried::ONE_SIDED)?;
        let grant = Grant::Region(version);
        if plan == Plan::Published {
            let begun = self.start_one_sided(peer, op, &Direct::new(grant, &[there], op.iov, len), done);
            return if begun { Ok(()) } else { Err(Tried::ONE_SIDED) };
        }
        let is_done = match plan {
            Plan::OneSidedFrame => self.write_unacked(peer, op, seg),
            Plan::Cooperative(cut) => {
                let begun = self.coop().coop_rma(core, peer, op, (there, version), cut, *done);
                return if begun { Ok(()) } else { Err(Tried::COOPERATIVE) };
            }
            _ => {
                let way = if op.write { Way::Put } else { Way::Get };
                self.net.link.access(way, peer, &Direct::new(grant, &[there], op.iov, len)).is_ok()
            }
        };
        if !is_done {
            return Err(Tried::ONE_SIDED);
        }
        if plan == Plan::InCall {
            self.net.peer(peer).hints.helper().works();
        }
        let how = if plan == Plan::OneSidedFrame { How::Eager } else { How::Direct };
        self.net.meter(peer, Side::Ours, how, len);
        self.bind.finish(core, done, len, None);
        Ok(())
    }

    /// Starts an access that the link makes by itself. `false`: nothing has happened.
    fn start_one_sided(&mut self, peer: PeerId, op: &Rma<'_>, access: &Direct<'_>, done: &Done) -> bool {
        if segments(op.iov).is_err() {
            return false;
        }
        if let Some(data) = op.data.and_then(|data| u32::try_from(data).ok()) {
            return self.start_once(peer, Once::Write(data), access, done);
        }
        let (way, there) = (if op.write { Way::Put } else { Way::Get }, op.remote.first().copied());
        let Ok(copy) = self.net.link.start(way, peer, access) else { return false };
        let one_sided = there.map(OneSided::Repeated);
        self.note_started(copy, Out { one_sided, ..Out::new(peer, op.iov.into(), access.len, *done) });
        true
    }

    /// Starts what the link does once. `false`: nothing has happened.
    fn start_once(&mut self, peer: PeerId, once: Once, access: &Direct<'_>, done: &Done) -> bool {
        let Ok(copy) = self.net.link.start_once(peer, once, access) else { return false };
        // It may be injected, and its memory is not named again.
        let out = Out::new(peer, Spans::NONE, access.len, *done);
        self.note_started(copy, Out { one_sided: Some(OneSided::Once), ..out });
        true
    }

    /// The link has started an access.
    fn note_started(&mut self, copy: OpId, mut out: Out) {
        let answers = &mut self.net.peer(out.peer).answers;
        out.seq = answers.next_seq();
        answers.begin(false);
        let name = self.requests.pool.insert(Request::Out(out));
        self.requests.queues.add_flight(copy, name);
    }

    /// Has the link do an atomic that it can do, unless it would overtake others. `false`: nothing has
    /// happened.
    fn atomic_by_link(&mut self, core: &Core, peer: PeerId, op: &Atomic<'_>, done: &Done) -> bool {
        const WORD: usize = size_of::<u64>();
        let answers = &self.net.peer(peer).answers;
        if core.config.rma_order
            || answers.has_atomics()
            || answers.is_behind_unacked()
            || op.flags.contains(OpFlags::FENCE)
            || op.data.is_some()
            || total(op.result) != WORD
            || ![hmem::Datatype::Uint64, hmem::Datatype::Int64].contains(&op.datatype)
        {
            return false;
        }
        let word = |iov: &[Span]| {
            let mut bytes = [0; WORD];
            (hmem::read(iov, 0, &mut bytes) == WORD).then_some(u64::from_ne_bytes(bytes))
        };
        let once = match op.op {
            hmem::AtomicOp::Sum => word(op.operand).map(Once::FetchAdd),
            hmem::AtomicOp::Cswap => {
                word(op.compare).and_then(|compare| Some(Once::CompareSwap(compare, word(op.operand)?)))
            }
            _ => None,
        };
        let ([seg], Some(once)) = (op.remote, once) else { return false };
        let Some((memory, version)) = self.net.link.published(peer, seg.key.get()) else { return false };
        let (addr, len) = (seg.addr.get(), WORD as u64);
        // It reads and writes.
        let Some(there) = place(&memory, addr, len, true).and_then(|_| place(&memory, addr, len, false))
        else {
            return false;
        };
        let there = [there];
        let access = Direct::new(Grant::Region(version), &there, op.result, WORD);
        let started = self.start_once(peer, once, &access, done);
        if started {
            self.net.peer(peer).answers.started_atomic();
        }
        started
    }

    /// Whether the target's processor need not see an access: it is in no order, and reports nothing there
    /// but what a link with [`RmaCaps::DATA`] does by itself. Where no completion says when the buffer may be
    /// used again, that is one which is copied.
    #[inline(always)]
    fn is_one_sided(&mut self, core: &Core, peer: PeerId, op: &Rma<'_>, watched: bool) -> bool {
        !core.config.rma_order
            && op.remote.len() == 1
            && !op.flags.contains(OpFlags::FENCE)
            && match op.data {
                None => watched,
                Some(data) => {
                    let may = self.net.peer(peer).flow.limits().rma.contains(RmaCaps::DATA);
                    let fits = op.write && u32::try_from(data).is_ok();
                    may && fits && (watched || total(op.iov) <= Once::COPIED)
                }
            }
    }

    /// Writes inside a frame that is not answered.
    #[inline(always)]
    fn write_unacked(&mut self, peer: PeerId, op: &Rma<'_>, seg: &wire::RmaSeg) -> bool {
        const HEADERS: usize = Head::LEN + size_of::<wire::RmaSeg>();
        let mut bytes = [0; HEADERS];
        let head = Head::new(WireOp::Write, Flags::empty(), Aux::rma(1, 0), 0, 0);
        bytes[..Head::LEN].copy_from_slice(head.as_bytes());
        bytes[Head::LEN..].copy_from_slice(seg.as_bytes());
        let sent = self.net.link.send(peer, &bytes, op.iov, 0, total(op.iov)).is_ok();
        if sent {
            self.net.sent_unacked(peer);
        }
        sent
    }

    pub(crate) fn rma(&mut self, core: &mut Core, op: &Rma<'_>, tally: Tally) -> Result<(), Error> {
        let len = total(op.iov);
        let there = op.remote.iter().try_fold(0u64, |n, s| n.checked_add(s.len.get()));
        if op.remote.len() > MAX_SEGS || there != Some(len as u64) {
            return Err(Error::Invalid);
        }
        let peer = self.gate_in_order(core, op.to, len, op.flags)?;
        let report = op.flags.contains(OpFlags::COMPLETION);
        let what = What::rma(op.write);
        let done_as = Done { ctx: op.ctx, what, report, tag: 0, data: op.data.unwrap_or(0), tally };
        let cntr = if op.write { self.bind.cntrs().write } else { self.bind.cntrs().read };
        let watched = self.is_watched(cntr, op.flags, tally);
        let one_sided = self.is_one_sided(core, peer, op, watched);
        // What a counter of writes has counted is at the target, whatever was requested: libraries with a
        // counter alone take it to be, as Sandia OpenSHMEM does where a barrier ends. Other writes that are
        // counted, and atomics, are answered by the target.
        let delivery = op.flags.contains(OpFlags::DELIVERY) || (op.write && is_counted(cntr, tally));
        let mut tried = Tried::empty();
        if let (true, true, [span]) = (one_sided && watched, op.write, op.iov) {
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
        when.set(When::COPIED, op.data.is_some() && len <= Once::COPIED);
        when.set(When::DELIVERY, delivery);
        when.set(When::LASTING, core.lasting);
        let delegate = when.contains(When::IN_A_ROW) && Cut::is_delegable(len) && self.net.may_delegate(peer);
        when.set(When::DELEGATE, delegate);
        let role = if op.write { Role::Write } else { Role::Read };
        let mut choice = proto::Op { tried, ..proto::Op::new(role, len, op.iov, when) };
        loop {
            // What is written is got by the target, and what is read is put by it.
            let way = if op.write { Way::Get } else { Way::Put };
            let plan = choose(self.net.peer(peer).flow.limits(), &choice);
            match plan {
                Plan::OneSidedFrame | Plan::InCall | Plan::Published | Plan::Cooperative(_) => {
                    match self.one_sided(core, peer, op, plan, &done_as) {
                        Ok(()) => return Ok(()),
                        Err(tried) => choice.tried |= tried,
                    }
                }
                Plan::ByHandles if !self.handles().export_or_none(peer, op.iov, way)? => {
                    choice.tried |= Tried::HANDLES
                }
                Plan::ByHandles | Plan::Rendezvous => {
                    let sent = self.rma_rts(peer, op, done_as, plan == Plan::ByHandles);
                    return sent.inspect_err(|_| self.handles().take_handles_back(peer, op.iov));
                }
                Plan::OfferKept => return self.write_kept(peer, op, done_as),
                _ => return self.write_eager(peer, op, done_as, watched),
            }
        }
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
        let what = What::atomic(fetches);
        let cntr = if fetches { self.bind.cntrs().read } else { self.bind.cntrs().write };
        let data = op.data.unwrap_or(0);
        let done_as = Done { ctx: op.ctx, what, report, tag: 0, data, tally };
        if self.net.peer(peer).flow.limits().rma.contains(RmaCaps::ATOMICS) {
            if self.atomic_by_link(core, peer, op, &done_as) {
                return Ok(());
            }
            if self.net.peer(peer).answers.has_link_atomics() {
                return Err(Error::Again);
            }
        }
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
            self.net.link.send(peer, &header, &body, 0, body_len)?;
            self.net.sent_unacked(peer);
            return Ok(());
        }
        let out = Out { whole: !fetches, ..Out::new(peer, Spans::from(op.result), len, done_as) };
        self.launch(out, |req, h| head(flags | Flags::ACK, req, h), &body, body_len)?;
        self.net.peer(peer).answers.sent_atomic();
        Ok(())
    }

    /// Like [`Endpoint::gate`], for an operation that takes effect in order with the RMA before it.
    fn gate_in_order(
        &mut self,
        core: &mut Core,
        to: FiAddr,
        len: usize,
        flags: OpFlags,
    ) -> Result<PeerId, Error> {
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
}

#[cfg(test)]
mod bounds_tests;
