//! Payloads that do not travel with the frame that announces them.

use hmem::total;
use wire::{Flags, Head, Seg, Status};

use crate::core::{Core, Reached, Segs, Spans, on_device};
use crate::endpoint::coop::CoopCopies;
use crate::endpoint::device::bounce::Bounce;
use crate::endpoint::device::handles::Handles;
use crate::endpoint::device::inject::Inject;
use crate::endpoint::ends::Ends;
use crate::endpoint::malformed::{Fields, Handled, parse_segs};
use crate::endpoint::net::Net;
use crate::endpoint::parts::adapt::Adapt;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::quota::OWED_MUCH;
use crate::endpoint::parts::request::{In, MatchedRecv, Request, Serve, Then, Unbegun};
use crate::endpoint::requests::Requests;
use crate::endpoint::rma::order::RmaOrder;
use crate::endpoint::rma::target::Accesses;
use crate::proto::{self, Cut, Memory, Plan, Reach, Role, Tried, When, choose};
use crate::types::*;
use link_api::{Direct, Grant, How, PeerId, RmaLink, Side, Way};

/// Least bytes of a frame that a device copies: in shorter ones it is the start of a copy that takes long.
const PIPELINED: usize = 256 << 10;
/// Streams that get a turn in one call of progress.
const STREAMS: usize = 64;

/// Requests whose payload is fetched, served or sent in frames.
pub(crate) struct Transfers<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
    pub(in crate::endpoint) bind: &'a Bind,
    pub(in crate::endpoint) adapt: &'a mut Adapt,
}

impl<L: RmaLink> Transfers<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn accesses(&mut self) -> Accesses<'_, L> {
        Accesses { net: self.net, bind: self.bind }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn rma_order(&mut self) -> RmaOrder<'_, L> {
        RmaOrder { net: self.net, requests: self.requests }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn handles(&mut self) -> Handles<'_, L> {
        Handles { net: self.net, requests: self.requests }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn bounce(&mut self) -> Bounce<'_, L> {
        Bounce { net: self.net, requests: self.requests }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn inject(&mut self) -> Inject<'_, L> {
        Inject { net: self.net, requests: self.requests }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn ends(&mut self) -> Ends<'_, L> {
        Ends { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn coop(&mut self) -> CoopCopies<'_, L> {
        CoopCopies { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    /// Gets the bytes of a message to where it lands.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::endpoint) fn fetch(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        req: u64,
        segs: &[Seg],
        direct: Reach,
        len: usize,
        matched: MatchedRecv,
        when: When,
    ) {
        let iov = matched.iov.clone();
        self.fetch_into(core, peer, req, segs, direct, iov, len, Then::Recv(matched), when);
    }

    /// Gets the bytes of the first message that was left to progress.
    pub(in crate::endpoint) fn fetch_unbegun(&mut self, core: &mut Core) -> usize {
        let Some(Unbegun { name, segs, direct }) = self.requests.queues.next_unbegun() else { return 0 };
        // It may have failed since.
        let Some(Request::In(In { peer, iov, len, req, then, .. })) = self.requests.pool.remove(name) else {
            return 0;
        };
        self.fetch_into(core, peer, req, segs.all(), direct, iov, len, then, When::empty());
        1
    }

    /// Gets `len` bytes, or as many as `iov` holds, from the peer: directly if that works, else by
    /// asking for frames.
    #[allow(clippy::too_many_arguments)]
    fn fetch_into(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        req: u64,
        segs: &[Seg],
        direct: Reach,
        iov: Spans,
        len: usize,
        then: Then,
        when: When,
    ) {
        let want = len.min(total(&iov));
        let mut when = when | self.when_fetching(peer, want, &then);
        // What is got by handles goes so in any case.
        when.set(When::ONE_DEVICE, direct != Reach::Handles && self.net.is_on_one_device(peer, &iov));
        when.set(When::LASTING, core.lasting || matches!(then, Then::Recv(_)));
        let mut choice = proto::Op::new(Role::Fetch(direct), want, &iov, when);
        if then.is_in_order() {
            // It would take effect late: after operations that were posted behind it.
            choice.tried |= Tried::COOPERATIVE;
        }
        // The last element of a write may stand for those before it: GPI-2's notifications do. Neither two
        // sides nor an adapter would copy them one after another.
        let one_by_one = matches!(then, Then::Write { several: true, .. }) && choice.memory == Memory::Host;
        if one_by_one {
            choice.tried |= Tried::COOPERATIVE | Tried::HANDLES;
        }
        let mut then = then;
        loop {
            let plan = choose(self.net.peer(peer).flow.limits(), &choice);
            let tried = match plan {
                Plan::Nothing => return self.ends().fetched(core, peer, req, Status::Ok, len, then),
                Plan::Cooperative(cut) => {
                    match self.coop().coop_fetch(core, peer, req, segs, &iov, len, cut, then) {
                        None => return,
                        Some(back) => (back, Tried::COOPERATIVE),
                    }
                }
                Plan::InCall => {
                    let got = self.net.link.access(
                        Way::Get,
                        peer,
                        &Direct::new(Grant::Request(req), segs, &iov, want),
                    );
                    match self.net.moved(peer, got) {
                        Some(Status::Ok) => {
                            self.net.meter(peer, Side::Theirs, How::Direct, len);
                            return self.ends().fetched(core, peer, req, Status::Ok, len, then);
                        }
                        Some(status) => {
                            if then.is_in_order() {
                                self.rma_order().break_order(peer, req);
                            }
                            return self.ends().fetched(core, peer, req, status, 0, then);
                        }
                        None => (then, Tried::IN_CALL),
                    }
                }
                Plan::InProgress => {
                    let request = In::new(peer, iov, len, want, req, then);
                    let name = self.requests.pool.insert(Request::In(request));
                    return self.requests.queues.add_unbegun(Unbegun { name, segs: Segs::new(segs), direct });
                }
                Plan::Invite => {
                    match self.handles().invite(segs, In::new(peer, iov.clone(), len, want, req, then)) {
                        None => return,
                        Some(back) => (back.then, Tried::INVITE),
                    }
                }
                Plan::ByHandles => {
                    match self.handles().start_get(segs, In::new(peer, iov.clone(), len, want, req, then)) {
                        None => return,
                        Some(back) => (back.then, Tried::HANDLES),
                    }
                }
                _ => {
                    let name = self.handles().begin_in(In::new(peer, iov, len, want, req, then));
                    return self.handles().send_cts(name, !one_by_one, plan == Plan::Bounce);
                }
            };
            then = tried.0;
            choice.tried |= tried.1;
        }
    }

    /// What holds of bytes to be taken in from a peer.
    fn when_fetching(&mut self, peer: PeerId, len: usize, then: &Then) -> When {
        let mut when = self.net.peer(peer).when();
        let is_message = matches!(then, Then::Recv(_));
        if is_message && Cut::is_worth(len) {
            self.adapt.note_source(peer);
            when.set(When::FROM_MANY, self.adapt.comes_from_many());
        }
        let has_frames = self.net.link.has_frames_of(peer);
        let delegate = has_frames
            && when.contains(When::HELPED)
            && Cut::is_delegable(len)
            && self.net.may_delegate(peer);
        when.set(When::DELEGATE, delegate);
        // Writes take effect in order, which those that others make do not.
        let invite = is_message
            && (has_frames || self.requests.queues.has_flights())
            && self.net.peer(peer).hints.can_put();
        when.set(When::INVITE, invite);
        when.set(When::BOTH_WAYS, self.adapt.are_both_ways());
        when
    }

    /// Answers a read.
    fn serve(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        req: u64,
        segs: &[Seg],
        direct: Reach,
        reached: Reached,
    ) {
        let (iov, len, cntrs) = (Spans::from(&reached.iov[..]), reached.len, reached.cntrs);
        let mut when = When::empty();
        when.set(When::LAGGING, !core.config.rma_order && self.net.peer(peer).flow.owed() >= OWED_MUCH);
        when.set(When::LASTING, core.lasting);
        let mut choice = proto::Op::new(Role::Serve(direct), len, &iov, when);
        let in_order = core.config.rma_order;
        let mut serve =
            Serve { peer, iov, len, done: 0, req, cntrs, mrs: reached.mrs, in_order, lent: false };
        loop {
            match choose(self.net.peer(peer).flow.limits(), &choice) {
                Plan::Nothing => {
                    self.bind.was_read(core, serve.cntrs);
                    return self.net.fin(peer, req, Status::Ok, len);
                }
                Plan::InCall => {
                    let put = self.net.link.access(
                        Way::Put,
                        peer,
                        &Direct::new(Grant::Request(req), segs, &serve.iov, len),
                    );
                    match self.net.moved(peer, put) {
                        Some(Status::Ok) => {
                            self.net.meter(peer, Side::Theirs, How::Direct, len);
                            self.bind.was_read(core, serve.cntrs);
                            return self.net.fin(peer, req, Status::Ok, len);
                        }
                        Some(status) => return self.net.fin(peer, req, status, 0),
                        None => choice.tried |= Tried::IN_CALL,
                    }
                }
                Plan::ByHandles => match self.handles().start_put_read(segs, serve) {
                    None => return,
                    Some(back) => {
                        serve = back;
                        choice.tried |= Tried::HANDLES;
                    }
                },
                Plan::Lend => match self.handles().lend(serve) {
                    None => return,
                    Some(back) => {
                        serve = back;
                        choice.tried |= Tried::HANDLES;
                    }
                },
                Plan::Eager => return self.accesses().serve_in_one(core, &serve),
                _ => {
                    let name = self.handles().begin_serve(serve);
                    self.requests.queues.add_stream_first(name);
                    self.stream_one(core, name);
                    return;
                }
            }
        }
    }

    /// Sends on what peers requested in frames.
    pub(in crate::endpoint) fn stream(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        for _ in 0..self.requests.queues.streams().min(STREAMS) {
            let Some(name) = self.requests.queues.next_stream() else { break };
            n += self.stream_one(core, name);
        }
        n
    }

    fn stream_one(&mut self, core: &mut Core, name: u64) -> usize {
        if self.requests.staging.is_landing(name) {
            return self.check_landings(core, name);
        }
        if self.requests.staging.bounces.has(name) {
            return self.bounce().bounce_one(name);
        }
        let (peer, theirs, iov, want, done) = match self.requests.pool.get_mut(name) {
            Some(Request::Out(o)) => {
                let Some((theirs, want)) = o.asked else { return 0 };
                (o.peer, theirs, o.iov.clone(), want, o.done)
            }
            Some(Request::Serve(s)) => (s.peer, s.req, s.iov.clone(), s.len, s.done),
            _ => {
                self.requests.end_stream(name);
                return 0;
            }
        };
        let most = self.net.peers[peer].flow.limits().max_frame() - Head::LEN;
        let sent = if on_device(&iov) {
            // So that one device copies into one frame while the other copies out of the one before.
            let most = most.min((most / 3).max(PIPELINED));
            let staged = self.requests.staging.stream(self.net, name, (peer, theirs), &iov, done, want, most);
            staged.unwrap_or_else(|| self.net.stream_directly((peer, theirs), &iov, done, want, most))
        } else {
            self.net.stream_directly((peer, theirs), &iov, done, want, most)
        };
        let Ok((done, n)) = sent else {
            self.handles().stream_failed(name);
            return 1;
        };
        match self.requests.pool.get_mut(name) {
            Some(Request::Out(o)) => o.done = done,
            Some(Request::Serve(s)) => s.done = done,
            _ => {}
        }
        if done == want {
            self.requests.end_stream(name);
            if let Some(Request::Serve(Serve { cntrs, .. })) = self.requests.pool.get_mut(name) {
                let cntrs = std::mem::take(cntrs);
                self.requests.pool.remove(name);
                self.bind.was_read(core, cntrs);
            }
        }
        n
    }

    pub(in crate::endpoint) fn on_cts(
        &mut self,
        peer: PeerId,
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(if flags.contains(Flags::HANDLES) { head.aux.get() } else { 0 })?;
        let want = u64::from_le_bytes(fields.take()?);
        let segs = fields.take_segs(n)?;
        let name = head.tag.get();
        if self.requests.injected.has_kept()
            && self.inject().give_kept(peer, name, head.data.get(), want).is_some()
        {
            return Ok(());
        }
        if self.inject().asks_late(peer, name, head.data.get()) {
            return Ok(());
        }
        if self.requests.is_withdrawn(peer, name) {
            self.net.fin(peer, head.data.get(), Status::Discarded, 0);
            return Ok(());
        }
        if self.requests.is_lent(peer, name) {
            return self.handles().serve_in_frames(name, head.data.get(), want);
        }
        // A read whose registration was closed, whose initiator has not got the answer yet.
        if self.requests.is_past(&self.net.link, peer, name) {
            return Ok(());
        }
        self.requests.accept_cts(peer, name, head.data.get(), want)?;
        self.net.peer(peer).hints.note_frames();
        self.net.peer(peer).hints.note_on_device(segs.first().copied());
        if segs.is_empty() || !self.requests.start_put(&mut self.net.link, name, &segs) {
            if segs.is_empty() && flags.contains(Flags::HANDLES) {
                self.bounce().begin_bounce(peer, name);
            }
            self.requests.queues.add_stream(name);
        }
        Ok(())
    }

    pub(in crate::endpoint) fn on_write_rts(
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
        match core.mrs.reach(rma, Access::REMOTE_WRITE) {
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
                self.accesses().written(core, peer, status, What::RMA, 0, None, None::<CntrId>);
                self.net.fin(peer, req, status, 0);
            }
        }
        Ok(())
    }

    pub(in crate::endpoint) fn on_read(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let (rma, segs, there) = fields.take_access(head.aux.get())?;
        let req = head.tag.get();
        match core.mrs.reach(rma, Access::REMOTE_READ) {
            Ok(reached) if reached.len as u64 == there => {
                self.serve(core, peer, req, segs, Reach::of(flags), reached);
            }
            other => {
                let status = other.err().unwrap_or(Status::Malformed);
                // `strait info --try` reads no byte under a key that it makes up, for the answer alone.
                if there > 0 {
                    self.net.complain(peer, format_args!("was refused a read: {status:?}"));
                }
                self.net.fin(peer, req, status, 0);
            }
        }
        Ok(())
    }

    /// A write of a peer's whose memory here was taken back. What is still on its way is thrown away.
    pub(in crate::endpoint) fn end_write(&mut self, core: &mut Core, name: u64) {
        let copying = self.requests.is_in_flight(name);
        let landing = self.requests.staging.is_landing(name);
        self.requests.cancel_operation(&mut self.net.link, name);
        self.requests.end_invitation(&mut self.net.link, name);
        let Some(Request::In(i)) = self.requests.pool.get_mut(name) else { return };
        i.iov = Spans::NONE;
        i.failed = Some(Status::BadKey);
        if copying || (landing && i.got == i.want) {
            // Nothing comes any more.
            if let Some(Request::In(i)) = self.requests.pool.remove(name) {
                self.ends().fetched(core, i.peer, i.req, Status::BadKey, 0, i.then);
            }
        } else if let Some(part) = &mut i.coop {
            // Pieces that the peer has not taken are taken here, and not copied.
            part.copy.give_up();
            self.coop().coop_progress(core);
        }
    }
}
