//! Messages injected from a device's memory.
//!
//! The buffer of an injected message may change at once, so that the bytes have to leave it before the call returns,
//! and to bring them to the host for that is one copy too many where the message goes to a device. So it is
//! offered (`Rts`), and the call waits for as long as it takes a receiver that polls to say where the
//! message goes: then our device puts it there, and the call returns when that is over, which depends on
//! no peer. If no answer comes, the bytes follow unasked (`Body`), and the receiver can take them
//! without us, as it can what was injected from the host. A peer that did not answer in time, or whose
//! buffers are not on a device, is not waited for again too soon.

use wire::{Flags, Head, Op as WireOp, Status};

use super::Endpoint;
use super::handles::on_device;
use super::header::frame;
use super::malformed::{Handled, Malformed};
use super::request::{Done, Followed, Out, Request, Then};
use crate::core::{Body, Core, Spans};
use crate::types::*;
use link_api::{Frame, PeerId, RmaLink};

/// Polls for which the receiver is waited for: a few microseconds, a third of what the copy takes that its
/// answer saves.
const PATIENCE: u32 = 256;

impl<L: RmaLink> Endpoint<L> {
    /// Injects a message that is not longer than any frame.
    pub(super) fn inject_from_device(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        op: &Send<'_>,
        flags: Flags,
        done_as: Done,
    ) -> Result<(), Error> {
        let len = hmem::total(op.iov);
        let name = self.offer(Out::new(peer, op.iov.into(), len, done_as), op, flags)?;
        let prompt = self.wait_until_put(core, name);
        self.peer(peer).promptness.was(prompt);
        self.let_follow(peer, name);
        Ok(())
    }

    /// Waits until our device has put the message where its receiver said: `false` if that is not to be.
    fn wait_until_put(&mut self, core: &mut Core, name: u64) -> bool {
        let mut patience = PATIENCE;
        loop {
            self.progress(core, None);
            let Some(Request::Out(out)) = self.requests.get_mut(name) else {
                // Received, or the peer is gone.
                return true;
            };
            let (asked, done) = (out.asked, out.done);
            match asked {
                Some(_) if done > 0 || self.streams.contains(&name) => return false,
                Some(_) if !self.is_in_flight(name) => return true,
                Some(_) => {}
                None if patience == 0 => return false,
                None => patience -= 1,
            }
        }
    }

    /// Lets go of the memory of an injected message: what of it has not been put or sent follows now.
    fn let_follow(&mut self, peer: PeerId, name: u64) {
        let is_streamed = self.streams.contains(&name);
        let Some(Request::Out(out)) = self.requests.get_mut(name) else { return };
        let iov = std::mem::replace(&mut out.iov, Spans::NONE);
        let (from, to) = match out.asked {
            None => (0, out.len),
            Some((_, want)) if is_streamed => (out.done, want),
            // It is where it belongs.
            Some(_) => return,
        };
        let mut bytes = vec![0; to - from];
        let is_read = hmem::read(&iov, from, &mut bytes) == bytes.len();
        out.followed = if is_read { Followed::Yes } else { Followed::Lost };
        let asked = out.asked;
        self.end_stream(name);
        match asked {
            _ if !is_read => {
                log::warn!("{}: a device's memory cannot be read", self.link.addr());
                if let Some((theirs, _)) = asked {
                    self.fin(peer, theirs, Status::Io, 0);
                }
            }
            None => {
                self.send_or_queue(peer, &frame(&Head::new(WireOp::Body, Flags::empty(), 0, name, 0), &bytes))
            }
            Some((theirs, _)) => {
                let most = self.peer(peer).limits.max_frame() - Head::LEN;
                for (at, part) in (from..).step_by(most).zip(bytes.chunks(most)) {
                    let head = Head::new(WireOp::Data, Flags::empty(), 0, theirs, at as u64);
                    self.send_or_queue(peer, &frame(&head, part));
                }
            }
        }
    }

    /// A peer asks for a message of ours whose bytes have followed it, or never will.
    pub(super) fn asks_late(&mut self, peer: PeerId, name: u64, theirs: u64) -> bool {
        let Some(Request::Out(out)) = self.requests.get_mut(name) else { return false };
        let followed = out.followed;
        if out.peer != peer || followed == Followed::No {
            return false;
        }
        if followed == Followed::Lost {
            self.fin(peer, theirs, Status::Io, 0);
        }
        true
    }

    /// The bytes of a message that was offered before.
    pub(super) fn on_body(&mut self, core: &mut Core, frame: &Frame, head: &Head) -> Handled {
        let (peer, theirs) = (frame.from, head.tag.get());
        let len = frame.len - Head::LEN;
        let waits = |r: &Request| matches!(r, Request::In(i) if i.peer == peer && i.req == theirs);
        if let Some(&name) = self.requests.names(waits).first() {
            return self.take_body(core, frame, name, len);
        }
        let ep = self.id;
        let Some(message) = core.rxs.get_mut(self.rx.at()).and_then(|rx| rx.offered(ep, peer, theirs)) else {
            // It has been thrown away meanwhile, and its sender was told.
            return Ok(());
        };
        if message.len != len {
            return Err(Malformed::Lengths);
        }
        message.body = Body::Held(core.buffers.keep(len, |bytes| {
            self.link.read(frame, Head::LEN, bytes);
        }));
        message.ack = Some(theirs);
        self.weighs_more(core, peer, len);
        Ok(())
    }

    /// Into the buffer that was found for it while they were on their way.
    fn take_body(&mut self, core: &mut Core, frame: &Frame, name: u64, len: usize) -> Handled {
        if self.is_in_flight(name) {
            return Err(Malformed::Unfit);
        }
        let Some(Request::In(i)) = self.requests.get_mut(name) else { return Err(Malformed::NoRequest) };
        let is_apt = i.len == len && i.got == 0 && i.coop.is_none() && i.invited.is_none();
        if !is_apt || !matches!(i.then, Then::Recv(_)) {
            return Err(Malformed::Unfit);
        }
        let (iov, want) = (i.iov.clone(), i.want);
        i.got = want;
        let ok = if on_device(&iov) {
            self.land(frame, Head::LEN, name, &iov, 0, want)
        } else {
            self.link.copy_out(frame, Head::LEN, &iov, 0, want) == want
        };
        if !ok {
            self.spoil(name);
        }
        self.all_came(core, name, !ok);
        Ok(())
    }
}
