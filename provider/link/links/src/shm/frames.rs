//! The calls of the engine: frames, and access to memory of peers.

use std::fmt::Write as _;
use std::io;
use std::os::fd::RawFd;

use hmem::{Caps, Span};
use ipc::pieces;
use link_api::{
    Allow, Channel, Connect, Devices, Direct, Event, Frame, FrameLink, FrameSource, GroupLink, HandleNote,
    Hint, InUse, LandAt, Landing, Link, NoDirect, OpId, Parting, Path, PeerId, PieceCounter, PollFrame,
    Refused, Region, RegionVersion, Revoke, RmaCaps, RmaLink, Sent, Setting, SleepLink, Standing, WaitFd,
    Way,
};
use wire::{Addr, Handle, Seg};

use crate::shm::channel::ring::{self, Mem as _};
use crate::shm::channel::rings::NO_PEER;
use crate::shm::channel::segment;
use crate::shm::direct::NO_PID;
use crate::shm::group::calls::Calls as GroupCalls;
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

    fn set(&mut self, setting: Setting<'_>) {
        if let Setting::Patience(patience) = setting {
            self.channels.access.set_patience(patience);
        }
    }

    fn channel(&self, peer: PeerId) -> Channel {
        let peer = &self.channels.peers[peer.0];
        match peer.is_connected() {
            false => Channel::None,
            true if peer.dying.is_some() || peer.has_ended() => Channel::Ended,
            true => Channel::Open,
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        match how {
            Connect::Expected => self.calls().expect_peer(peer),
            Connect::Now | Connect::ToSend if self.channels.peers[peer.0].is_connected() => {}
            Connect::Now | Connect::ToSend => return self.calls().open_channel_for(peer.0, Purpose::Receive),
        }
        Ok(())
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match how {
            Parting::Forgotten => {
                if !self.meeting.contests.concerns(peer.0) && self.channels.let_go(peer.0) {
                    self.meeting.expected.forget(peer.0);
                }
            }
            Parting::CutOff => self.channels.refuse(peer.0),
        }
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

impl FrameLink for ShmLink {
    #[inline(always)]
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
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
    ) -> Option<Result<Sent, Refused>> {
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
    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        if let FrameSource::Next(from) = of {
            return self.channels.peek_frame(from).map_or(PollFrame::Unknown, PollFrame::Frame);
        }
        if !self.channels.pace.count_quick(self.channels.rings.is_held()) {
            return PollFrame::Unknown;
        }
        if let FrameSource::Only(from) = of {
            return self.channels.peek_frame(from).map_or(PollFrame::Nothing, PollFrame::Frame);
        }
        let mut id = self.channels.rings.quick();
        if id == NO_PEER || self.channels.is_time_for_cold() {
            // A number, in a register: what is found goes through memory if it comes from a call.
            id = self.channels.find_of_many();
        }
        let found = if id == NO_PEER { None } else { self.channels.peek_frame(PeerId(id)) };
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
    fn land(&mut self, frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        debug_assert!(to.is_none(), "a frame of {} bytes that has not begun", frame.len);
        self.channels.rings.put_back();
        if !self.channels.ends.is_empty() {
            self.channels.ends.pass(frame.from.0);
        }
        Landing::Left
    }

    #[inline]
    fn has_frames_of(&self, from: PeerId) -> bool {
        let Some(inb) = &self.channels.peers[from.0].inb else { return false };
        if self.channels.rings.holds(from.0) { inb.rx.followed() } else { inb.rx.ready() }
    }

    #[inline(always)]
    fn peek<const N: usize>(&self, frame: &Frame) -> Option<[u8; N]> {
        const { assert!(N <= ring::SHORT) };
        let (first, len) = self.channels.rings.frame_of(frame.from.0)?;
        // SAFETY: so many bytes of the frame are there; whatever a peer may write to them meanwhile, any
        // bytes are a value.
        (len >= N).then(|| unsafe { first.cast::<[u8; N]>().read_unaligned() })
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
    fn take(&mut self, frame: &Frame, off: usize, dst: Span, _apart: bool) -> bool {
        let (id, first, held) = self.channels.rings.frame();
        if (id, held) != (frame.from.0, frame.len) {
            return false;
        }
        let Some(len) = held.checked_sub(off) else { return false };
        if len > dst.len() || !dst.is_plain() {
            return false;
        }
        if held > ring::SHORT {
            // SAFETY: the span is valid for writes by its invariant, and has room for so many bytes.
            return unsafe { self.take_longer(id, off, dst.as_ptr(), len) };
        }
        let inb = self.channels.peers.get_mut(id).and_then(|peer| peer.inb.as_mut());
        let Some(inb) = inb else { return false };
        // SAFETY: so many bytes are behind `off`, all of them at `first`, and are not the sender's until the
        // frame is given back. The span is valid for writes by its invariant, and has as many.
        unsafe { segment::copy(first.add(off), dst.as_ptr(), len) };
        inb.advance_line();
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

    #[inline(always)]
    fn hint(&mut self, hint: Hint) {
        match hint {
            Hint::ReceiveFrom(peer) => self.channels.rings.awaits(peer.map_or(NO_PEER, |peer| peer.0)),
            Hint::SendTo(to) => {
                if let Some(out) = self.channels.peers.get(to.0).and_then(|peer| peer.out.as_ref()) {
                    out.tx.expect_short();
                }
            }
        }
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        self.channels.peers[to.0].out.as_mut().is_some_and(|out| out.tx.has_room_to_spare(len))
    }
}

impl SleepLink for ShmLink {
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

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        which.only(self.channels.sleep.fd())
    }
}

impl RmaLink for ShmLink {
    fn groups(&mut self) -> Option<Box<dyn GroupLink + '_>> {
        Some(Box::new(GroupCalls(self)))
    }

    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        self.peer_memory().transfer(way, peer, access)
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        let out = self.channels.peers[with.0].out.as_mut()?;
        let (slot, generation) = out.pieces.open(|slot| out.tx.mem().pieces(slot))?;
        Some(PieceCounter { slot, generation })
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        let peer = &self.channels.peers[with.0];
        let mem = match mine {
            true => peer.out.as_ref()?.tx.mem(),
            false => peer.inb.as_ref()?.rx.mem(),
        };
        pieces::claim(mem.pieces(counter.slot), counter.generation, of)
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        let out = self.channels.peers[with.0].out.as_ref();
        out.is_none_or(|out| pieces::is_begun(out.tx.mem().pieces(counter.slot), counter.generation))
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        if let Some(out) = &mut self.channels.peers[with.0].out {
            out.pieces.close(counter.slot, counter.generation, |slot| out.tx.mem().pieces(slot));
        }
    }

    fn allow(&mut self, what: Allow<'_>) {
        match what {
            Allow::Region(region, span) if span.can(Caps::CMA) => self.channels.access.publish(region),
            // Of a device: only what peers may ask for.
            Allow::Region(..) => {}
            Allow::Request(to, request) => self.channels.peers[to.0].renew_request(request),
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        match what {
            Revoke::Region(key) => {
                self.channels.access.conceal(&self.channels.own, &self.channels.peers, key)
            }
            Revoke::Request(from, request) => {
                self.channels.access.revoke(&self.channels.own, &self.channels.peers, from, request)
            }
            Revoke::All => self.channels.access.close(&self.channels.own, &self.channels.peers),
        }
    }

    fn published(&mut self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        let peer = &self.channels.peers[by.0];
        if !self.channels.options.cma || peer.no_cma.is_some() {
            return None;
        }
        peer.out.as_ref()?.mr_table.as_ref()?.find(key)
    }

    /// One device of two processes: within one process, no copy waits for its turn.
    fn devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> Devices {
        let peer = &self.channels.peers[peer.0];
        if peer.devices.are_two(theirs, ours) {
            Devices::Two
        } else if peer.pid() != Some(self.channels.own.pid() as i32) && peer.devices.are_one(theirs, ours) {
            Devices::One
        } else {
            Devices::Unknown
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span], _: Way) -> Option<Vec<Handle>> {
        if !self.channels.options.device_direct || !hmem::can(iov, Caps::DEVICE) {
            return None;
        }
        let peer = &mut self.channels.peers[to.0];
        peer.devices.export(iov, format_args!("{} -> {}", self.channels.own.addr(), peer.addr))
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        let peer = &mut self.channels.peers[peer.0];
        match what {
            HandleNote::Exported(handle) => peer.devices.note_exported(handle),
            HandleNote::Imported(handle) if !peer.devices.note_imported(handle) => log::warn!(
                "{}: refused a handle from {}: kind {}, {} bytes at {:#x}; that peer has a defect or is no Strait",
                self.channels.own.addr(),
                peer.addr,
                handle.how,
                handle.len,
                handle.base
            ),
            HandleNote::Imported(_) | HandleNote::Retired(_) => {}
        }
    }

    fn start(&mut self, way: Way, id: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let request = access.operation()?;
        let peer = &mut self.channels.peers[id.0];
        let pid = peer.pid().filter(|_| peer.dying.is_none()).ok_or(NoDirect::Fault)?;
        if !self.channels.options.device_direct {
            return Err(NoDirect::Never);
        }
        let (own, addr) = (self.channels.own.addr(), peer.addr);
        let plan = peer.devices.plan(way, pid, access, format_args!("{own} -> {addr}"))?;
        peer.enter_flight(request)?;
        let pending = plan.start().map_err(|why| {
            peer.leave_flight();
            let why = || format!("the device does not copy ({why}): it is staged");
            peer.devices.refuse(format_args!("{own} -> {addr}"), why);
            NoDirect::Never
        })?;
        self.channels.pace.be_slow();
        Ok(self.copies.add(id, pending))
    }

    fn cancel(&mut self, copy: OpId) {
        self.copies.cancel(copy);
        self.polls().copy_is_over(copy);
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
