//! Payload that arrives: in frames, by way of a device, or as the link puts it into place while the rest of
//! its frame is under way ([`link_api::FrameLink::land`]).

use wire::{Flags, Head, Op as WireOp, Seg, Status};

use crate::core::{Core, Spans, on_device};
use crate::endpoint::device::staging::Source;
use crate::endpoint::malformed::{Fields, Handled, Malformed, request_of};
use crate::endpoint::parts::request::{In, MatchedRecv, NO_REQUEST, Out, Request, Then};
use crate::endpoint::transfer::Transfers;
use crate::types::*;
use link_api::{Channel, Direct, Event, Frame, Grant, How, LandAt, Landing, PeerId, RmaLink, Side, Way};

/// Requests beside which frames of a rendezvous land as they come. Where more are under way, the sender is
/// ahead anyway, and whole frames take fewer calls.
const FEW: usize = 2;
/// Longest read whose frames land as they come. Of a longer one the target is the slower side, and whole
/// frames take fewer calls.
const LANDS: usize = 1 << 20;

/// Where the payload of a frame belongs.
struct Place {
    /// The request that it is for, and its memory.
    name: u64,
    iov: Spans,
    /// Its first byte in the frame, and in the request's memory.
    off: usize,
    doff: usize,
    len: usize,
}

impl<L: RmaLink> Transfers<'_, L> {
    pub(in crate::endpoint) fn on_data(&mut self, core: &mut Core, frame: &Frame, head: &Head) -> Handled {
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
            Request::Out(o) if o.is_read_in_frames() => {
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
            self.requests.staging.land(
                self.net,
                &mut self.requests.queues,
                Source::Frame(frame, Head::LEN),
                name,
                (&iov, off),
                len,
            )
        } else {
            self.net.link.copy_last(frame, Head::LEN, iov, off, len) == len
        };
        if is_large {
            self.net.peer(peer).hints.note_frames();
        }
        // What failed here for a read is over; a peer that asked gets the failure when it has sent all.
        self.payload_arrived(core, name, came);
        Ok(())
    }

    /// Puts a message that came inside its frame into its buffer. In a device's memory it is complete when it
    /// is there.
    pub(in crate::endpoint) fn deliver(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        ack: Option<u64>,
        matched: MatchedRecv,
        len: usize,
        source: Source<'_>,
    ) {
        let want = len.min(matched.room);
        if want == 0 || !on_device(&matched.iov) {
            let ok = self.net.copy_from(source, 0, &matched.iov, 0, want) == want;
            if let Some(req) = ack {
                self.net.fin(peer, req, if ok { Status::Ok } else { Status::Io }, len);
            }
            return self.bind.complete_recv(core, matched, len, (!ok).then_some(Error::Io));
        }
        let iov = matched.iov.clone();
        let mut request =
            In::new(peer, iov.clone(), len, want, ack.unwrap_or(NO_REQUEST), Then::Recv(matched));
        request.got = want;
        let name = self.requests.pool.insert(Request::In(request));
        let ok =
            self.requests.staging.land(self.net, &mut self.requests.queues, source, name, (&iov, 0), want);
        self.payload_arrived(core, name, ok);
    }

    /// Looks which copies to a device's memory are over; those of one request end in order, and what they
    /// write to the host's memory comes after all that is before it in the request.
    pub(in crate::endpoint) fn check_landings(&mut self, core: &mut Core, name: u64) -> usize {
        let (mut n, mut busy, mut failed) = (0, false, false);
        self.requests.staging.landings.retain_mut(|l| {
            if busy || l.name != name {
                return true;
            }
            // What is behind bytes that are not there does not take effect.
            if failed {
                n += 1;
                return false;
            }
            match l.transfer.poll() {
                None => busy = true,
                Some(ok) => {
                    failed |= !ok;
                    n += 1;
                }
            }
            busy
        });
        if failed {
            log::warn!("{}: a device's memory cannot be written", self.net.link.addr());
            self.requests.spoil(name);
        }
        if !self.requests.staging.is_landing(name) || failed {
            self.ends().all_came(core, name, failed);
        }
        n
    }

    #[inline(never)]
    pub(in crate::endpoint) fn begun(&mut self, core: &mut Core, frame: Frame) {
        self.net.peer(frame.from).has_sent(frame.len);
        let place = if self.net.metered.is_on() { None } else { self.place_begun(core, &frame) };
        let Some(Place { name, iov, off, doff, len }) = place else {
            self.net.link.land(frame, None);
            return;
        };
        match self.net.link.land(frame, Some(LandAt { off, dst: &iov, doff, len })) {
            Landing::Over(ok) => self.payload_arrived(core, name, ok),
            Landing::InFlight(op) => self.requests.queues.add_landing(op, name),
            Landing::Left => {}
        }
    }

    /// The place of a frame's payload, if it is known by the front. What makes no sense is reported when all
    /// is there.
    fn place_begun(&mut self, core: &mut Core, frame: &Frame) -> Option<Place> {
        let bytes: [u8; Head::LEN] = self.net.link.peek(frame)?;
        let head: Head = zerocopy::transmute!(bytes);
        let flags = head.flags()?;
        match head.op()? {
            WireOp::Eager if !flags.contains(Flags::COLLECTIVE) => {
                self.place_eager(core, frame, &head, flags)
            }
            WireOp::Data => self.place_data(frame, &head),
            _ => None,
        }
    }

    fn place_eager(&mut self, core: &mut Core, frame: &Frame, head: &Head, flags: Flags) -> Option<Place> {
        let (off, ack) = self.net.ack_of(frame, flags)?;
        let len = frame.len - off;
        let meta = self.net.meta(frame.from, head, flags, len);
        let matcher = core.rxs.get_mut(self.bind.rx().at())?.matcher(meta.tagged);
        let at = matcher.find_posted(meta.src, meta.tag)?;
        // A device's memory is not for the kernel to write.
        if on_device(&matcher.found_posted(at)?.iov) {
            return None;
        }
        let matched = self.bind.matched(core, &meta)?;
        let (iov, want) = (matched.iov.clone(), len.min(matched.room));
        let (req, then) = (ack.unwrap_or(NO_REQUEST), Then::Recv(matched));
        let mut request = In::new(meta.peer, iov.clone(), len, want, req, then);
        request.got = want;
        let name = self.requests.pool.insert(Request::In(request));
        Some(Place { name, iov, off, doff: 0, len: want })
    }

    fn place_data(&mut self, frame: &Frame, head: &Head) -> Option<Place> {
        let name = head.tag.get();
        let (len, doff) = (frame.len - Head::LEN, usize::try_from(head.data.get()).ok()?);
        let (few, mut is_large) = (self.requests.pool.len() <= FEW, false);
        if self.requests.is_in_flight(name) || self.requests.is_past(&self.net.link, frame.from, name) {
            return None;
        }
        let (iov, want, got) = match self.requests.pool.get_mut(name)? {
            Request::In(i) if few && i.peer == frame.from && i.coop.is_none() && i.failed.is_none() => {
                (&i.iov, i.want, &mut i.got)
            }
            Request::Out(o) if o.peer == frame.from && o.len <= LANDS && o.is_read_in_frames() => {
                is_large = o.large;
                (&o.iov, o.len, &mut o.done)
            }
            _ => return None,
        };
        if doff != *got || len > want - *got || len == 0 || on_device(iov) {
            return None;
        }
        *got += len;
        let iov = iov.clone();
        if is_large {
            self.net.peer(frame.from).hints.note_frames();
        }
        Some(Place { name, iov, off: Head::LEN, doff, len })
    }

    /// The payload of a frame is where it belongs, or on its way to a device's memory; or a part of it never
    /// will be there.
    fn payload_arrived(&mut self, core: &mut Core, name: u64, ok: bool) {
        if !ok {
            self.requests.spoil(name);
        }
        self.ends().all_came(core, name, !ok);
    }

    /// Such a frame is over.
    fn landing_done(&mut self, core: &mut Core, name: u64, ok: bool) {
        let Some(peer) = self.requests.pool.get_mut(name).map(|request| request.peer()) else { return };
        // With the peer's end comes that of the request.
        if ok || self.net.link.channel(peer) != Channel::Ended {
            self.payload_arrived(core, name, ok);
        }
    }

    /// A copy is over. One that failed is made up for by frames.
    pub(in crate::endpoint) fn operation_over(&mut self, core: &mut Core, event: &Event) {
        let (copy, ok, cut) = match *event {
            Event::Done(copy, ok) => (copy, ok, false),
            Event::Cut(copy) => (copy, false, true),
            _ => return,
        };
        let Some((name, lands)) = self.requests.queues.end_flight(copy) else { return };
        if lands {
            return self.landing_done(core, name, ok);
        }
        if let Some(off) = self.requests.staging.bounces.taken(copy) {
            return self.bounce_taken(core, name, off, ok);
        }
        match self.requests.pool.get_mut(name) {
            Some(Request::In(_)) if !ok => self.handles().send_cts(name, false, false),
            Some(Request::In(_)) => {
                if let Some(Request::In(i)) = self.requests.pool.remove(name) {
                    self.net.meter(i.peer, Side::Theirs, How::Device, i.len);
                    self.ends().fetched(core, i.peer, i.req, Status::Ok, i.len, i.then);
                }
            }
            Some(Request::Out(Out { one_sided: Some(_), .. })) => {
                self.ends().one_sided_is_over(core, name, (ok, cut))
            }
            Some(Request::Out(out)) if out.done_as.what.contains(What::READ) => {
                self.ends().read_is_over(core, name, ok);
            }
            Some(Request::Out(out)) => match out.asked {
                Some((theirs, want)) if ok => {
                    let peer = out.peer;
                    self.net.fin(peer, theirs, Status::Ok, want);
                }
                _ => self.requests.queues.add_stream(name),
            },
            Some(Request::Serve(_)) if !ok => self.requests.queues.add_stream(name),
            Some(Request::Serve(_)) => {
                if let Some(Request::Serve(s)) = self.requests.pool.remove(name) {
                    self.bind.was_read(core, s.cntrs);
                    self.net.fin(s.peer, s.req, Status::Ok, s.len);
                }
            }
            // No device has a part in it.
            Some(Request::CoopHelp(_) | Request::Withdrawn(_) | Request::Flush(..)) | None => {}
        }
    }

    /// The taker's side of a put, or of a stream that failed: a `Fin` for what was requested.
    fn on_fin_in(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Handled {
        let name = head.tag.get();
        let status = Status::from_u16(head.aux.get());
        match self.requests.named(peer, name)? {
            Request::In(i) if i.placed || status != Status::Ok => {}
            _ => return Err(Malformed::Unfit),
        }
        if self.requests.is_in_flight(name) {
            return Err(Malformed::Unfit);
        }
        self.requests.end_stream(name);
        self.requests.end_invitation(&mut self.net.link, name);
        if status == Status::Unsupported && self.handles().take_back_invitation(name) {
            self.net.peer(peer).hints.note_no_put();
            return Ok(());
        }
        let Some(Request::In(i)) = self.requests.pool.remove(name) else { return Err(Malformed::Unfit) };
        let (status, len) = match i.failed.unwrap_or(status) {
            Status::Ok => {
                self.net.meter(peer, Side::Theirs, How::Device, i.len);
                (Status::Ok, i.len)
            }
            status @ (Status::Discarded | Status::BadKey) => (status, 0),
            _ => (Status::Io, 0),
        };
        self.ends().fetched(core, peer, i.req, status, len, i.then);
        Ok(())
    }

    pub(in crate::endpoint) fn on_fin(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Handled {
        let name = head.tag.get();
        match self.requests.pool.get_mut(name) {
            Some(&mut Request::Out(Out { whole: true, peer: to, seq, len, done_as, .. }))
                if to == peer && !self.net.metered.is_on() =>
            {
                self.requests.pool.end(name);
                let err = crate::core::failure(Status::from_u16(head.aux.get()));
                if done_as.what.contains(What::WRITE) {
                    self.ends().end_before(core, peer, seq);
                }
                self.net.peer(peer).answers.over(seq, false);
                self.bind.finish(core, &done_as, len, err);
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
            &mut Request::Flush(_, seq) => {
                self.requests.pool.end(name);
                self.ends().end_before(core, peer, seq);
                return Ok(());
            }
            Request::Serve(s) if s.lent => {
                self.ends().was_got(core, name, Status::from_u16(head.aux.get()));
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
        if err == Some(Error::Cancelled) && self.requests.queues.is_overdue(name) {
            err = Some(Error::Overdue);
        }
        if out.large && out.asked.is_none() && err.is_none() {
            self.net.peer(peer).hints.note_fetched();
        }
        if err.is_none() && out.done_as.what.contains(What::READ) && head.data.get() != out.len as u64 {
            err = Some(Error::Io);
        }
        if err.is_some() && out.done_as.what.contains(What::RMA | What::WRITE) {
            self.rma_order().has_heard_of_failure(peer, name);
        }
        if out.whole && out.done_as.what.contains(What::WRITE) {
            self.ends().end_before(core, peer, out.seq);
        }
        self.ends().finish_out(core, &out, err);
        Ok(())
    }

    /// A part of what was requested is in a buffer of the peer's.
    pub(in crate::endpoint) fn on_bounce(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let seg: Seg = fields.take()?;
        let (name, off) = (head.tag.get(), head.data.get());
        let (len, off) = match (usize::try_from(seg.len.get()), usize::try_from(off)) {
            (Ok(len), Ok(off)) if head.aux.get() == 1 => (len, off),
            _ => return Err(Malformed::Unfit),
        };
        if self.requests.is_past(&self.net.link, peer, name) {
            return Ok(());
        }
        let too_many = self.requests.staging.bounces.are_too_many(peer);
        let Request::In(i) = self.requests.named(peer, name)? else { return Err(Malformed::Unfit) };
        // As `Data` they come in order.
        if too_many || !i.bounces || off != i.got || len > i.want - i.got || len == 0 {
            return Err(Malformed::Unfit);
        }
        i.got += len;
        let (req, is_kept, is_refused) = (i.req, i.failed.is_none(), i.broken.is_some());
        if is_refused {
            self.net.bounce_done(peer, req, off, false);
            return Ok(());
        }
        if is_kept {
            let local = hmem::parts(&i.iov, off, len);
            let access = Direct::new(Grant::Request(req), std::slice::from_ref(&seg), &local, len);
            match self.net.link.start(Way::Get, peer, &access) {
                Ok(copy) => {
                    self.requests.queues.add_flight(copy, name);
                    self.requests.staging.bounces.take(copy, peer, off);
                    self.net.peer(peer).hints.note_on_device(Some(seg));
                }
                Err(_) => {
                    self.requests.refuse_bounce(name, off);
                    self.net.bounce_done(peer, req, off, false);
                }
            }
            return Ok(());
        }
        // Memory that was taken back gets nothing more.
        self.net.bounce_done(peer, req, off, true);
        self.ends().all_came(core, name, false);
        Ok(())
    }

    /// A copy from a peer's buffer is over.
    fn bounce_taken(&mut self, core: &mut Core, name: u64, off: usize, ok: bool) {
        if !ok {
            self.requests.refuse_bounce(name, off);
        }
        let in_flight = self.requests.is_in_flight(name);
        let Some(Request::In(In { peer, req, got, want, broken, .. })) = self.requests.pool.get_mut(name)
        else {
            return;
        };
        // The answer to the whole request says the same of its parts.
        if got == want && broken.is_none() && !in_flight {
            return self.ends().all_came(core, name, false);
        }
        let (peer, req) = (*peer, *req);
        self.net.bounce_done(peer, req, off, ok);
    }

    /// Into the buffer that was found for it while they were on their way.
    pub(in crate::endpoint) fn take_body(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        name: u64,
        len: usize,
    ) -> Handled {
        if self.requests.is_in_flight(name) {
            return Err(Malformed::Unfit);
        }
        let Some(Request::In(i)) = self.requests.pool.get_mut(name) else { return Err(Malformed::NoRequest) };
        let is_apt = i.len == len && i.got == 0 && i.coop.is_none() && i.invited.is_none();
        if !is_apt || !matches!(i.then, Then::Recv(_)) {
            return Err(Malformed::Unfit);
        }
        let (iov, want) = (i.iov.clone(), i.want);
        i.got = want;
        let ok = if on_device(&iov) {
            self.requests.staging.land(
                self.net,
                &mut self.requests.queues,
                Source::Frame(frame, Head::LEN),
                name,
                (&iov, 0),
                want,
            )
        } else {
            self.net.link.copy_last(frame, Head::LEN, &iov, 0, want) == want
        };
        if !ok {
            self.requests.spoil(name);
        }
        self.ends().all_came(core, name, !ok);
        Ok(())
    }
}
