//! Devices' memory whose bytes travel in frames, since no device reaches both sides.
//!
//! The device copies between its memory and buffers of the host's ([`hmem::stage`]), and no call waits for it: a copy is
//! started, and later calls of progress find it over. The sender of a stream has two buffers at work, of which one is
//! filled while frames are sent from the other. The receiver copies each frame into a buffer, from which the device
//! takes it; the operation completes when the last of these copies is over. An endpoint has at most 6 MiB of buffers, page-locked
//! if the runtime can, made when they are first needed and kept until it is closed. While too few of them are free for another
//! frame, none is taken in: the devices that free them need no peer for that.
//!
//! Memory to stage in is a matter of [`Chunk`] and [`Landing`] alone: a buffer that a peer's device reaches could take
//! the place of the host's, its handle that of the frames.

use std::collections::VecDeque;

use hmem::Span;
use hmem::stage::{Pool, Transfer};
use wire::{Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use super::Endpoint;
use super::peer::Fetches;
use super::request::Request;
use super::transfer::TURN;
use crate::core::Core;
use crate::types::*;
use link_api::{Frame, PeerId, Refused, RmaLink};

/// Bytes of a buffer.
const BUFFER: usize = 256 << 10;
/// Buffers of an endpoint for what it sends, and for what it receives. Of the latter half may be taken when a frame
/// comes, which may need several.
const SENDING: usize = 8;
const RECEIVING: usize = 16;
/// Buffers of a stream. One of many streams has one.
const AHEAD: usize = 2;

/// What is staged at one endpoint.
#[derive(Debug)]
pub(super) struct Staging {
    sending: Pool,
    receiving: Pool,
    streams: Vec<Stream>,
    landings: Vec<Landing>,
}

/// A stream of frames that is read from a device.
#[derive(Debug)]
struct Stream {
    name: u64,
    chunks: VecDeque<Chunk>,
}

/// Bytes of a stream on their way to the host, or there and to be sent.
#[derive(Debug)]
struct Chunk {
    /// Which ones.
    off: usize,
    len: usize,
    transfer: Transfer,
}

/// Bytes of a frame on their way to a device.
#[derive(Debug)]
struct Landing {
    /// The request that they are of.
    name: u64,
    transfer: Transfer,
}

impl Staging {
    pub(super) fn new() -> Staging {
        let (sending, receiving) = (Pool::new(SENDING, BUFFER), Pool::new(RECEIVING, BUFFER));
        Staging { sending, receiving, streams: Vec::new(), landings: Vec::new() }
    }

    /// Whether there is no room for another frame.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.landings.len() >= RECEIVING / 2
    }

    /// Whether frames of this request are on their way to a device.
    pub(super) fn is_landing(&self, name: u64) -> bool {
        self.landings.iter().any(|l| l.name == name)
    }

    /// Ends what is under way for a request: when this returns its memory is not accessed any more.
    pub(super) fn cancel(&mut self, name: u64) {
        self.streams.retain(|s| s.name != name);
        self.landings.retain(|l| l.name != name);
    }

    /// Likewise, for all.
    pub(super) fn cancel_all(&mut self) {
        self.streams.clear();
        self.landings.clear();
    }

    /// The stream of this name, whose next byte to be sent is `done`, with the device at work for it; and how many copies
    /// were started. `None`: there is no buffer for it.
    fn feed(&mut self, name: u64, iov: &[Span], done: usize, want: usize) -> Option<(&mut Stream, usize)> {
        let at = self.streams.iter().position(|s| s.name == name).unwrap_or_else(|| {
            self.streams.push(Stream { name, chunks: VecDeque::new() });
            self.streams.len() - 1
        });
        let stream = &mut self.streams[at];
        let mut started = 0;
        while stream.chunks.len() < AHEAD {
            let off = stream.chunks.back().map_or(done, |c| c.off + c.len);
            let short = !stream.chunks.is_empty() && self.sending.taken() >= SENDING / 2;
            if off >= want || short {
                break;
            }
            let Some(buffer) = self.sending.take() else { break };
            let len = BUFFER.min(want - off);
            stream.chunks.push_back(Chunk { off, len, transfer: buffer.read(iov, off, len) });
            started += 1;
        }
        if stream.chunks.is_empty() {
            self.streams.swap_remove(at);
            return None;
        }
        Some((&mut self.streams[at], started))
    }
}

/// The memory that a stream is of cannot be read.
pub(super) struct Unread;

impl<L: RmaLink> Endpoint<L> {
    /// A turn of a stream of a device's memory, bytes `done..want` of which are left to be sent: in frames of up to `most` as
    /// they come to the host. How far it is then, and how much was done; `None` if there is no buffer for it.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn stream_staged(
        &mut self,
        name: u64,
        (peer, theirs): (PeerId, u64),
        iov: &[Span],
        mut done: usize,
        want: usize,
        most: usize,
    ) -> Option<Result<(usize, usize), Unread>> {
        let may_send = !self.peers[peer.0 as usize].has_backlog();
        let (mut stream, mut n) = self.staging.feed(name, iov, done, want)?;
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
            match self.link.send(peer, frame, &[], 0, 0) {
                Ok(()) => done += part,
                // The requests of a peer that is gone end when the link reports that.
                Err(Refused::Busy | Refused::Gone(_)) => break,
                Err(Refused::Fault) => return Some(Err(Unread)),
            }
            n += 1;
            if done == end {
                stream.chunks.pop_front();
                match self.staging.feed(name, iov, done, want) {
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

    /// Takes `len` bytes of a frame that are for byte `doff` of a device's memory, on behalf of the request `name`; `false` if
    /// they cannot be had there.
    pub(super) fn land(
        &mut self,
        frame: &Frame,
        off: usize,
        name: u64,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> bool {
        for at in (0..len).step_by(BUFFER) {
            let n = BUFFER.min(len - at);
            let Some(mut buffer) = self.staging.receiving.take() else {
                return self.link.copy_out(frame, off + at, dst, doff + at, len - at) == len - at;
            };
            if self.link.read(frame, off + at, &mut buffer.bytes()[..n]) != n {
                return false;
            }
            let transfer = buffer.write(dst, doff + at, n);
            self.staging.landings.push(Landing { name, transfer });
        }
        // Where what has a part in each call of progress is.
        if self.staging.is_landing(name) && !self.streams.contains(&name) {
            self.streams.push_back(name);
        }
        true
    }

    /// Looks which copies to a device's memory are over; those of one request end in order.
    pub(super) fn check_landings(&mut self, core: &mut Core, name: u64) -> usize {
        let (mut n, mut busy, mut failed) = (0, false, false);
        self.staging.landings.retain_mut(|l| {
            if busy || l.name != name {
                return true;
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
            log::warn!("{}: a device's memory cannot be written", self.link.addr());
            self.spoil(name);
        }
        if !self.staging.is_landing(name) || failed {
            self.all_came(core, name, failed);
        }
        n
    }

    /// Completes a request whose bytes were to come in frames, if all of them have, and are where they belong. `failed`:
    /// some could not be put there.
    pub(super) fn all_came(&mut self, core: &mut Core, name: u64, failed: bool) {
        let landing = self.staging.is_landing(name);
        let is_over = match self.requests.get_mut(name) {
            // What it asked for comes in any case.
            Some(Request::In(i)) => i.got == i.want && !landing,
            Some(Request::Out(out)) => failed || (out.done == out.len && !landing),
            _ => true,
        };
        if !landing || is_over {
            self.streams.retain(|s| *s != name);
        }
        if !is_over {
            return;
        }
        self.staging.cancel(name);
        self.end_invitation(name);
        match self.requests.remove(name) {
            Some(Request::In(i)) => {
                // What did not fit was never asked for; the matched receive knows the message's length.
                let status = i.failed.unwrap_or(Status::Ok);
                self.fetched(core, i.peer, i.req, status, i.len, i.then);
            }
            Some(Request::Out(out)) if failed => self.finish_out(core, &out, Some(Error::Io)),
            Some(Request::Out(out)) => {
                if out.large {
                    self.peer(out.peer).fetches = Fetches::ByFrames;
                }
                self.finish_out(core, &out, None);
            }
            Some(Request::Serve(_) | Request::CoopHelp(_) | Request::Withdrawn(_)) | None => {}
        }
    }
}
