//! Frames to and from peers: what is sent at once or as soon as there is room, and what is read of one that
//! has come.

use arrayvec::ArrayVec;
use hmem::Span;
use wire::{Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use crate::endpoint::device::staging::{PARTS_PER_CALL, Source, Unread};
use crate::endpoint::net::Net;
use crate::endpoint::parts::header::{Header, frame as frame_of, push};
use crate::endpoint::parts::quota;
use crate::endpoint::parts::request::{Meta, NO_REQUEST};
use link_api::{Frame, PeerId, Refused, RmaLink, Row, Sent};

impl<L: RmaLink> Net<L> {
    /// Sends a frame that must not get lost: now, or as soon as there is room.
    pub(in crate::endpoint) fn send_or_queue(&mut self, peer: PeerId, frame: &[u8]) {
        self.send_or_queue_body(peer, frame, &[], 0);
    }

    /// Sends a frame that must not get lost, with the first `len` bytes of `body` behind it, as they are now;
    /// `false` if a device could not read them.
    pub(in crate::endpoint) fn send_or_queue_body(
        &mut self,
        peer: PeerId,
        head: &[u8],
        body: &[Span],
        len: usize,
    ) -> bool {
        if !self.peer(peer).flow.has_backlog() {
            match self.link.send(peer, head, body, 0, len) {
                // A peer that is gone needs no answer: the link reports its end, or has.
                Ok(_) | Err(Refused::Gone(_)) => return true,
                Err(Refused::Busy) => self.peers.add_backlog(peer),
                Err(Refused::Fault) => return false,
            }
        }
        let mut frame = head.to_vec();
        frame.resize(head.len() + len, 0);
        let read = hmem::read(body, 0, &mut frame[head.len()..]);
        if read == len {
            let size = quota::cost(&frame);
            self.peer(peer).flow.push_backlog(frame);
            self.owe(peer, size);
        }
        read == len
    }

    pub(in crate::endpoint) fn fin(&mut self, peer: PeerId, req: u64, status: Status, bytes: usize) {
        let head = Head::new(WireOp::Fin, Flags::empty(), status as u16, req, bytes as u64);
        self.send_or_queue(peer, head.as_bytes());
    }

    /// The answer to a write or a `Flush`, which is that to the writes before it, too.
    #[inline]
    pub(in crate::endpoint) fn fin_of_all(&mut self, peer: PeerId, req: u64, status: Status, bytes: usize) {
        self.peer(peer).unanswered = 0;
        self.fin(peer, req, status, bytes);
    }

    /// Answers a write of this name if it requested that or is refused; else the answer to a later one does.
    #[inline(always)]
    pub(in crate::endpoint) fn answer_write(
        &mut self,
        peer: PeerId,
        flags: Flags,
        name: u64,
        status: Status,
        len: usize,
    ) {
        if flags.contains(Flags::ACK) {
            self.fin_of_all(peer, name, status, len);
        } else if status != Status::Ok {
            self.refuse(peer, name, status, false);
        } else if name != NO_REQUEST {
            self.peer(peer).unanswered = name;
        }
    }

    /// Answers the last writes, for which the peer has requested no answer: the endpoint closes.
    pub(crate) fn answer_writes(&mut self) {
        for peer in self.peers.ids() {
            match std::mem::take(&mut self.peers[peer].unanswered) {
                NO_REQUEST => {}
                name => self.fin(peer, name, Status::Ok, 0),
            }
        }
    }

    /// Asks a peer that runs ahead to offer long messages for a while.
    pub(in crate::endpoint) fn send_ahead(&mut self, peer: PeerId) {
        let head = Head::new(WireOp::Pause, Flags::empty(), 1, 0, 0);
        self.send_or_queue(peer, head.as_bytes());
    }

    pub(in crate::endpoint) fn send_pause(&mut self, peer: PeerId, on: bool) {
        let head = Head::new(WireOp::Pause, Flags::empty(), 0, 0, on.into());
        self.send_or_queue(peer, head.as_bytes());
    }

    /// There is room again.
    #[cold]
    pub(in crate::endpoint) fn resume_peers(&mut self) {
        self.unhurried.resume_all();
        for peer in self.peers.ids() {
            if std::mem::take(&mut self.peer(peer).pause_sent) {
                self.send_pause(peer, false);
            }
        }
    }

    /// Notifies a peer that requested no answer why its access was refused, which has a name unless it is 0.
    pub(in crate::endpoint) fn refuse(&mut self, peer: PeerId, name: u64, status: Status, atomic: bool) {
        if name != NO_REQUEST {
            return self.fin(peer, name, status, 0);
        }
        let head = Head::new(WireOp::Refused, Flags::empty(), status as u16, 0, atomic.into());
        self.send_or_queue(peer, head.as_bytes());
    }

    /// The header of a frame, if it has none of the frills that the general way is for.
    #[inline(always)]
    pub(in crate::endpoint) fn plain_head(&self, frame: &Frame) -> Option<(Head, Flags)> {
        const WITH: Flags = Flags::TAGGED.union(Flags::CQ_DATA).union(Flags::ACK);
        let bytes = self.link.peek::<{ Head::LEN }>(frame)?;
        let head: Head = zerocopy::transmute!(bytes);
        let flags = head.flags().filter(|flags| WITH.contains(*flags))?;
        Some((head, flags))
    }

    /// How many headers a message has, and the sender's request, if it waits to hear of the delivery.
    #[inline(always)]
    pub(in crate::endpoint) fn ack_of(&self, frame: &Frame, flags: Flags) -> Option<(usize, Option<u64>)> {
        const WITH: usize = Head::LEN + size_of::<u64>();
        if !flags.contains(Flags::ACK) {
            return Some((Head::LEN, None));
        }
        let bytes: [u8; WITH] = self.link.peek(frame)?;
        let req = bytes[Head::LEN..].try_into().ok()?;
        Some((WITH, Some(u64::from_le_bytes(req))))
    }

    /// Copies the `len` bytes that are in a frame from `off` on to a buffer that has room for them, and gives
    /// the frame back. `false`: not all of them could be copied, and nothing else has happened.
    #[inline(always)]
    pub(in crate::endpoint) fn take(&mut self, frame: &Frame, off: usize, to: Span, len: usize) -> bool {
        self.link.take(frame, off, to, false)
            || self.take_apart((frame.from, frame.len, frame.slot), off, to.apart(), len)
    }

    /// As [`Net::take`], wherever the bytes are: over the end of their ring, or come by another link.
    #[inline(never)]
    fn take_apart(&mut self, of: (PeerId, usize, u32), off: usize, to: Span, len: usize) -> bool {
        let frame = Frame { from: of.0, len: of.1, slot: of.2 };
        if self.link.take(&frame, off, to, true) {
            return true;
        }
        let all = self.link.copy_out(&frame, off, &[to], 0, len) == len;
        if all {
            self.link.release(frame);
        }
        all
    }

    /// Copies up to `len` bytes from `at` on to byte `doff` of `dst`, in the call; how many there were.
    pub(in crate::endpoint) fn copy_from(
        &self,
        source: Source<'_>,
        at: usize,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        match source {
            Source::Frame(frame, off) => self.link.copy_out(frame, off + at, dst, doff, len),
            Source::Held(bytes) => hmem::write(dst, doff, &bytes[at..at + len]),
        }
    }

    /// Reads up to as many bytes as `buf` holds, from `at` on; how many there were.
    pub(in crate::endpoint) fn read_from(&self, source: Source<'_>, at: usize, buf: &mut [u8]) -> usize {
        match source {
            Source::Frame(frame, off) => self.link.read(frame, off + at, buf),
            Source::Held(bytes) => {
                let rest = &bytes[at.min(bytes.len())..];
                let n = rest.len().min(buf.len());
                buf[..n].copy_from_slice(&rest[..n]);
                n
            }
        }
    }

    pub(in crate::endpoint) fn meta(&mut self, peer: PeerId, head: &Head, flags: Flags, len: usize) -> Meta {
        Meta {
            peer,
            src: self.peer(peer).src,
            tagged: flags.contains(Flags::TAGGED),
            tag: head.tag.get(),
            data: flags.contains(Flags::CQ_DATA).then(|| head.data.get()),
            len,
        }
    }

    /// Sends bytes that the peer has requested, from `from` on.
    pub(in crate::endpoint) fn send_parts(&mut self, peer: PeerId, theirs: u64, from: usize, bytes: &[u8]) {
        let most = self.peer(peer).flow.limits().max_frame() - Head::LEN;
        for (at, part) in (from..).step_by(most).zip(bytes.chunks(most)) {
            let head = Head::new(WireOp::Data, Flags::empty(), 0, theirs, at as u64);
            self.send_or_queue(peer, &frame_of(&head, part));
        }
    }

    /// Sends what an atomic has found: `few` bytes, or `many`.
    pub(in crate::endpoint) fn send_result(
        &mut self,
        peer: PeerId,
        name: u64,
        few: Option<&[u8]>,
        many: &[u8],
    ) {
        let head = Head::new(WireOp::Result, Flags::empty(), 0, name, 0);
        match few {
            Some(few) => {
                let mut answer = Header::new();
                push(&mut answer, &head);
                push(&mut answer, few);
                self.send_or_queue(peer, &answer);
            }
            None => self.send_or_queue(peer, &frame_of(&head, many)),
        }
    }

    pub(in crate::endpoint) fn bounce_done(&mut self, peer: PeerId, theirs: u64, off: usize, ok: bool) {
        let status = if ok { Status::Ok } else { Status::Io };
        let head = Head::new(WireOp::BounceDone, Flags::empty(), status as u16, theirs, off as u64);
        self.send_or_queue(peer, head.as_bytes());
    }

    /// A turn of a stream that is copied into the frames themselves: how far it is then, and how many frames
    /// were sent.
    pub(in crate::endpoint) fn stream_directly(
        &mut self,
        (peer, theirs): (PeerId, u64),
        iov: &[Span],
        mut done: usize,
        want: usize,
        most: usize,
    ) -> Result<(usize, usize), Unread> {
        let mut n = 0;
        let may_send = !self.peers[peer].flow.has_backlog();
        while may_send && done < want && n < PARTS_PER_CALL {
            let places = (done..want).step_by(most).take(Row::FRAMES.min(PARTS_PER_CALL - n));
            let heads: ArrayVec<_, { Row::FRAMES }> =
                places.map(|at| Head::new(WireOp::Data, Flags::empty(), 0, theirs, at as u64)).collect();
            let bytes: ArrayVec<_, { Row::FRAMES }> = heads.iter().map(Head::as_bytes).collect();
            let len = (want - done).min(bytes.len() * most);
            match self.link.send_row(peer, Row { heads: &bytes, body: iov, off: done, most, len }) {
                Ok(0) => break,
                Ok(sent) => (done, n) = (want.min(done + sent * most), n + sent),
                // The requests of a peer that is gone end when the link reports that.
                Err(Refused::Busy | Refused::Gone(_)) => break,
                Err(Refused::Fault) => return Err(Unread),
            }
        }
        Ok((done, n))
    }

    /// Sends a message of one buffer in any frame. What it is made of comes in registers: neither its head
    /// nor its buffer's place are in memory where this is not called.
    #[inline(never)]
    pub(in crate::endpoint) fn send_plain(
        &mut self,
        peer: PeerId,
        flags: Flags,
        tag: u64,
        data: u64,
        span: Span,
    ) -> Result<Sent, Refused> {
        let head = Head::new(WireOp::Eager, flags, 0, tag, data);
        self.link.send(peer, zerocopy::IntoBytes::as_bytes(&head), &[span], 0, span.len())
    }
}
