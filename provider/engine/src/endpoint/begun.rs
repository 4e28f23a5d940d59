//! Frames of which the front is there, while the rest is under way.
//!
//! Where the front says that the payload belongs into a receive that is posted, or into one of which a part
//! is there already, the link puts it there as it comes ([`link_api::Link::land`]). All else is left until it
//! is whole.

use link_api::{Frame, Landing, RmaLink};
use wire::{Flags, Head, Op as WireOp};

use super::Endpoint;
use crate::core::Core;
use crate::core::on_device;
use crate::endpoint::parts::request::{In, NO_REQUEST, Request, Then};

/// Requests beside which frames of a rendezvous land as they come. Where more are under way, the sender is
/// ahead anyway, and whole frames take fewer calls.
const FEW: usize = 2;

/// Where the payload of a frame belongs.
struct Place {
    /// The request that it is for.
    name: u64,
    /// Its first byte in the frame, and in the request's memory.
    off: usize,
    doff: usize,
    len: usize,
}

impl<L: RmaLink> Endpoint<L> {
    #[inline(never)]
    pub(super) fn begun(&mut self, core: &mut Core, frame: Frame) {
        self.net.peer(frame.from).has_sent(frame.len);
        let place = if self.net.metered.is_on() { None } else { self.place_begun(core, &frame) };
        let Some(Place { name, off, doff, len }) = place else { return self.net.link.leave(frame) };
        let Some(Request::In(request)) = self.requests.pool.get_mut(name) else {
            return self.net.link.leave(frame);
        };
        let iov = request.iov.clone();
        match self.net.link.land(frame, off, &iov, doff, len) {
            Landing::Over(ok) => self.landed(core, name, ok),
            Landing::InFlight(op) => {
                request.lands = true;
                self.requests.queues.add_flight(op, name);
            }
        }
    }

    /// The place of a frame's payload, if it is known by the front. What makes no sense is told of when all
    /// is there.
    fn place_begun(&mut self, core: &mut Core, frame: &Frame) -> Option<Place> {
        let bytes: [u8; Head::LEN] = self.net.link.peek(frame)?;
        let head: Head = zerocopy::transmute!(bytes);
        let flags = head.flags()?;
        match head.op()? {
            WireOp::Eager => self.place_eager(core, frame, &head, flags),
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
        let mut request = In::new(meta.peer, iov, len, want, ack.unwrap_or(NO_REQUEST), Then::Recv(matched));
        request.got = want;
        let name = self.requests.pool.insert(Request::In(request));
        Some(Place { name, off, doff: 0, len: want })
    }

    fn place_data(&mut self, frame: &Frame, head: &Head) -> Option<Place> {
        let name = head.tag.get();
        let (len, doff) = (frame.len - Head::LEN, usize::try_from(head.data.get()).ok()?);
        if self.requests.pool.len() > FEW
            || self.requests.is_in_flight(name)
            || self.requests.is_past(&self.net.link, frame.from, name)
        {
            return None;
        }
        let Some(Request::In(i)) = self.requests.pool.get_mut(name) else { return None };
        let is_next = i.peer == frame.from && doff == i.got && len <= i.want - i.got && len > 0;
        if !is_next || i.coop.is_some() || i.failed.is_some() || on_device(&i.iov) {
            return None;
        }
        i.got += len;
        Some(Place { name, off: Head::LEN, doff, len })
    }

    /// The payload of a frame is where it belongs, or a part of it never will be.
    fn landed(&mut self, core: &mut Core, name: u64, ok: bool) {
        if !ok {
            self.requests.spoil(name);
        }
        self.all_came(core, name, !ok);
    }

    /// Whether this operation in flight was such a frame, which is over now.
    pub(super) fn landing_done(&mut self, core: &mut Core, name: u64, ok: bool) -> bool {
        let Some(Request::In(i)) = self.requests.pool.get_mut(name) else { return false };
        if !std::mem::take(&mut i.lands) {
            return false;
        }
        let peer = i.peer;
        // With the peer's end comes that of the request.
        if ok || !self.net.link.is_gone(peer) {
            self.landed(core, name, ok);
        }
        true
    }
}
