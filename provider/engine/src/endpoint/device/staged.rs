//! Devices' memory whose bytes travel in frames, since no device reaches both sides.
//!
//! The device copies between its memory and buffers of the host's ([`hmem::stage`]), and no call waits for
//! it: a copy is started, and later calls of progress find it over. The sender of a stream has two buffers at
//! work, of which one is filled while frames are sent from the other. The receiver copies each frame into a
//! buffer, from which the device takes it; the operation completes when the last of these copies is over. An
//! endpoint has at most 6 MiB of buffers, page-locked if the runtime can, made when they are first needed and
//! kept until it is closed. While too few of them are free for another frame, none is taken in: the devices
//! that free them need no peer for that.
//!
//! Where a device of the receiver's has the memory, too, [`crate::endpoint::device::bounce`] comes first.

use hmem::Span;
use wire::{Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::core::on_device;
use crate::endpoint::Endpoint;
use crate::endpoint::device::staging::{BUFFER, Landing, Source, TURN, Unread};
use crate::endpoint::parts::request::{In, MatchedRecv, NO_REQUEST, Request, Then};
use crate::types::*;
use link_api::{How, PeerId, Refused, RmaLink, Side};

impl<L: RmaLink> Endpoint<L> {
    /// A turn of a stream of a device's memory, bytes `done..want` of which are left to be sent: in frames of
    /// up to `most` as they come to the host. How far it is then, and how much was done; `None` if there is
    /// no buffer for it.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::endpoint) fn stream_staged(
        &mut self,
        name: u64,
        (peer, theirs): (PeerId, u64),
        iov: &[Span],
        mut done: usize,
        want: usize,
        most: usize,
    ) -> Option<Result<(usize, usize), Unread>> {
        let may_send = !self.net.peers[peer].flow.has_backlog();
        let (mut stream, mut n) = self.requests.staging.feed(name, iov, done, want)?;
        while n < TURN {
            let Some(chunk) = stream.chunks.front_mut() else { break };
            match chunk.transfer.poll() {
                None => break,
                Some(false) => return Some(Err(Unread)),
                Some(true) => {}
            }
            let Some(buffer) = chunk.transfer.buffer().filter(|_| may_send) else { break };
            let end = chunk.off + chunk.len;
            let part = most.min(end - done);
            let head = Head::new(WireOp::Data, Flags::empty(), 0, theirs, done as u64);
            let frame = buffer.frame(head.as_bytes(), done - chunk.off, part);
            match self.net.link.send(peer, frame, &[], 0, 0) {
                Ok(()) | Err(Refused::Kept) => done += part,
                // The requests of a peer that is gone end when the link reports that.
                Err(Refused::Busy | Refused::Gone(_)) => break,
                Err(Refused::Fault) => return Some(Err(Unread)),
            }
            n += 1;
            if done == end {
                stream.chunks.pop_front();
                match self.requests.staging.feed(name, iov, done, want) {
                    Some((next, started)) => {
                        stream = next;
                        n += started;
                    }
                    None => break,
                }
            }
        }
        Some(Ok((done, n)))
    }

    /// Takes `len` bytes that are for byte `doff` of a device's memory, on behalf of the request `name`;
    /// `false` if they cannot be had there.
    pub(in crate::endpoint) fn land(
        &mut self,
        source: Source<'_>,
        name: u64,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> bool {
        for at in (0..len).step_by(BUFFER) {
            let n = BUFFER.min(len - at);
            let Some(mut buffer) = self.requests.staging.receiving.take() else {
                // Host memory in `dst` is not to be written before what is under way to the device.
                return self.requests.staging.wait_for_landings(name)
                    && self.net.copy_from(source, at, dst, doff + at, len - at) == len - at;
            };
            let room = &mut buffer.bytes()[..n];
            match source {
                Source::Frame(frame, off) if self.net.link.read(frame, off + at, room) != n => return false,
                Source::Frame(..) => {}
                Source::Held(bytes) => room.copy_from_slice(&bytes[at..at + n]),
            }
            let transfer = buffer.write(dst, doff + at, n);
            self.requests.staging.landings.push(Landing { name, transfer });
        }
        // Where what has a part in each call of progress is.
        if self.requests.staging.is_landing(name) && !self.requests.queues.is_streamed(name) {
            self.requests.queues.add_stream(name);
        }
        true
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
        let ok = self.land(source, name, &iov, 0, want);
        if !ok {
            self.requests.spoil(name);
        }
        self.all_came(core, name, !ok);
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
            self.all_came(core, name, failed);
        }
        n
    }

    /// Completes a request whose bytes were to come in frames, if all of them have, and are where they
    /// belong. `failed`: some could not be put there.
    pub(in crate::endpoint) fn all_came(&mut self, core: &mut Core, name: u64, failed: bool) {
        let landing = self.requests.staging.is_landing(name);
        let copying = self.requests.is_in_flight(name);
        let is_over = match self.requests.pool.get_mut(name) {
            // What it asked for comes in any case.
            Some(Request::In(i)) => i.got == i.want && i.broken.is_none() && !landing && !copying,
            Some(Request::Out(out)) => failed || (out.done == out.len && !landing),
            _ => true,
        };
        if !landing || is_over {
            self.requests.queues.drop_stream(name);
        }
        if !is_over {
            return;
        }
        self.requests.staging.cancel(name);
        self.requests.end_invitation(&mut self.net.link, name);
        match self.requests.pool.remove(name) {
            Some(Request::In(i)) => {
                // What did not fit was never asked for; the matched receive knows the message's length.
                let status = i.failed.unwrap_or(Status::Ok);
                let how = if i.bounces { How::Device } else { How::Frames };
                self.net.meter(i.peer, Side::Theirs, how, i.len);
                self.fetched(core, i.peer, i.req, status, i.len, i.then);
                if self.net.peer(i.peer).gone.is_some() {
                    self.release(i.peer);
                }
            }
            Some(Request::Out(out)) if failed => self.finish_out(core, &out, Some(Error::Io)),
            Some(Request::Out(out)) => self.finish_out(core, &out, None),
            Some(Request::Serve(_) | Request::CoopHelp(_) | Request::Withdrawn(_)) | None => {}
        }
    }
}
