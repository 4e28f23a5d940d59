//! Messages injected from a device's memory.
//!
//! The buffer of an injected message may change at once, so that the bytes have to leave it before the call
//! returns, and to bring them to the host for that is one copy too many where the message goes to a device.
//! So it is offered (`Rts`), and the call waits for as long as it takes a receiver that polls to say where
//! the message goes: then this side's device puts it there, and the call returns when that is over, which
//! depends on no peer. If no answer comes, the bytes follow unasked (`Body`), and the receiver can take them
//! without this side, as it can what was injected from the host. The call waits in [`Endpoint::has_left`],
//! which returns each time, so that other threads may call meanwhile. A peer that did not answer in time, or
//! whose buffers are not on a device, is not waited for again too soon.

use wire::{Flags, Head, Op as WireOp, Status};

use crate::core::Spans;
use crate::endpoint::net::Net;
use crate::endpoint::parts::header::frame as frame_of;
use crate::endpoint::parts::request::{Followed, Request};
use crate::endpoint::requests::Requests;
use link_api::{PeerId, RmaLink};

/// Injected messages that were offered.
pub(crate) struct Inject<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
}

impl<L: RmaLink> Inject<'_, L> {
    /// Sends what follows, once the host has it. Whether that is so.
    pub(in crate::endpoint) fn follow(&mut self, name: u64) -> bool {
        let Some(following) = self.requests.staging.following(name) else { return true };
        let Some(is_read) = following.transfer.poll() else { return false };
        let Some(mut following) = self.requests.staging.take_following(name) else { return true };
        let Some(peer) = self.requests.pool.get_mut(name).map(|r| r.peer()) else { return true };
        let (from, len, asked) = (following.from, following.len, following.asked);
        let bytes = following.transfer.buffer().filter(|_| is_read).map(|b| &b.bytes()[..len]);
        if let (None, None, Some(theirs)) = (bytes, asked, following.asked_late) {
            self.net.fin(peer, theirs, Status::Io, 0);
        }
        self.send_followers(peer, name, asked, from, bytes);
        true
    }

    /// Lets go of the memory of an injected message: what of it has not been put or sent follows. Whether
    /// that is done.
    pub(in crate::endpoint) fn let_follow(&mut self, peer: PeerId, name: u64) -> bool {
        let is_streamed = self.requests.queues.is_streamed(name);
        let Some(Request::Out(out)) = self.requests.pool.get_mut(name) else { return true };
        let iov = std::mem::replace(&mut out.iov, Spans::NONE);
        let (from, to) = match out.asked {
            None => (0, out.len),
            Some((_, want)) if is_streamed => (out.done, want),
            // It is where it belongs.
            Some(_) => return true,
        };
        out.followed = Followed::Yes;
        let asked = out.asked.map(|(theirs, _)| theirs);
        self.requests.end_stream(name);
        if self.requests.staging.let_follow(name, asked, &iov, from, to - from) {
            return self.follow(name);
        }
        let mut bytes = vec![0; to - from];
        let is_read = hmem::read(&iov, from, &mut bytes) == bytes.len();
        self.send_followers(peer, name, asked, from, is_read.then_some(&bytes[..]));
        true
    }

    /// Sends bytes of an injected message from `from` on: unasked, or as the peer has requested them
    /// (`asked`).
    /// `None`: they cannot be read.
    fn send_followers(
        &mut self,
        peer: PeerId,
        name: u64,
        asked: Option<u64>,
        from: usize,
        bytes: Option<&[u8]>,
    ) {
        let Some(bytes) = bytes else {
            log::warn!("{}: a device's memory cannot be read", self.net.link.addr());
            if let Some(Request::Out(out)) = self.requests.pool.get_mut(name) {
                out.followed = Followed::Lost;
            }
            if let Some(theirs) = asked {
                self.net.fin(peer, theirs, Status::Io, 0);
            }
            return;
        };
        let Some(theirs) = asked else {
            let head = Head::new(WireOp::Body, Flags::empty(), 0, name, 0);
            return self.net.send_or_queue(peer, &frame_of(&head, bytes));
        };
        self.net.send_parts(peer, theirs, from, bytes);
    }

    /// A peer asks for a message of ours whose bytes follow, have followed it, or never will.
    pub(in crate::endpoint) fn asks_late(&mut self, peer: PeerId, name: u64, theirs: u64) -> bool {
        let Some(Request::Out(out)) = self.requests.pool.get_mut(name) else { return false };
        let followed = out.followed;
        if out.peer != peer || followed == Followed::No {
            return false;
        }
        if followed == Followed::Lost {
            self.net.fin(peer, theirs, Status::Io, 0);
        } else if let Some(following) = self.requests.staging.following(name) {
            following.asked_late = Some(theirs);
        }
        true
    }

    /// Sends the bytes of such a message, if that is what was requested. `None`: it is not.
    pub(in crate::endpoint) fn give_kept(
        &mut self,
        peer: PeerId,
        name: u64,
        theirs: u64,
        want: u64,
    ) -> Option<()> {
        let kept = self.requests.injected.kept(name)?;
        let ours = matches!(self.requests.pool.get_mut(name), Some(Request::Out(out)) if out.peer == peer);
        (ours && want <= kept.len() as u64).then_some(())?;
        let kept = self.requests.injected.take_kept(name)?;
        self.net.send_parts(peer, theirs, 0, &kept[..want as usize]);
        Some(())
    }
}
