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

use crate::core::on_device;
use crate::core::{Body, Core, Spans};
use crate::endpoint::Endpoint;
use crate::endpoint::device::staging::{Leaving, Source};
use crate::endpoint::malformed::{Handled, Malformed};
use crate::endpoint::parts::header::frame;
use crate::endpoint::parts::request::{Done, Followed, Out, Request, Then};
use crate::types::*;
use link_api::{Frame, PeerId, RmaLink};

/// Polls for which the receiver is waited for: a few microseconds, a third of what the copy takes that its
/// answer saves.
const PATIENCE: u32 = 256;

impl<L: RmaLink> Endpoint<L> {
    /// Injects a message that is not longer than any frame.
    pub(in crate::endpoint) fn inject_from_device(
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

    /// The message that was injected just now, if its bytes have still to leave their buffer.
    pub(crate) fn take_leaving(&mut self) -> Option<Leaving> {
        let (peer, name) = self.requests.injected.take_leaving()?;
        Some(Leaving { ep: self.id, peer, name, patience: PATIENCE })
    }

    /// Goes on with an injected message: whether its buffer is the application's again. That is when our
    /// device has put it where its receiver said, or has copied it to the host, to be sent from there.
    pub(crate) fn has_left(&mut self, core: &mut Core, leaving: &mut Leaving) -> bool {
        self.progress(core, None);
        let (peer, name) = (leaving.peer, leaving.name);
        if self.requests.staging.following(name).is_some() {
            return self.follow(name);
        }
        let progress = match self.requests.pool.get_mut(name) {
            Some(Request::Out(out)) => Some((out.asked.is_some(), out.done > 0)),
            _ => None,
        };
        let prompt = match progress {
            // Received, or the peer is gone.
            None => true,
            Some((true, begun)) if begun || self.requests.queues.is_streamed(name) => false,
            Some((true, _)) if self.requests.is_in_flight(name) => return false,
            Some((true, _)) => true,
            Some((false, _)) if leaving.patience == 0 => false,
            Some((false, _)) => {
                leaving.patience -= 1;
                return false;
            }
        };
        self.net.peer(peer).hints.note_prompt(prompt);
        self.let_follow(peer, name)
    }

    /// Lets go of the memory of an injected message: what of it has not been put or sent follows. Whether
    /// that is done.
    fn let_follow(&mut self, peer: PeerId, name: u64) -> bool {
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

    /// Sends what follows, once the host has it. Whether that is so.
    fn follow(&mut self, name: u64) -> bool {
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

    /// Sends bytes of an injected message from `from` on: unasked, or as the peer has `asked` for them.
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
            return self.net.send_or_queue(peer, &frame(&head, bytes));
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

    /// The bytes of a message that was offered before.
    pub(in crate::endpoint) fn on_body(&mut self, core: &mut Core, frame: &Frame, head: &Head) -> Handled {
        let (peer, theirs) = (frame.from, head.tag.get());
        let len = frame.len - Head::LEN;
        let waits = |r: &Request| matches!(r, Request::In(i) if i.peer == peer && i.req == theirs);
        if let Some(&name) = self.requests.pool.names(waits).first() {
            return self.take_body(core, frame, name, len);
        }
        let ep = self.id;
        // With its peer's end the offer ends.
        if !self.net.may_keep(core, peer, len) {
            return Ok(());
        }
        let Some(message) = core.rxs.get_mut(self.bind.rx().at()).and_then(|rx| rx.offered(ep, peer, theirs))
        else {
            // It has been thrown away meanwhile, and its sender was told.
            return Ok(());
        };
        if message.len != len {
            return Err(Malformed::Lengths);
        }
        message.body = Body::Held(core.buffers.keep(len, |bytes| {
            self.net.link.read(frame, Head::LEN, bytes);
        }));
        message.ack = Some(theirs);
        let _ = self.weighs_more(core, peer, len);
        Ok(())
    }

    /// Into the buffer that was found for it while they were on their way.
    fn take_body(&mut self, core: &mut Core, frame: &Frame, name: u64, len: usize) -> Handled {
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
            self.land(Source::Frame(frame, Head::LEN), name, &iov, 0, want)
        } else {
            self.net.link.copy_out(frame, Head::LEN, &iov, 0, want) == want
        };
        if !ok {
            self.requests.spoil(name);
        }
        self.all_came(core, name, !ok);
        Ok(())
    }
}
