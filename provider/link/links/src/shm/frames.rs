//! The link as the engine drives it.

use std::fmt::Write as _;
use std::io;
use std::os::fd::RawFd;

use hmem::Span;
use link_api::{Event, Frame, Link, Path, PeerId, PollFrame, Refused, RmaCaps, Standing};
use wire::Addr;

use crate::shm::channel::ring::Mem as _;
use crate::shm::channel::rings::NO_PEER;
use crate::shm::direct::NO_PID;
use crate::shm::link::ShmLink;
use crate::shm::meet::reach::Purpose;
use crate::shm::meet::shortage_log;
use crate::shm::options::{FEW, MIDDLE_RING, NEAR, OpenOptions};

impl Link for ShmLink {
    fn addr(&self) -> Addr {
        self.channels.own.addr()
    }

    fn path(&self, _peer: PeerId) -> Path {
        let OpenOptions { eager, eager_in_a_row, eager_one_way, .. } = self.channels.options;
        Path {
            link: "shm",
            max_frame: self.channels.sending.max_frame(),
            eager,
            eager_in_a_row,
            eager_one_way,
            rma: RmaCaps::SYNC | RmaCaps::DEVICE_HANDLES,
            least_get: 0,
        }
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        self.channels.peers.named(addr)
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.channels.peers[peer.0].addr
    }

    #[inline(always)]
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        match self.send_connected(to, head, body, off, len) {
            Some(done) => done,
            None => self.send_first(to, head, body, off, len),
        }
    }

    #[inline(always)]
    fn send_short<const N: usize>(
        &mut self,
        to: PeerId,
        head: [u8; N],
        body: Span,
    ) -> Option<Result<(), Refused>> {
        let out = self.channels.peers.get_mut(to.0)?.out.as_mut()?;
        out.send_short(&head, &[body], 0, body.len())?;
        Some(out.notify(self.channels.sleep.is_registered()))
    }

    #[inline]
    fn poll(&mut self) -> Option<Event> {
        if self.channels.rings.is_held() {
            self.channels.advance(self.channels.rings.held());
        }
        if !self.copies.is_empty() {
            return self.polls().pending();
        }
        self.polls().frames()
    }

    #[inline(always)]
    fn poll_frame(&mut self) -> PollFrame {
        if !self.channels.pace.count_quick(self.channels.rings.is_held()) {
            return PollFrame::Unknown;
        }
        let mut id = self.channels.rings.quick();
        if id == NO_PEER || self.channels.is_time_for_cold() {
            // A number, in a register: what is found goes through memory if it comes from a call.
            id = self.channels.find_of_many();
        }
        let found = if id == NO_PEER { None } else { self.poll_frame_from(PeerId(id)) };
        if found.is_none() && id != self.channels.rings.sole() {
            self.channels.locate(id);
        }
        let idle = self.channels.rings.note_found(found.is_some());
        let Some(frame) = found else { return PollFrame::Nothing };
        if idle {
            self.channels.expect_answer(&frame);
        }
        PollFrame::Frame(frame)
    }

    #[inline(always)]
    fn poll_frame_from(&mut self, from: PeerId) -> Option<Frame> {
        match self.channels.peers[from.0].inb.as_mut()?.rx.peek() {
            Ok(Some(len)) => {
                self.channels.rings.hold(from.0);
                Some(Frame { from, len, slot: 0 })
            }
            // Whatever is wrong, the next poll finds it too.
            _ => None,
        }
    }

    #[inline]
    fn poll_frame_of(&mut self, from: PeerId) -> PollFrame {
        if !self.channels.pace.count_quick(self.channels.rings.is_held()) {
            return PollFrame::Unknown;
        }
        self.poll_frame_from(from).map_or(PollFrame::Nothing, PollFrame::Frame)
    }

    #[inline(always)]
    fn put_back(&mut self, frame: Frame) {
        self.channels.rings.put_back();
        if !self.channels.ends.is_empty() {
            self.channels.ends.pass(frame.from.0);
        }
    }

    #[inline]
    fn has_frames_of(&self, from: PeerId) -> bool {
        let Some(inb) = &self.channels.peers[from.0].inb else { return false };
        if self.channels.rings.holds(from.0) { inb.rx.followed() } else { inb.rx.ready() }
    }

    #[inline(always)]
    fn peek<const N: usize>(&self, frame: &Frame) -> Option<[u8; N]> {
        self.channels.peers[frame.from.0].inb.as_ref()?.rx.first()
    }

    #[inline]
    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        match &self.channels.peers[frame.from.0].inb {
            Some(inb) => inb.rx.read(off, dst),
            None => 0,
        }
    }

    #[inline(always)]
    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        let Some(inb) = &self.channels.peers[frame.from.0].inb else { return 0 };
        if let ([only], Some(at)) = (dst, inb.rx.straight(off, len)) {
            let part = only.part(doff, len);
            if let Some(part) = part.filter(|p| p.is_plain()) {
                // SAFETY: the part is valid for writes by `Span`'s invariant; its place in the ring
                // was found by `straight`, and the frame is ours until it is released.
                unsafe { inb.rx.mem().get(at, part.as_ptr(), len) };
                return len;
            }
            if let Some(part) = part.filter(|p| p.may_vanish()) {
                let from = inb.rx.mem().span(at, len);
                // SAFETY: what is mapped of the part may be written by `Span`'s invariant, and the frame is
                // ours.
                let done = unsafe { hmem::guard::copy(part.as_ptr(), from.as_ptr(), len) };
                return if done.is_ok() { len } else { 0 };
            }
        }
        inb.rx.mem().lock_for(dst);
        let mut done = 0;
        for (at, n) in inb.rx.stretches(off, len) {
            if n > 0 {
                done += hmem::copy(dst, doff + done, &[inb.rx.mem().span(at, n)], 0, n);
            }
        }
        done
    }

    // A peer is looked up once.
    #[inline(always)]
    fn take(&mut self, frame: &Frame, off: usize, dst: Span, len: usize) -> bool {
        let id = frame.from.0;
        let Some(inb) = self.channels.peers.get_mut(id).and_then(|peer| peer.inb.as_mut()) else {
            return false;
        };
        let part = dst.part(0, len).filter(|part| part.is_plain());
        let (Some(at), Some(part)) = (inb.rx.straight(off, len), part) else { return false };
        if !self.channels.rings.holds(id) {
            return false;
        }
        // SAFETY: as in `copy_out`.
        unsafe { inb.rx.mem().get(at, part.as_ptr(), len) };
        inb.advance();
        if id != self.channels.rings.sole() {
            // SAFETY: as where it was listed.
            unsafe { self.channels.rings.moved(id, inb.rx.word()) };
        }
        self.channels.rings.let_go_of(id);
        true
    }

    #[inline(always)]
    fn release(&mut self, frame: Frame) {
        if self.channels.rings.holds(frame.from.0) {
            self.channels.advance(frame.from.0);
        }
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        let peer = &self.channels.peers[peer.0];
        peer.out.is_some() || peer.inb.is_some() || peer.dying.is_some() || !peer.waiting.is_empty()
    }

    fn connect(&mut self, peer: PeerId) -> Result<(), Refused> {
        if self.is_connected(peer) { Ok(()) } else { self.calls().open_channel_for(peer.0, Purpose::Receive) }
    }

    #[inline(always)]
    fn awaits(&mut self, peer: Option<PeerId>) {
        self.channels.rings.awaits(peer.map_or(NO_PEER, |peer| peer.0));
    }

    #[inline(always)]
    fn will_send(&mut self, to: PeerId) {
        if let Some(out) = self.channels.peers.get(to.0).and_then(|peer| peer.out.as_ref()) {
            out.tx.expect_short();
        }
    }

    fn expect(&mut self, peer: PeerId) {
        self.calls().expect_peer(peer);
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        self.channels.peers[to.0].out.as_mut().is_some_and(|out| out.tx.has_room_to_spare(len))
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.channels.refuse(peer.0);
    }

    fn forget(&mut self, peer: PeerId) {
        if !self.meeting.contests.concerns(peer.0) && self.channels.let_go(peer.0) {
            self.meeting.expected.forget(peer.0);
        }
    }

    fn is_gone(&self, peer: PeerId) -> bool {
        self.channels.peers[peer.0].dying.is_some() || self.channels.peers[peer.0].has_ended()
    }

    fn arm(&mut self) -> bool {
        let quiet = self.polls().arm();
        self.channels.sleep.set_quiet(quiet);
        quiet
    }

    fn is_armed(&self) -> bool {
        let nothing_since =
            self.copies.is_empty() && self.channels.ends.is_empty() && !self.channels.sleep.is_to_retry();
        self.may_sleep() && nothing_since
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.channels.sleep.fd())
    }

    fn lack(&self) -> Option<io::Error> {
        shortage_log::now(&self.meeting.shortage, |n| self.meeting.listening.has_room(n))
    }

    fn describe(&self, peer: PeerId) -> String {
        let peer = &self.channels.peers[peer.0];
        let ring = peer.out.as_ref().map_or(self.channels.options.ring, |out| out.tx.mem().ring_bytes());
        let mut line = format!("shm {} KiB ring, ", ring >> 10);
        let pid = peer.pid();
        let _ = match (&peer.no_cma, pid) {
            _ if !self.channels.options.cma => write!(line, "frames only: cma is switched off"),
            (Some(why), _) => write!(line, "frames only: {why}"),
            (None, Some(pid)) if pid <= 0 => write!(line, "frames only: {NO_PID}"),
            (None, Some(pid)) => write!(line, "cma (process_vm_readv) with pid {pid}"),
            (None, None) => write!(line, "not connected"),
        };
        let _ = match peer.devices.refusal() {
            Some(why) => write!(line, "; device memory: {why}"),
            None if self.channels.options.device_direct => Ok(()),
            None => write!(line, "; device memory: staged, device_direct is switched off"),
        };
        line
    }

    fn standing(&self) -> Vec<Standing> {
        vec![Standing { link: "shm", offers: Ok(offers(&self.channels.options)) }]
    }
}

/// What the link offers that is opened so, in words.
pub fn offers(options: &OpenOptions) -> String {
    let rings = match (options.long_ring >> 10, options.ring >> 10) {
        (long, short) if long > short => {
            let middle = (MIDDLE_RING >> 10).clamp(short, long);
            format!(
                "a ring of {long} KiB from each to {NEAR} others, of {middle} KiB to {} more, and of {short} KiB to all else",
                FEW - NEAR
            )
        }
        (_, all) => format!("a ring of {all} KiB from each to each other"),
    };
    let long = match options.cma {
        true => "long messages straight from one process to the other, where that is allowed",
        false => "long messages by the rings too, since cma is switched off",
    };
    format!(
        "processes of the same user on this host: {rings}, in memory of its own (memfd, not /dev/shm); {long}"
    )
}
