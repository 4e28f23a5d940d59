//! Operations the application starts.

use hmem::{Span, total};
use wire::{Flags, Head, Offer, Op as WireOp, Seg};

use crate::core::{Core, Spans, Tally};
use crate::endpoint::coop::CoopCopies;
use crate::endpoint::device::handles::Handles;
use crate::endpoint::ends::Ends;
use crate::endpoint::net::Net;
use crate::endpoint::parts::adapt::Adapt;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::header::{Header, push, segments};
use crate::endpoint::parts::request::{Done, Out, Request};
use crate::endpoint::requests::Requests;
use crate::proto::{self, Cut, Memory, Plan, Reach, Role, Tried, When, choose};
use crate::types::*;
use link_api::{Channel, Hint, How, PeerId, Refused, RmaLink, Sent, Side, Way};

/// Whether a counter counts an operation; `cntr` is the endpoint's.
#[inline(always)]
pub(in crate::endpoint) fn is_counted(cntr: Option<CntrId>, tally: Tally) -> bool {
    (tally.endpoint && cntr.is_some()) || tally.also.is_some()
}

/// What is injected, for a frame to come.
pub(in crate::endpoint) fn copied(iov: &[Span]) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; hmem::total(iov)];
    if hmem::read(iov, 0, &mut bytes) == bytes.len() { Ok(bytes) } else { Err(Error::Io) }
}

/// Operations that the application starts.
pub(crate) struct Post<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
    pub(in crate::endpoint) bind: &'a Bind,
    pub(in crate::endpoint) adapt: &'a mut Adapt,
}

impl<L: RmaLink> Post<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn handles(&mut self) -> Handles<'_, L> {
        Handles { net: self.net, requests: self.requests }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn ends(&mut self) -> Ends<'_, L> {
        Ends { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn coop(&mut self) -> CoopCopies<'_, L> {
        CoopCopies { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    /// Sends a message without frills: one buffer that fits its frame, of which no delivery is to be reported
    /// (of an injected one it is not, unless a counter counts it: MPICH and Intel MPI have endpoints whose
    /// level is delivery, for their RMA), to a peer that nothing else waits for. What nearly every message
    /// is. `false`: it is another sort, or did not find room.
    #[inline(always)]
    pub(crate) fn send_plain(&mut self, core: &mut Core, span: Span, op: &Send<'_>) -> bool {
        let len = span.len();
        // Both at once, since nearly no message has either.
        if op.flags.intersects(OpFlags::FENCE | OpFlags::DELIVERY) {
            let counter = self.bind.cntrs().send;
            if op.flags.contains(OpFlags::FENCE) || self.is_watched(counter, op.flags, Tally::PLAIN) {
                return false;
            }
        }
        if !span.can(hmem::Caps::CPU) {
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
        let short = self.net.link.send_short::<{ Head::LEN }>(peer, zerocopy::transmute!(head), span);
        if !matches!(short, Some(Ok(Sent::Done))) {
            let sent = match short {
                Some(sent) => sent,
                None => self.net.send_plain(peer, flags, tag, data, span.apart()),
            };
            if !matches!(sent, Ok(Sent::Done)) {
                let done_as = Done { ctx: op.ctx, what, report, tag, data, tally: Tally::PLAIN };
                return self.apart().plain_not_done(peer, sent, len, done_as);
            }
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

    /// The same in memory of its own, for a call that is seldom made: the parts stay in registers where it is
    /// not.
    #[inline(always)]
    fn apart(&mut self) -> Post<'_, L> {
        Post { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    /// Such a message was refused, or the link keeps a part of it: whether it was sent.
    #[cold]
    #[inline(never)]
    fn plain_not_done(
        &mut self,
        peer: PeerId,
        sent: Result<Sent, Refused>,
        len: usize,
        done_as: Done,
    ) -> bool {
        match sent {
            Ok(_) => {
                self.adapt.note_sent(len);
                self.ends().finish_later(peer, len, done_as);
            }
            // A link says once that a peer is not there, and tries to reach it again when it is asked again.
            Err(Refused::Gone(why)) => self.net.peer(peer).refused = Some(why),
            Err(Refused::Busy | Refused::Fault) => {}
        }
        sent.is_ok()
    }

    /// The peer of an operation, if it may be started now.
    pub(in crate::endpoint) fn gate(
        &mut self,
        core: &Core,
        to: FiAddr,
        flags: OpFlags,
    ) -> Result<PeerId, Error> {
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

    /// What holds of an operation that is posted, and that it was.
    pub(in crate::endpoint) fn when(&mut self, peer: PeerId, flags: OpFlags, len: usize) -> When {
        let mut when = When::empty();
        when.set(When::INJECT, flags.contains(OpFlags::INJECT));
        when.set(When::DELIVERY, flags.contains(OpFlags::DELIVERY));
        when.set(When::IN_A_ROW, self.adapt.is_in_a_row());
        let state = self.net.peer(peer);
        when.set(When::PAUSED, state.flow.is_paused());
        when.set(When::BEHIND_UNACKED, state.answers.is_behind_unacked());
        when.set(When::HELPED, state.hints.helps());
        let is_large = len > state.flow.limits().eager;
        if is_large && !when.contains(When::INJECT) && self.is_offered(peer) {
            when.insert(When::PAUSED);
        }
        when
    }

    /// Something large is begun: whether the peer has asked that it be offered.
    #[inline(never)]
    fn is_offered(&mut self, peer: PeerId) -> bool {
        self.adapt.note_large(peer);
        self.net.peer(peer).flow.takes_long_offer()
    }

    /// Sends the frame of a request that the peer will answer.
    pub(in crate::endpoint) fn launch(
        &mut self,
        mut out: Out,
        head: impl FnOnce(u64, &mut Header),
        body: &[Span],
        len: usize,
    ) -> Result<(), Error> {
        let (peer, large, offered) = (out.peer, out.large, out.offered);
        self.net.link.hint(Hint::ReceiveFrom(None));
        let state = self.net.peer(peer);
        out.seq = state.answers.next_seq();
        let name = self.requests.pool.insert(Request::Out(out));
        let mut header = Header::new();
        head(name, &mut header);
        if let Err(why) = self.net.link.send(peer, &header, body, 0, len) {
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
                Plan::ByHandles if !self.handles().export_or_none(peer, op.iov, Way::Get)? => {
                    choice.tried |= Tried::HANDLES
                }
                Plan::ByHandles | Plan::Rendezvous => {
                    let sent = self.send_rts(peer, op.iov, flags, done_as, plan == Plan::ByHandles);
                    return sent.inspect_err(|_| self.handles().take_handles_back(peer, op.iov));
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
        let sent = self.net.link.send(peer, zerocopy::IntoBytes::as_bytes(&head), op.iov, 0, len)?;
        self.adapt.note_sent(len);
        self.net.meter(peer, Side::Ours, How::Eager, len);
        match sent {
            Sent::Kept => self.ends().finish_later(peer, len, done_as),
            Sent::Done => self.bind.finish(core, &done_as, len, None),
        }
        Ok(())
    }

    /// Offers an injected message to a peer that is short of room, or whose frames do not hold it: its bytes
    /// are kept here.
    fn offer_kept(&mut self, peer: PeerId, op: &Send<'_>, flags: Flags, done_as: Done) -> Result<(), Error> {
        let bytes = copied(op.iov)?;
        let name = self.offer(Out::new(peer, Spans::NONE, bytes.len(), done_as), op, flags)?;
        self.requests.injected.keep(name, bytes);
        Ok(())
    }

    /// Announces a message to the peer (`Rts`). Its bytes stay here until the peer has a buffer for them.
    fn send_rts(
        &mut self,
        peer: PeerId,
        iov: &[Span],
        mut flags: Flags,
        done_as: Done,
        handles: bool,
    ) -> Result<(), Error> {
        let (segs, direct) = segments(iov)?;
        flags.set(Flags::DIRECT, direct && !handles && self.net.peer(peer).flow.limits().allows(Reach::Cpu));
        flags.set(Flags::HANDLES, handles);
        let len = total(iov);
        let header = |req: u64, h: &mut Header| {
            push(h, &Head::new(WireOp::Rts, flags, segs.len() as u16, done_as.tag, done_as.data));
            push(h, &Offer { req: req.into(), len: (len as u64).into() });
            push(h, &segs[..]);
        };
        let out = Out { offered: Cut::is_worth(len), ..Out::new(peer, iov.into(), len, done_as) };
        self.launch(out, header, &[], 0)
    }

    /// Offers a message whose bytes the peer has to ask for: it does not learn where they are.
    pub(in crate::endpoint) fn offer(&mut self, out: Out, op: &Send<'_>, flags: Flags) -> Result<u64, Error> {
        let (tag, data, len) = (op.tag.unwrap_or(0), op.data.unwrap_or(0), out.len as u64);
        let mut name = 0;
        let header = |req: u64, h: &mut Header| {
            name = req;
            let seg = Seg { addr: 0.into(), len: len.into() };
            push(h, &Head::new(WireOp::Rts, flags, 1, tag, data));
            push(h, &Offer { req: req.into(), len: seg.len });
            push(h, &seg);
        };
        self.launch(out, header, &[], 0)?;
        Ok(name)
    }

    /// Injects a message that is not longer than any frame.
    fn inject_from_device(
        &mut self,
        peer: PeerId,
        op: &Send<'_>,
        flags: Flags,
        done_as: Done,
    ) -> Result<(), Error> {
        let len = hmem::total(op.iov);
        let out = Out { injected: true, ..Out::new(peer, op.iov.into(), len, done_as) };
        let name = self.offer(out, op, flags)?;
        self.requests.injected.set_leaving(peer, name);
        Ok(())
    }

    /// Whether a message that only goes inside a frame one way had better be offered: the peer has much to
    /// take in already, or it is one of many that this side sends to at once, and it sends here, too
    /// (`answers`). Offers take little room, so that a program goes on whose peer is elsewhere; and a message
    /// that is offered is copied once, where both sides have several to copy.
    fn is_behind(&mut self, peer: PeerId, len: usize, answers: bool) -> bool {
        let limits = self.net.peer(peer).flow.limits();
        len > limits.in_a_row
            && len <= limits.one_way
            && (answers && self.adapt.goes_to_many() || !self.net.has_room_to_spare(peer, len))
    }

    /// Whether a completion or a counter says when the operation is done.
    pub(in crate::endpoint) fn is_watched(&self, cntr: Option<CntrId>, flags: OpFlags, tally: Tally) -> bool {
        flags.contains(OpFlags::COMPLETION) || is_counted(cntr, tally)
    }

    pub(crate) fn send(&mut self, core: &mut Core, op: &Send<'_>, tally: Tally) -> Result<(), Error> {
        let peer = self.gate(core, op.to, op.flags)?;
        if let Some(why) = self.net.peer(peer).refused.take() {
            // Of one that has a channel, another process's or one that ends, the link knows more.
            if self.net.link.channel(peer) == Channel::None {
                return Err(why.into());
            }
        }
        let len = total(op.iov);
        let (mut flags, mut what) = (Flags::empty(), What::SEND | What::MSG);
        if op.tag.is_some() {
            (flags, what) = (Flags::TAGGED, What::SEND | What::TAGGED);
        }
        flags.set(Flags::CQ_DATA, op.data.is_some());
        if op.flags.contains(OpFlags::PART) {
            (flags, what) = (flags | Flags::COLLECTIVE, what | What::PART);
        }
        let (tag, data) = (op.tag.unwrap_or(0), op.data.unwrap_or(0));
        let report = op.flags.intersects(OpFlags::COMPLETION | OpFlags::PART);
        let done_as = Done { ctx: op.ctx, what, report, tag, data, tally };
        let mut when = self.when(peer, op.flags, len);
        when.set(When::BOTH_WAYS, self.bind.has_receives(core));
        let state = self.net.peer(peer);
        let answers = !state.hints.is_unanswered();
        when.set(When::IN_A_ROW, when.contains(When::IN_A_ROW) | !answers);
        let is_large = len > state.flow.limits().eager;
        if is_large {
            state.hints.set_unanswered(true);
            when.set(When::BEHIND, self.is_behind(peer, len, answers));
        }
        self.send_as_chosen(core, peer, op, flags, done_as, when)
    }
}
