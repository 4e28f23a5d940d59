//! Payloads that a device or a network adapter moves.
//!
//! The owner of memory announces it to a peer once, in a `Handle` frame: of a device's memory, and of the
//! host's where the link cannot access that in the call ([`link_api::RmaCaps::SYNC`]). From then on a
//! segment's address is enough. The side that can reach both has the bytes moved, in one go: the receiver
//! from the sender's memory, or, asked by a `Cts` that says where to, the sender into the receiver's. Where
//! neither can, the payload comes in frames. Such an operation takes its time, and meanwhile all else goes
//! on.
//!
//! From device to device either side can. The receiver gets a message that comes alone, which takes one
//! frame less. While more are behind it, or copies are in flight, it invites the sender to put it
//! (`Invite`): so both sides call their drivers, which is what takes the time of short copies, and a device
//! writes to another one faster than it reads from it. Not on one device, which the two would have in turns.
//! The receiver gets the message itself if the sender is not there to put it: one of both takes the one
//! piece of a counter ([`RmaLink::pieces_open`]).

use hmem::Span;
use wire::{Flags, Head, Op as WireOp, Pieces, Seg, Status, put};

use crate::core::unmoved;
use crate::endpoint::malformed::{Fields, Handled, parse_segs};
use crate::endpoint::net::Net;
use crate::endpoint::parts::header::{handle_frame, put_cts, put_segs};
use crate::endpoint::parts::request::{In, Invited, Out, Request, Serve};
use crate::endpoint::requests::Requests;
use crate::endpoint::rma::order::RmaOrder;
use crate::proto::Memory;
use link_api::{Devices, Direct, Grant, HandleNote, PeerId, PieceCounter, Refused, RmaLink, Way};

/// Polls for which an invited sender is waited for: what it takes to come to it, if it polls too, and
/// little beside a copy.
const PATIENCE: u16 = 64;

/// Requests whose payload moves by handles, or is requested from the peer.
pub(crate) struct Handles<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
}

impl<L: RmaLink> Handles<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn rma_order(&mut self) -> RmaOrder<'_, L> {
        RmaOrder { net: self.net, requests: self.requests }
    }

    /// Exports for a post. One that fails leaves no handle: its buffer is the application's, which may never
    /// try again, or with another buffer at that place.
    pub(in crate::endpoint) fn export_or_none(
        &mut self,
        peer: PeerId,
        iov: &[Span],
        way: Way,
    ) -> Result<bool, Refused> {
        let exported = self.net.export(peer, iov, way);
        exported.inspect_err(|_| self.take_handles_back(peer, iov))
    }

    /// A post has failed for which handles of this memory may have been sent.
    #[cold]
    pub(in crate::endpoint) fn take_handles_back(&mut self, peer: PeerId, iov: &[Span]) {
        if self.net.peer(peer).flow.limits().is_retiring() {
            self.requests.retire_memory(&mut self.net.link, peer, iov);
        }
    }

    /// As [`Endpoint::export`], for an answer, if that memory is accessed by handles: frames that find no
    /// room are kept.
    fn export_later(&mut self, peer: PeerId, iov: &[Span]) -> bool {
        if !self.net.peer(peer).flow.limits().is_by_handles(Memory::of(iov)) {
            return false;
        }
        let Some(lacking) = self.net.link.export_handles(peer, iov, Way::Put) else { return false };
        for handle in &lacking {
            self.net.send_or_queue(peer, &handle_frame(handle));
            self.net.link.note_handle(peer, HandleNote::Exported(handle));
        }
        true
    }

    /// Begins to take bytes in that come later.
    pub(in crate::endpoint) fn begin_in(&mut self, request: In) -> u64 {
        let (peer, in_order) = (request.peer, request.then.is_in_order());
        let name = self.requests.pool.insert(Request::In(request));
        if in_order {
            self.rma_order().keep_in_order(peer, name);
        }
        name
    }

    /// Begins to send bytes that were requested, which leave later.
    pub(in crate::endpoint) fn begin_serve(&mut self, request: Serve) -> u64 {
        let (peer, in_order) = (request.peer, request.in_order);
        let name = self.requests.pool.insert(Request::Serve(request));
        if in_order {
            self.rma_order().keep_in_order(peer, name);
        }
        name
    }

    /// Gets bytes that the peer has sent handles of. If that cannot be, the request comes back.
    pub(in crate::endpoint) fn start_get(&mut self, segs: &[Seg], request: In) -> Option<In> {
        let (peer, want, iov, theirs) = (request.peer, request.want, request.iov.clone(), request.req);
        let name = self.begin_in(request);
        let access = Direct::new(Grant::Request(theirs), segs, &iov, want);
        if self.requests.start_operation(&mut self.net.link, name, Way::Get, peer, &access).is_ok() {
            return None;
        }
        match self.requests.pool.remove(name)? {
            Request::In(request) => Some(request),
            _ => None,
        }
    }

    /// Invites the sender of one of many messages to put it into place, where both sides are devices'
    /// memory. If that is not to be, the request comes back.
    pub(in crate::endpoint) fn invite(&mut self, segs: &[Seg], mut request: In) -> Option<In> {
        let (peer, want, req) = (request.peer, request.want, request.req);
        let iov = request.iov.clone();
        if self.net.link.devices(peer, segs, &iov) != Devices::Two || !self.net.has_room_for_offers(peer) {
            return Some(request);
        }
        let Some(share) = self.net.link.pieces_open(peer) else { return Some(request) };
        if !self.export_later(peer, &iov) {
            self.net.link.pieces_close(peer, share);
            return Some(request);
        }
        request.placed = true;
        request.invited = Some(Box::new(Invited { share, segs: segs.iter().copied().collect() }));
        let name = self.requests.pool.insert(Request::In(request));
        let mut frame = Vec::with_capacity(Head::LEN + size_of::<Pieces>() + size_of_val(&iov[..]));
        put(&mut frame, &Head::new(WireOp::Invite, Flags::empty(), iov.len() as u16, req, name));
        let len = (want as u64).into();
        put(
            &mut frame,
            &Pieces { len, piece: len, slot: share.slot.into(), generation: share.generation.into() },
        );
        put_segs(&mut frame, &iov);
        self.net.send_or_queue(peer, &frame);
        self.requests.queues.add_invited(name, PATIENCE);
        None
    }

    /// The taker of a message of ours says where it goes.
    pub(in crate::endpoint) fn on_invite(
        &mut self,
        peer: PeerId,
        head: &Head,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(head.aux.get())?;
        let about: Pieces = fields.take()?;
        let segs = &fields.take_segs(n)?;
        let share = PieceCounter { slot: about.slot.get(), generation: about.generation.get() };
        if self.net.link.pieces_claim(peer, share, false, 1).is_none() {
            // It did not wait, and may have what it wants.
            return Ok(());
        }
        let (name, theirs) = (head.tag.get(), head.data.get());
        if self.requests.is_withdrawn(peer, name) {
            self.net.fin(peer, theirs, Status::Discarded, 0);
            return Ok(());
        }
        self.requests.accept_cts(peer, name, theirs, about.len.get())?;
        if !self.requests.start_put(&mut self.net.link, name, segs) {
            if let Some(Request::Out(out)) = self.requests.pool.get_mut(name) {
                out.asked = None;
            }
            self.net.fin(peer, theirs, Status::Unsupported, 0);
        }
        Ok(())
    }

    /// Gets what invited senders did not come to.
    pub(in crate::endpoint) fn check_invitations(&mut self) -> usize {
        let mut n = 0;
        let mut invited = self.requests.queues.take_invited();
        invited.retain_mut(|(name, left)| {
            *left -= 1;
            if *left > 0 {
                return true;
            }
            let Some(Request::In(In { peer, invited: Some(i), .. })) = self.requests.pool.get_mut(*name)
            else {
                return false;
            };
            let (peer, share) = (*peer, i.share);
            let is_ours = self.net.link.pieces_claim(peer, share, true, 1).is_some();
            self.net.link.pieces_close(peer, share);
            if is_ours {
                self.take_back_invitation(*name);
                n += 1;
            }
            false
        });
        // Nothing is invited while others are waited for.
        self.requests.queues.set_invited(invited);
        n
    }

    /// Gets what its sender will not put; `false` if that was not invited.
    pub(in crate::endpoint) fn take_back_invitation(&mut self, name: u64) -> bool {
        let Some(Request::In(i)) = self.requests.pool.get_mut(name) else { return false };
        let Some(invited) = i.invited.take() else { return false };
        i.placed = false;
        let (peer, want, iov, theirs) = (i.peer, i.want, i.iov.clone(), i.req);
        let access = Direct::new(Grant::Request(theirs), &invited.segs, &iov, want);
        if self.requests.start_operation(&mut self.net.link, name, Way::Get, peer, &access).is_err() {
            self.send_cts(name, true, false);
        }
        true
    }

    /// Asks a peer for the bytes of a request that is in the pool: put into place, if the place is accessed
    /// by handles, or else by way of its bounce buffers, if it has such, or in frames.
    pub(in crate::endpoint) fn send_cts(&mut self, name: u64, here: bool, bounces: bool) {
        let Some(Request::In(In { peer, iov, want, req, .. })) = self.requests.pool.get_mut(name) else {
            return;
        };
        let (peer, want, req, iov) = (*peer, *want, *req, iov.clone());
        let placed = here && self.export_later(peer, &iov);
        let mut frame = Vec::with_capacity(Head::LEN + 8);
        let (flags, segs) = match (placed, bounces) {
            (true, _) => (Flags::HANDLES, iov.len()),
            (false, true) => (Flags::HANDLES, 0),
            (false, false) => (Flags::empty(), 0),
        };
        put_cts(&mut frame, flags, segs, req, name, want);
        if placed {
            put_segs(&mut frame, &iov);
        }
        if let Some(Request::In(i)) = self.requests.pool.get_mut(name) {
            i.placed |= placed;
            i.bounces = bounces && !placed;
        }
        self.net.send_or_queue(peer, &frame);
    }

    /// Answers a read by putting the bytes where they are wanted, if that can be.
    pub(in crate::endpoint) fn start_put_read(&mut self, segs: &[Seg], request: Serve) -> Option<Serve> {
        let (peer, len, iov, theirs) = (request.peer, request.len, request.iov.clone(), request.req);
        let name = self.begin_serve(request);
        let access = Direct::new(Grant::Request(theirs), segs, &iov, len);
        if self.requests.start_operation(&mut self.net.link, name, Way::Put, peer, &access).is_ok() {
            return None;
        }
        match self.requests.pool.remove(name)? {
            Request::Serve(request) => Some(request),
            _ => None,
        }
    }

    /// The memory that a stream reads from cannot be read: the peer that waits for it gets an answer.
    pub(in crate::endpoint) fn stream_failed(&mut self, name: u64) {
        self.requests.end_stream(name);
        let (peer, theirs, status) = match self.requests.pool.get_mut(name) {
            Some(Request::Out(Out { peer, asked: Some((theirs, _)), iov, .. })) => {
                (*peer, *theirs, unmoved(iov))
            }
            Some(Request::Serve(s)) => (s.peer, s.req, unmoved(&s.iov)),
            _ => return,
        };
        if status == Status::Fault {
            self.net.warn_of(peer, status);
        } else {
            log::warn!("{}: a device's memory cannot be read", self.net.link.addr());
        }
        self.net.fin(peer, theirs, status, 0);
        if matches!(self.requests.pool.get_mut(name), Some(Request::Serve(_))) {
            self.requests.pool.remove(name);
        }
    }
}
