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
use wire::{Flags, Head, Op as WireOp};
use zerocopy::IntoBytes;

use crate::endpoint::device::staging::{BUFFER, Landing, Source, Staging, TURN, Unread};
use crate::endpoint::net::Net;
use crate::endpoint::parts::queues::Queues;
use link_api::{PeerId, Refused, RmaLink};

impl Staging {
    /// Takes `len` bytes that are for byte `doff` of a device's memory, on behalf of the request `name`;
    /// `false` if they cannot be had there.
    pub(in crate::endpoint) fn land<L: RmaLink>(
        &mut self,
        net: &Net<L>,
        queues: &mut Queues,
        source: Source<'_>,
        name: u64,
        (dst, doff): (&[Span], usize),
        len: usize,
    ) -> bool {
        for at in (0..len).step_by(BUFFER) {
            let n = BUFFER.min(len - at);
            let Some(mut buffer) = self.receiving.take() else {
                // Host memory in `dst` is not to be written before what is under way to the device.
                return self.wait_for_landings(name)
                    && net.copy_from(source, at, dst, doff + at, len - at) == len - at;
            };
            let room = &mut buffer.bytes()[..n];
            match source {
                Source::Frame(frame, off) if net.link.read(frame, off + at, room) != n => return false,
                Source::Frame(..) => {}
                Source::Held(bytes) => room.copy_from_slice(&bytes[at..at + n]),
            }
            let transfer = buffer.write(dst, doff + at, n);
            self.landings.push(Landing { name, transfer });
        }
        // Where what has a part in each call of progress is.
        if self.is_landing(name) && !queues.is_streamed(name) {
            queues.add_stream(name);
        }
        true
    }

    /// A turn of a stream of a device's memory, bytes `done..want` of which are left to be sent: in frames of
    /// up to `most` as they come to the host. How far it is then, and how much was done; `None` if there is
    /// no buffer for it.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::endpoint) fn stream<L: RmaLink>(
        &mut self,
        net: &mut Net<L>,
        name: u64,
        (peer, theirs): (PeerId, u64),
        iov: &[Span],
        mut done: usize,
        want: usize,
        most: usize,
    ) -> Option<Result<(usize, usize), Unread>> {
        let may_send = !net.peers[peer].flow.has_backlog();
        let (mut stream, mut n) = self.feed(name, iov, done, want)?;
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
            match net.link.send(peer, frame, &[], 0, 0) {
                Ok(_) => done += part,
                // The requests of a peer that is gone end when the link reports that.
                Err(Refused::Busy | Refused::Gone(_)) => break,
                Err(Refused::Fault) => return Some(Err(Unread)),
            }
            n += 1;
            if done == end {
                stream.chunks.pop_front();
                match self.feed(name, iov, done, want) {
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
}
