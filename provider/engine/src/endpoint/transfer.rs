//! Payloads that do not travel with the frame that tells of them.

use hmem::total;
use wire::{Flags, Head, Op as WireOp, Seg, Status};
use zerocopy::IntoBytes;

use super::Endpoint;
use crate::core::on_device;
use crate::core::{Core, Reached, Segs, Spans, unmoved};
use crate::endpoint::device::staging::Source;
use crate::endpoint::malformed::{Fields, Handled, Malformed, parse_segs, request_of};
use crate::endpoint::parts::quota::OWED_MUCH;
use crate::endpoint::parts::request::{In, MatchedRecv, NO_REQUEST, Request, Serve, Then, Unbegun};
use crate::proto::{self, Cut, Memory, Plan, Reach, Role, Tried, When, choose};
use crate::types::*;
use link_api::{Direct, Frame, Grant, How, PeerId, RmaLink, Side};

/// Least bytes of a frame that a device copies: in shorter ones it is the start of a copy that takes long.
const PIPELINED: usize = 256 << 10;
/// Streams that get a turn in one call of progress.
const STREAMS: usize = 64;

impl<L: RmaLink> Endpoint<L> {
    /// Gets the bytes of a message to where it lands.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn fetch(
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
    pub(super) fn fetch_unbegun(&mut self, core: &mut Core) -> usize {
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
    pub(super) fn fetch_into(
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
            // It would take effect late, and be overtaken by the operations behind it.
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
                Plan::Nothing => return self.fetched(core, peer, req, Status::Ok, len, then),
                Plan::Cooperative(cut) => {
                    match self.coop_fetch(core, peer, req, segs, &iov, len, cut, then) {
                        None => return,
                        Some(back) => (back, Tried::COOPERATIVE),
                    }
                }
                Plan::InCall => {
                    let got = self.net.link.get(peer, &Direct::new(Grant::Request(req), segs, &iov, want));
                    match self.net.moved(peer, got) {
                        Some(Status::Ok) => {
                            self.net.meter(peer, Side::Theirs, How::Direct, len);
                            return self.fetched(core, peer, req, Status::Ok, len, then);
                        }
                        Some(status) => {
                            if then.is_in_order() {
                                self.break_order(peer, req);
                            }
                            return self.fetched(core, peer, req, status, 0, then);
                        }
                        None => (then, Tried::IN_CALL),
                    }
                }
                Plan::InProgress => {
                    let request = In::new(peer, iov, len, want, req, then);
                    let name = self.requests.pool.insert(Request::In(request));
                    return self.requests.queues.add_unbegun(Unbegun { name, segs: Segs::new(segs), direct });
                }
                Plan::Invite => match self.invite(segs, In::new(peer, iov.clone(), len, want, req, then)) {
                    None => return,
                    Some(back) => (back.then, Tried::INVITE),
                },
                Plan::ByHandles => {
                    match self.start_get(segs, In::new(peer, iov.clone(), len, want, req, then)) {
                        None => return,
                        Some(back) => (back.then, Tried::HANDLES),
                    }
                }
                _ => {
                    let name = self.begin_in(In::new(peer, iov, len, want, req, then));
                    return self.send_cts(name, !one_by_one, plan == Plan::Bounce);
                }
            };
            then = tried.0;
            choice.tried |= tried.1;
        }
    }

    /// Begins to take bytes in that come later.
    pub(super) fn begin_in(&mut self, request: In) -> u64 {
        let (peer, in_order) = (request.peer, request.then.is_in_order());
        let name = self.requests.pool.insert(Request::In(request));
        if in_order {
            self.keep_in_order(peer, name);
        }
        name
    }

    /// Begins to send bytes that were asked for, which leave later.
    pub(super) fn begin_serve(&mut self, request: Serve) -> u64 {
        let (peer, in_order) = (request.peer, request.in_order);
        let name = self.requests.pool.insert(Request::Serve(request));
        if in_order {
            self.keep_in_order(peer, name);
        }
        name
    }

    /// What holds of bytes to be taken in from a peer.
    fn when_fetching(&mut self, peer: PeerId, len: usize, then: &Then) -> When {
        let mut when = self.net.peer(peer).when();
        let is_message = matches!(then, Then::Recv(_));
        if is_message && Cut::is_worth(len) {
            self.adapt.note_source(peer);
            when.set(When::FROM_MANY, self.adapt.comes_from_many());
        }
        let has_more = self.net.link.has_frames_of(peer);
        let delegate =
            has_more && when.contains(When::HELPED) && Cut::is_delegable(len) && self.net.may_delegate(peer);
        when.set(When::DELEGATE, delegate);
        // Writes take effect in order, which those that others make do not.
        let invite = is_message
            && (has_more || self.requests.queues.has_flights())
            && self.net.peer(peer).hints.can_put();
        when.set(When::INVITE, invite);
        when.set(When::BOTH_WAYS, self.adapt.are_both_ways());
        when
    }

    /// All bytes are here, or none will be.
    pub(super) fn fetched(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        req: u64,
        status: Status,
        len: usize,
        then: Then,
    ) {
        if req != NO_REQUEST {
            self.net.fin(peer, req, status, len);
        }
        if Cut::is_worth(len) {
            self.adapt.note_received();
        }
        match then {
            Then::Recv(matched) => {
                let err = self.net.failure(peer, status);
                self.bind.complete_recv(core, matched, len, err);
            }
            Then::Write { data, cntrs, .. } => self.written(core, peer, status, What::RMA, len, data, cntrs),
        }
    }

    pub(super) fn on_cts(
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
        if self.requests.injected.has_kept() && self.give_kept(peer, name, head.data.get(), want).is_some() {
            return Ok(());
        }
        if self.asks_late(peer, name, head.data.get()) {
            return Ok(());
        }
        if self.requests.is_withdrawn(peer, name) {
            self.net.fin(peer, head.data.get(), Status::Discarded, 0);
            return Ok(());
        }
        if self.requests.is_lent(peer, name) {
            return self.serve_in_frames(name, head.data.get(), want);
        }
        // A read whose registration was closed, of which its initiator is being told.
        if self.requests.is_past(&self.net.link, peer, name) {
            return Ok(());
        }
        self.requests.accept_cts(peer, name, head.data.get(), want)?;
        self.net.peer(peer).hints.note_frames();
        self.net.peer(peer).hints.note_on_device(segs.first().copied());
        if segs.is_empty() || !self.requests.start_put(&mut self.net.link, name, &segs) {
            if segs.is_empty() && flags.contains(Flags::HANDLES) {
                self.begin_bounce(peer, name);
            }
            self.requests.queues.add_stream(name);
        }
        Ok(())
    }

    /// Answers a read.
    pub(super) fn serve(
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
                    let put =
                        self.net.link.put(peer, &Direct::new(Grant::Request(req), segs, &serve.iov, len));
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
                Plan::ByHandles => match self.start_put_read(segs, serve) {
                    None => return,
                    Some(back) => {
                        serve = back;
                        choice.tried |= Tried::HANDLES;
                    }
                },
                Plan::Lend => match self.lend(serve) {
                    None => return,
                    Some(back) => {
                        serve = back;
                        choice.tried |= Tried::HANDLES;
                    }
                },
                Plan::Eager => return self.serve_in_one(core, &serve),
                _ => {
                    let name = self.begin_serve(serve);
                    self.requests.queues.add_stream_first(name);
                    self.stream_one(core, name);
                    return;
                }
            }
        }
    }

    /// Answers a read in one frame, as the memory is now.
    fn serve_in_one(&mut self, core: &mut Core, serve: &Serve) {
        let (peer, req) = (serve.peer, serve.req);
        let head = Head::new(WireOp::Data, Flags::empty(), 0, req, 0);
        if self.net.send_or_queue_body(peer, head.as_bytes(), &serve.iov, serve.len) {
            return self.bind.was_read(core, serve.cntrs.clone());
        }
        let status = unmoved(&serve.iov);
        self.net.warn_of(peer, status);
        self.net.fin(peer, req, status, 0);
    }

    /// Sends on what peers asked for in frames.
    pub(super) fn stream(&mut self, core: &mut Core) -> usize {
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
            return self.bounce_one(name);
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
        let turn = if on_device(&iov) {
            // So that one device copies into one frame while the other copies out of the one before.
            let most = most.min((most / 3).max(PIPELINED));
            let staged = self.stream_staged(name, (peer, theirs), &iov, done, want, most);
            staged.unwrap_or_else(|| self.net.stream_directly((peer, theirs), &iov, done, want, most))
        } else {
            self.net.stream_directly((peer, theirs), &iov, done, want, most)
        };
        let Ok((done, n)) = turn else {
            self.stream_failed(name);
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

    pub(super) fn on_data(&mut self, core: &mut Core, frame: &Frame, head: &Head) -> Handled {
        let (peer, name) = (frame.from, head.tag.get());
        let len = frame.len - Head::LEN;
        let off = usize::try_from(head.data.get()).map_err(|_| Malformed::Unfit)?;
        if self.requests.is_in_flight(name) {
            return Err(Malformed::Unfit);
        }
        let (mut none, mut is_large) = (None, false);
        if self.requests.is_past(&self.net.link, peer, name) {
            return Ok(());
        }
        let (iov, want, got, spoilt) = match request_of(&mut self.requests.pool, peer, name)? {
            Request::In(i) if i.coop.is_none() => {
                // What came, and was answered, by way of bounce buffers ends where one of them was not to be
                // had; the rest comes so.
                if let Some(at) = i.broken.take() {
                    i.got = at;
                }
                i.bounces = false;
                (&i.iov, i.want, &mut i.got, &mut i.failed)
            }
            Request::Out(o) if o.coop.is_none() && o.done_as.what.contains(What::RMA | What::READ) => {
                is_large = o.large;
                (&o.iov, o.len, &mut o.done, &mut none)
            }
            _ => return Err(Malformed::Unfit),
        };
        // Frames come in order, so anything else is a peer's invention.
        if off != *got || len > want - *got || len == 0 {
            return Err(Malformed::Unfit);
        }
        *got += len;
        let came = if spoilt.is_some() {
            true
        } else if on_device(iov) {
            let iov = iov.clone();
            self.land(Source::Frame(frame, Head::LEN), name, &iov, off, len)
        } else {
            self.net.link.copy_out(frame, Head::LEN, iov, off, len) == len
        };
        if !came {
            self.requests.spoil(name);
        }
        if is_large {
            self.net.peer(peer).hints.note_frames();
        }
        // What failed here for a read is over; a peer that asked is told when it has sent all.
        self.all_came(core, name, !came);
        Ok(())
    }
}
