//! The link to peers on this host.
//!
//! A channel goes one way: the sender makes it, at its first send, and may fill it before the
//! receiver has noticed. Two peers that talk both ways have two channels, each a ring in a segment
//! of its own and a socket which says that the other end is alive, and which wakes it.

mod ahead;
mod board;
mod connect;
mod device;
mod direct;
mod expected;
mod hello;
mod open;
mod pack;
mod peer;
mod ring;
mod rma;
mod segment;
mod service;
mod wake;
mod window;

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use hmem::Span;
use hmem::flight::Flights;
use ipc::fence::Barrier;
use ipc::rights::Spare;
use ipc::{Poller, socket};
use link_api::{Event, Frame, Link, OpId, Path, PeerId, PollFrame, Refused, RmaCaps};
use wire::Addr;

use crate::name::Name;
use crate::space::Space;
use board::Board;
use direct::Parted;
use expected::Expected;
use peer::Peer;
use ring::Mem as _;

pub use ahead::speculation_barrier;
pub(crate) use ipc::cvt;
pub use open::{DEFAULT_RING, FEW, LONG_RING, MAX_RING, MIN_RING, OpenOptions, eager_most};
pub use window::{WindowId, Windows};

/// Why the memory of a process in another pid namespace is not reached directly.
const NO_PID: &str = "its pid is not visible here (another pid namespace)";

const HOT: usize = 4;
/// Hot rings looked at in one poll that finds nothing, and polls between two looks at a ring that is
/// not hot: so that idle peers cost next to nothing, and get a turn also while the hot ones never stop.
const LOOKS: usize = 2;
const REST: u32 = 4;
const NOBODY: u32 = u32::MAX;

/// Polls between two looks at the clock, the less the longer they take: looking costs more than they do.
const PACE: std::ops::RangeInclusive<u32> = 16..=128;
/// Time between two looks at the sockets.
const GAP: Duration = Duration::from_micros(50);
/// Who has sent nothing for so long is not hot any more.
const COOL: Duration = Duration::from_millis(1);
/// The same while nobody has sent anything yet: the first peer should not wait.
const EAGER_GAP: Duration = Duration::from_micros(2);

/// One endpoint's link to all peers on this host.
#[derive(Debug)]
pub struct ShmLink {
    peers: Vec<Peer>,
    /// Those that were forgotten, to be used again.
    free: Vec<u32>,
    /// Peers that sent lately, the first `hot_len` of them, and whose turn it is.
    hot: [u32; HOT],
    hot_len: usize,
    hot_turn: usize,
    /// Every peer with a channel to us, and whose turn it is.
    ins: Vec<u32>,
    ins_turn: usize,
    /// Whose frame was handed out, or `NOBODY`.
    held: u32,
    /// The last glance saw nothing.
    idle: bool,
    /// Polls so far, and at which one to look at the clock.
    calls: u32,
    clock_at: u32,
    pace: u32,
    /// `armed`, or `dying` is not empty, or `ins` is.
    slow: bool,
    armed: bool,
    dying: VecDeque<u32>,
    barrier: Barrier,
    max_frame: usize,
    /// When the clock, and when the sockets were last looked at.
    looked: Instant,
    serviced: Instant,
    /// When it was last looked which peers still send.
    cooled: Instant,

    addr: Addr,
    ids: HashMap<Addr, PeerId>,
    /// Peers that call us by another name too, by their name and that one: these count as peers of
    /// their own, so that either has its own channels.
    callers: HashMap<(Addr, Addr), PeerId>,
    /// Whether we serve every address of the host.
    everywhere: bool,
    poller: Poller,
    listener: OwnedFd,
    /// Accepted, but no hello yet, or no room for what it is about.
    guests: Vec<Option<service::Guest>>,
    /// Channels under the name of a peer that has one, and lives as far as can be seen.
    contested: Vec<service::Contested>,
    /// Since when there are connections that wait to be accepted, as far as is known.
    behind: Option<Instant>,
    /// A peer has many successors that wait for its end.
    crowded: bool,
    /// What peers may reach without our help.
    board: Board,
    /// A descriptor that gives its place away where one is needed for a moment.
    spare: Spare,
    /// Since when there are no descriptors, or no memory, for peers that call.
    lacking: Option<Instant>,
    /// Peers whose ring had no room lately.
    starved: Vec<u32>,
    /// A peer could not be reached just yet, so the next `arm` refuses to sleep: nobody would wake
    /// us when it can.
    connecting: bool,
    options: OpenOptions,
    /// Where a packed frame is put together that runs over a ring's end.
    scratch: Vec<u8>,
    incarnation: u64,
    pid: u32,
    space: Space,
    /// Channels that were given up while a peer was inside an access.
    parted: Vec<Parted>,
    /// Peers that receives wait for, and that were not met.
    expected: Expected,
    /// Peers have been told that nothing here is accessed any more.
    closed: bool,
    /// Copies by a device, in flight, and from or to which peers' memory.
    flying: Flights<OpId>,
    flown: Vec<(OpId, PeerId)>,
    /// Polls since a driver was last asked for them.
    unasked: u32,
    copies_started: u64,
    warned_cma: bool,
    warned_uid: bool,
    warned_fds: bool,
    /// Reserves the port.
    _name: Name,
}

impl ShmLink {
    /// Whose ring it is to be looked at, of those that are looked at first.
    #[inline(always)]
    fn next_hot(&mut self) -> u32 {
        let id = self.hot[self.hot_turn % HOT];
        self.hot_turn = if self.hot_turn + 1 < self.hot_len { self.hot_turn + 1 } else { 0 };
        id
    }

    /// The next frame of this peer.
    #[inline]
    fn next_of(&mut self, id: u32) -> Option<Event> {
        let inb = self.peers[id as usize].inb.as_mut()?;
        match inb.rx.peek() {
            Ok(None) => None,
            Ok(Some(len)) => {
                self.held = id;
                Some(Event::Frame(Frame { from: PeerId(id), len, slot: 0 }))
            }
            Err(ring::Broken) => {
                self.broke(id);
                None
            }
        }
    }

    /// Gives the frame at hand of this peer back.
    #[inline(always)]
    fn advance(&mut self, id: u32) {
        self.held = NOBODY;
        if let Some(inb) = &mut self.peers[id as usize].inb {
            inb.advance();
        }
    }

    /// The next one of all peers, if it is time to look at one that is not hot.
    #[inline(always)]
    fn next_cold(&mut self) -> Option<u32> {
        if self.ins.len() <= self.hot_len || self.calls % REST != 0 {
            return None;
        }
        let generation = if self.ins_turn < self.ins.len() { self.ins_turn } else { 0 };
        self.ins_turn = generation + 1;
        self.ins.get(generation).copied()
    }

    /// Looks at one that is not hot.
    #[inline(never)]
    fn cold(&mut self, id: u32) -> Option<Event> {
        let event = self.next_of(id)?;
        self.warm(id);
        Some(event)
    }

    /// Puts a peer among those looked at in every poll.
    #[inline(never)]
    fn warm(&mut self, id: u32) {
        if self.hot[..self.hot_len].contains(&id) {
            return;
        }
        if self.hot_len < HOT {
            self.hot_len += 1;
            self.hot[self.hot_len - 1] = id;
        } else {
            self.hot[self.hot_turn] = id;
        }
    }

    /// Looks at the sockets if it is time to.
    fn tick(&mut self) {
        let gap = if self.ins.is_empty() { EAGER_GAP } else { GAP };
        let now = Instant::now();
        let since = now.duration_since(std::mem::replace(&mut self.looked, now));
        let pace = if since > GAP { self.pace / 2 } else { self.pace * 2 };
        self.pace = pace.clamp(*PACE.start(), *PACE.end());
        if self.hot_len > 1 && now.duration_since(self.cooled) >= COOL {
            self.cooled = now;
            self.cool();
        }
        if now.duration_since(self.serviced) >= gap {
            self.serviced = now;
            hmem::registry::check();
            self.service();
        }
    }

    /// A frame has come after a look that found none: it may be answered.
    #[inline(always)]
    fn expect_answer(&self, frame: &Frame) {
        if let Some(out) = &self.peers[frame.from.0 as usize].out {
            out.tx.expect(frame.len);
        }
    }

    /// The next thing that came by a ring.
    #[inline(always)]
    fn poll_frames(&mut self) -> Option<Event> {
        self.calls = self.calls.wrapping_add(1);
        if self.calls == self.clock_at || self.slow {
            if let Some(event) = self.poll_slow() {
                return Some(event);
            }
        }
        if let Some(event) = self.next_cold().and_then(|id| self.cold(id)) {
            return Some(event);
        }
        for _ in 0..self.hot_len.min(LOOKS) {
            let id = self.next_hot();
            if let Some(event) = self.next_of(id) {
                return Some(event);
            }
        }
        None
    }

    /// What a poll has to do beyond looking at hot rings.
    #[cold]
    fn poll_slow(&mut self) -> Option<Event> {
        if self.armed {
            self.armed = false;
            for &id in &self.ins {
                if let Some(inb) = &self.peers[id as usize].inb {
                    wake::promise(inb.rx.mem(), self.barrier);
                }
            }
            self.service();
        } else if self.calls == self.clock_at || self.ins.is_empty() {
            self.tick();
        }
        if self.calls == self.clock_at {
            self.clock_at = self.calls.wrapping_add(self.pace);
        }
        let event = self.reap();
        self.slow = !self.dying.is_empty() || self.ins.is_empty();
        event
    }

    /// Sends on an open channel; `None`: there is none.
    #[inline(always)]
    pub(crate) fn send_connected(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Option<Result<(), Refused>> {
        let out = self.peers[to.0 as usize].out.as_mut()?;
        if out.send_short(head, body, off, len).is_some() {
            out.ring(self.barrier.registered);
            return Some(Ok(()));
        }
        self.put_longer(to, head, body, off, len)
    }

    /// Likewise, of any length.
    #[inline(never)]
    fn put_longer(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Option<Result<(), Refused>> {
        let out = self.peers[to.0 as usize].out.as_mut()?;
        let total = head.len() + len;
        assert!(total <= self.max_frame, "frame longer than Path::max_frame");
        match out.tx.reserve(total) {
            Ok(true) => {}
            Ok(false) => return Some(Err(self.starve(to.0, total))),
            Err(ring::Broken) => return Some(Err(self.broke(to.0))),
        }
        // SAFETY: `total` bytes were found to have room, and `head` are the first of them.
        unsafe { out.tx.write(0, head) };
        if len > 0 {
            let done = out.copy_in(head.len(), body, off, len);
            if done != len {
                // Nothing was published.
                return Some(Err(Refused::Fault));
            }
        }
        out.tx.publish(total);
        out.ring(self.barrier.registered);
        Some(Ok(()))
    }

    /// Sends to one we have no channel to yet.
    #[cold]
    fn send_first(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        self.open_channel(to.0)?;
        self.send_connected(to, head, body, off, len).unwrap_or(Err(Refused::Busy))
    }

    #[cold]
    fn starve(&mut self, id: u32, len: usize) -> Refused {
        if let Some(out) = &mut self.peers[id as usize].out {
            if out.starved.replace(len).is_none() {
                self.starved.push(id);
            }
        }
        Refused::Busy
    }

    /// Whether a peer has made the room that was missing. From now on it will say when it does.
    fn fed(&mut self) -> bool {
        let mut fed = false;
        let peers = &mut self.peers;
        self.starved.retain(|&id| {
            let Some(out) = &mut peers[id as usize].out else { return false };
            let Some(len) = out.starved else { return false };
            wake::want_room(out.tx.mem());
            if out.tx.reserve(len) == Ok(false) {
                return true;
            }
            out.starved = None;
            fed = true;
            false
        });
        fed
    }
}

impl Link for ShmLink {
    fn addr(&self) -> Addr {
        self.addr
    }

    fn path(&self, _peer: PeerId) -> Path {
        let OpenOptions { eager, eager_in_a_row, .. } = self.options;
        Path {
            link: "shm",
            max_frame: self.max_frame,
            eager,
            eager_in_a_row,
            rma: RmaCaps::SYNC | RmaCaps::DEVICE_HANDLES,
        }
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let (peers, free) = (&mut self.peers, &mut self.free);
        *self.ids.entry(*addr).or_insert_with(|| peer::meet(peers, free, *addr))
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.peers[peer.0 as usize].addr
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

    #[inline]
    fn poll(&mut self) -> Option<Event> {
        if self.held != NOBODY {
            self.advance(self.held);
        }
        if !self.flying.is_empty() {
            return self.poll_flying();
        }
        self.poll_frames()
    }

    #[inline(always)]
    fn poll_frame(&mut self) -> PollFrame {
        let calls = self.calls.wrapping_add(1);
        if (calls == self.clock_at) | self.slow | (self.held != NOBODY) | !self.flying.is_empty() {
            return PollFrame::Unknown;
        }
        self.calls = calls;
        if let Some(frame) = self.next_cold().and_then(|id| self.poll_frame_from(PeerId(id))) {
            self.warm(frame.from.0);
            return PollFrame::Frame(frame);
        }
        let found = match self.hot_len {
            1 => self.poll_frame_from(PeerId(self.hot[0])),
            n => (0..n.min(LOOKS)).find_map(|_| {
                let id = self.next_hot();
                self.poll_frame_from(PeerId(id))
            }),
        };
        let idle = std::mem::replace(&mut self.idle, found.is_none());
        let Some(frame) = found else { return PollFrame::Nothing };
        if idle {
            self.expect_answer(&frame);
        }
        PollFrame::Frame(frame)
    }

    #[inline(always)]
    fn poll_frame_from(&mut self, from: PeerId) -> Option<Frame> {
        match self.peers[from.0 as usize].inb.as_mut()?.rx.peek() {
            Ok(Some(len)) => {
                self.held = from.0;
                Some(Frame { from, len, slot: 0 })
            }
            // Whatever is wrong, the next poll finds it too.
            _ => None,
        }
    }

    #[inline]
    fn has_frames_of(&self, from: PeerId) -> bool {
        let Some(inb) = &self.peers[from.0 as usize].inb else { return false };
        if self.held == from.0 { inb.rx.followed() } else { inb.rx.ready() }
    }

    #[inline]
    fn peek<const N: usize>(&self, frame: &Frame) -> Option<[u8; N]> {
        self.peers[frame.from.0 as usize].inb.as_ref()?.rx.first()
    }

    #[inline]
    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        match &self.peers[frame.from.0 as usize].inb {
            Some(inb) => inb.rx.read(off, dst),
            None => 0,
        }
    }

    #[inline(always)]
    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        let Some(inb) = &self.peers[frame.from.0 as usize].inb else { return 0 };
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
                // SAFETY: what is mapped of the part may be written by `Span`'s invariant, and the frame is ours.
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

    #[inline(always)]
    fn release(&mut self, frame: Frame) {
        if self.held == frame.from.0 {
            self.advance(frame.from.0);
        }
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        let peer = &self.peers[peer.0 as usize];
        peer.out.is_some() || peer.inb.is_some() || peer.dying.is_some() || !peer.waiting.is_empty()
    }

    fn connect(&mut self, peer: PeerId) -> Result<(), Refused> {
        if self.is_connected(peer) { Ok(()) } else { self.open_channel(peer.0) }
    }

    fn expect(&mut self, peer: PeerId) {
        self.expect_peer(peer);
    }

    fn has_room_to_spare(&mut self, to: PeerId) -> bool {
        self.peers[to.0 as usize].out.as_mut().is_some_and(|out| out.tx.has_room_to_spare())
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.refuse(peer.0);
    }

    fn forget(&mut self, peer: PeerId) {
        self.let_go(peer.0);
    }

    fn is_gone(&self, peer: PeerId) -> bool {
        self.peers[peer.0 as usize].dying.is_some() || self.has_ended(peer.0)
    }

    fn arm(&mut self) -> bool {
        // No descriptor tells when a copy is over, so as long as one is in flight nobody sleeps.
        if self.held != NOBODY || !self.flying.is_empty() {
            return false;
        }
        self.service();
        // Whatever comes of it, the next poll disarms.
        self.armed = true;
        self.slow = true;
        for &id in &self.ins {
            if let Some(inb) = &self.peers[id as usize].inb {
                wake::arm(inb.rx.mem(), self.barrier);
            }
        }
        let barred = self.barrier.heavy();
        let frame = |&id: &u32| self.peers[id as usize].inb.as_ref().is_some_and(|i| i.rx.ready());
        if !barred || !self.dying.is_empty() || self.ins.iter().any(frame) {
            return false;
        }
        if self.fed() || std::mem::take(&mut self.connecting) {
            return false;
        }
        self.poller.ready::<1>().is_empty()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.poller.fd())
    }

    fn describe(&self, peer: PeerId) -> String {
        let peer = &self.peers[peer.0 as usize];
        let ring = peer.out.as_ref().map_or(self.options.ring, |out| out.tx.mem().ring());
        let mut line = format!("shm {} KiB ring, ", ring >> 10);
        let pid = peer.inb.as_ref().map(|i| i.pid).or(peer.out.as_ref().map(|o| o.pid));
        let _ = match (&peer.no_cma, pid) {
            _ if !self.options.cma => write!(line, "frames only: cma is switched off"),
            (Some(why), _) => write!(line, "frames only: {why}"),
            (None, Some(pid)) if pid <= 0 => write!(line, "frames only: {NO_PID}"),
            (None, Some(pid)) => write!(line, "cma (process_vm_readv) with pid {pid}"),
            (None, None) => write!(line, "not connected"),
        };
        let _ = match &peer.no_device {
            Some(why) => write!(line, "; device memory: {why}"),
            None if self.options.device_direct => Ok(()),
            None => write!(line, "; device memory: staged, device_direct is switched off"),
        };
        line
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        // A forked child only closes its copies. The endpoint's own process ends the connections
        // for good, even while a child still holds copies.
        if std::process::id() != self.pid {
            return;
        }
        // Copies in flight are from or to peers' memory: before these see the end of the connection.
        self.flying.cancel(|_| true);
        if !self.closed {
            let _ = self.close_to_all();
        }
        // The listener first: who sees its channel end finds nobody to connect to.
        socket::shutdown(&self.listener);
        // Those that were not met yet, which a child's copy of the listener would keep; each takes a descriptor.
        self.spare.give();
        while let Ok(sock) = socket::accept(&self.listener) {
            socket::shutdown(&sock);
        }
        let others = self.contested.iter().map(service::Contested::sock);
        others.chain(self.guests.iter().flatten().map(service::Guest::sock)).for_each(socket::shutdown);
        for peer in &self.peers {
            let ins = peer.inb.iter().chain(&peer.waiting).map(|i| &i.sock);
            ins.chain(peer.out.as_ref().map(|o| &o.sock)).for_each(socket::shutdown);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod trust_tests;

#[cfg(all(test, not(loom)))]
mod hostile_tests;

#[cfg(all(test, not(loom)))]
mod fuzz_tests;
