//! Messages and writes from one device's memory to another's, neither of which the other side's device
//! reaches, by way of bounce buffers in the memory of the sender's device ([`hmem::bounce`]).
//!
//! The receiver says in its `Cts` that it takes them so. The sender's device copies parts of the payload into
//! buffers, which the sender announces to the receiver (`Bounce`) in order; the receiver's device copies from
//! there, by the handle of the buffers, and the receiver says of each part that it has it (`BounceDone`), or
//! that it does not get at it. Several parts are on their way. Buffers go back when the receiver has said so,
//! or has answered the whole request.
//!
//! Where some step cannot be had (no memory for buffers, a copy that is refused or fails), the sender begins
//! no further part. Once the receiver has answered all that was announced to it, the rest follows in `Data`
//! frames, from the first part on that it does not have: so never are both on their way.

use hmem::bounce::NoRoom;
use wire::{Flags, Head, Op as WireOp, Seg, Status, put};

use crate::endpoint::device::bounces::Fed;
use crate::endpoint::malformed::{Handled, Malformed};
use crate::endpoint::net::Net;
use crate::endpoint::parts::request::{Out, Request};
use crate::endpoint::requests::Requests;
use crate::proto::{self, Plan, Reach, Role, Tried, When, choose};
use link_api::{PeerId, Refused, RmaLink, Way};

/// Requests whose payload goes through bounce buffers of this side's.
pub(crate) struct Bounce<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
}

impl<L: RmaLink> Bounce<'_, L> {
    /// The receiver of a message of ours takes it from bounce buffers: it goes so, if that is the choice
    /// here.
    pub(in crate::endpoint) fn begin_bounce(&mut self, peer: PeerId, name: u64) {
        let Some(Request::Out(out)) = self.requests.pool.get_mut(name) else { return };
        let Some((_, want)) = out.asked else { return };
        let when = if out.injected { When::INJECT } else { When::empty() };
        let mut op = proto::Op::new(Role::Feed(Reach::Handles), want, &out.iov, when);
        let peers = self.net.peer(peer);
        op.tried.set(Tried::BOUNCE, !peers.hints.takes_bounces());
        let is_chosen = choose(peers.flow.limits(), &op) == Plan::Bounce;
        // Where nothing is exported to that peer, no buffer is either.
        if !is_chosen || self.net.link.export_handles(peer, &[], Way::Get).is_none() {
            return;
        }
        self.requests.staging.bounces.begin(name, peer);
        if let Some(Request::Out(out)) = self.requests.pool.get_mut(name) {
            out.bounced = true;
        }
    }

    /// A turn of a message that goes through bounce buffers: how much was done.
    pub(in crate::endpoint) fn bounce_one(&mut self, name: u64) -> usize {
        let Some(Request::Out(Out { peer, asked: Some((theirs, want)), iov, .. })) =
            self.requests.pool.get_mut(name)
        else {
            self.requests.end_stream(name);
            return 0;
        };
        let (peer, theirs, want, iov) = (*peer, *theirs, *want, iov.clone());
        let mut n = self.announce_filled(name, peer, theirs);
        let fed = self.requests.staging.bounces.feed(name, &iov, want);
        let Some(stream) = self.requests.staging.bounces.stream(name) else { return n };
        match fed {
            Fed::Started(started) => n += started,
            Fed::Waits => {}
            Fed::NoRoom(why) => {
                stream.stop_at(stream.next());
                self.warn_of_no_room(why);
            }
        }
        let Some(stream) = self.requests.staging.bounces.stream(name) else { return n };
        match stream.broken {
            Some(at) if stream.is_taken() => {
                let refused = stream.refused;
                self.requests.staging.bounces.cancel(name);
                if refused {
                    self.net.peer(peer).hints.note_no_bounces();
                }
                if let Some(Request::Out(out)) = self.requests.pool.get_mut(name) {
                    (out.done, out.bounced) = (at, false);
                }
                n += 1;
            }
            // The peer's answers bring it back here.
            Some(_) => self.requests.queues.drop_stream(name),
            None if stream.is_announced(want) || (fed == Fed::Waits && stream.is_with_peer()) => {
                self.requests.queues.drop_stream(name);
            }
            None => {}
        }
        n
    }

    /// Announces the parts that are in buffers to the receiver; how many.
    fn announce_filled(&mut self, name: u64, peer: PeerId, theirs: u64) -> usize {
        let mut n = 0;
        loop {
            let may_send = !self.net.peer(peer).flow.has_backlog();
            let Some(stream) = self.requests.staging.bounces.stream(name) else { return n };
            let Some((off, fill)) = stream.filling.front_mut() else { return n };
            let (off, room) = (*off, (fill.room().span(), fill.room().len()));
            match fill.poll() {
                Some(true) if may_send => {}
                Some(false) => {
                    stream.stop_at(off);
                    return n + 1;
                }
                _ => return n,
            }
            let (span, len) = room;
            match self.net.export(peer, &[span], Way::Get) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(stream) = self.requests.staging.bounces.stream(name) {
                        stream.stop_at(off);
                        stream.refused = true;
                    }
                    return n + 1;
                }
                Err(_) => return n,
            }
            let mut frame = Vec::with_capacity(Head::LEN + size_of::<Seg>());
            put(&mut frame, &Head::new(WireOp::Bounce, Flags::empty(), 1, theirs, off as u64));
            put(&mut frame, &Seg { addr: span.addr().into(), len: (len as u64).into() });
            match self.net.link.send(peer, &frame, &[], 0, 0) {
                Ok(_) => {}
                // The requests of a peer that is gone end when the link reports that.
                Err(Refused::Busy | Refused::Gone(_) | Refused::Fault) => return n,
            }
            if let Some(stream) = self.requests.staging.bounces.stream(name) {
                stream.announce();
            }
            if let Some(Request::Out(out)) = self.requests.pool.get_mut(name) {
                out.done = off + len;
            }
            n += 1;
        }
    }

    /// Why messages are staged that could go through bounce buffers, once.
    #[cold]
    fn warn_of_no_room(&mut self, why: NoRoom) {
        if let (NoRoom::Never(why), false) = (why, self.requests.staging.bounces.warned) {
            self.requests.staging.bounces.warned = true;
            log::info!(
                "{}: no bounce buffers in a device's memory ({why}): it is staged",
                self.net.link.addr()
            );
        }
    }

    /// The receiver has a part, or does not get at it.
    pub(in crate::endpoint) fn on_bounce_done(&mut self, peer: PeerId, head: &Head) -> Handled {
        let name = head.tag.get();
        let off = usize::try_from(head.data.get()).map_err(|_| Malformed::Unfit)?;
        if self.requests.is_past(&self.net.link, peer, name) || self.requests.is_withdrawn(peer, name) {
            return Ok(());
        }
        self.requests.named(peer, name)?;
        let stream = self.requests.staging.bounces.stream(name).ok_or(Malformed::Unfit)?;
        if !stream.take_back(off) {
            return Err(Malformed::Unfit);
        }
        if Status::from_u16(head.aux.get()) != Status::Ok {
            stream.stop_at(off);
            stream.refused = true;
        }
        if !self.requests.queues.is_streamed(name) {
            self.requests.queues.add_stream(name);
        }
        Ok(())
    }
}
