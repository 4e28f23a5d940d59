//! One endpoint's link, as the parts that it is made of: each owns its state. Opening it, and its end as its
//! peers see it.
//!
//! At its end, a peer may have sent what is not read any more. What it sends once this is over must not be
//! taken for sent: the ring of each channel is marked ([`wake::close`]), also of those that were made to the
//! listener and not met yet. Its socket ends before: a sender that finds the mark finds the end, too, and
//! what listens under the name by then.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use hmem::Span;
use ipc::pieces;
use ipc::socket;
use ipc::{Poller, Ports};
use link_api::{Frame, PeerId, PieceCounter, Refused, Sent};
use meet::{Refusals, Shortage};
use wire::channel::Packet;

use crate::name::{Name, Port};
use crate::shm::channel::ring::Mem as _;
use crate::shm::channel::rings::Rings;
use crate::shm::channel::wake;
use crate::shm::channels::Channels;
use crate::shm::direct::PeerMemory;
use crate::shm::ends::Ends;
use crate::shm::group::offers::Offers;
use crate::shm::meet::admission::{Admission, Callers};
use crate::shm::meet::calls::Calls;
use crate::shm::meet::contests::Contests;
use crate::shm::meet::expected::Expected;
use crate::shm::meet::hello;
use crate::shm::meet::listening::Listening;
use crate::shm::meet::looks::Looks;
use crate::shm::meet::meeting::Meeting;
use crate::shm::meet::own::Own;
use crate::shm::meet::token;
use crate::shm::memory::access::Access;
use crate::shm::memory::copies::Copies;
use crate::shm::memory::mr_table::MrTable;
use crate::shm::memory::windows::WindowId;
use crate::shm::options::{OpenOptions, size};
use crate::shm::pace::Pace;
use crate::shm::peers::Peers;
use crate::shm::poll::Polls;
use crate::shm::sending::Sending;
use crate::shm::service::Service;
use crate::shm::sleep::Sleep;

/// One endpoint's link to all peers on this host.
#[derive(Debug)]
#[repr(C)]
pub struct ShmLink {
    pub(super) meeting: Meeting,
    pub(super) copies: Copies,
    /// Dropped last: the name is of others once nothing listens under it any more.
    pub(super) channels: Channels,
}

impl ShmLink {
    /// Whether devices may copy from and to peers' memory, from now on: by default as it was opened.
    pub fn set_device_direct(&mut self, on: bool) {
        self.channels.options.device_direct = on;
    }

    /// Another link of the endpoint carries frames.
    pub(crate) fn set_patient(&mut self) {
        self.channels.pace.set_patient();
    }

    /// Which peers this link serves: others that call are refused.
    pub(crate) fn admit_callers(&mut self, callers: Callers) {
        self.meeting.admission.set_callers(callers);
    }

    /// Another link serves this peer, or does no more. A peer with a channel here is none of another link's.
    pub(crate) fn set_elsewhere(&mut self, peer: PeerId, on: bool) {
        self.meeting.admission.set_elsewhere(peer, on);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_patient(&self) -> bool {
        self.channels.pace.is_patient()
    }

    /// Whether no peer of this host has a channel to this endpoint.
    pub(crate) fn has_no_rings(&self) -> bool {
        self.channels.rings.is_empty()
    }

    /// Counts a poll, which finds nothing where no peer has a ring here; `false`, and nothing is counted:
    /// only a poll of all finds out.
    #[inline(always)]
    pub(crate) fn count_quick(&mut self) -> bool {
        self.channels.pace.count_quick(false)
    }

    /// When the clock was read last, which is now and then.
    pub(crate) fn clock(&self) -> std::time::Instant {
        self.channels.pace.clock()
    }

    /// The name, which links of other sorts share.
    pub(crate) fn name(&self) -> &Name {
        self.channels.own.name()
    }

    /// The port of the name listens from now on, for other links.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        self.channels.own.listen()
    }

    /// Opens an endpoint of this name; `AddrInUse` if it is taken.
    pub fn open(options: OpenOptions) -> io::Result<ShmLink> {
        let chosen = options.bind.is_some_and(|bind| bind.port() != 0);
        // A port at which nothing will ever listen is no one's of the range.
        let ports = if options.port == Port::Reserved { Ports::default() } else { options.ports };
        let (name, listener) =
            Name::claim(options.bind, (options.port, ports), |bound| listen(bound, chosen))?;
        let poller = Poller::new()?;
        poller.add(&listener, token::LISTENER)?;
        let ring = size(options.ring);
        let long_ring = size(options.long_ring).max(ring);
        let access = Access::new(MrTable::create()?);
        let meeting = Meeting {
            listening: Listening::new(listener, access.mr_table().fd())?,
            admission: Admission::new(),
            contests: Contests::default(),
            refused: Refusals::default(),
            shortage: Shortage::default(),
            expected: Expected::default(),
        };
        let own = Own::new(name)?;
        let channels = Channels {
            peers: Peers::default(),
            rings: Rings::new(),
            pace: Pace::new(),
            ends: Ends::default(),
            sending: Sending::new(ring, long_ring),
            looks: Looks::new(&poller)?,
            sleep: Sleep::new(poller),
            access,
            options: OpenOptions { ring, long_ring, ..options },
            groups: Offers::new(own.incarnation()),
            own,
        };
        let link = ShmLink { meeting, copies: Copies::default(), channels };
        log::debug!("{}: open, ring {ring}, {:?}", link.channels.own.addr(), link.channels.sleep.barrier());
        Ok(link)
    }

    pub(super) fn calls(&mut self) -> Calls<'_> {
        Calls { channels: &mut self.channels, meeting: &mut self.meeting }
    }

    pub(super) fn service(&mut self) -> Service<'_> {
        Service { channels: &mut self.channels, meeting: &mut self.meeting }
    }

    #[inline(always)]
    pub(super) fn polls(&mut self) -> Polls<'_> {
        Polls { channels: &mut self.channels, meeting: &mut self.meeting, copies: &mut self.copies }
    }

    #[inline(always)]
    pub(super) fn peer_memory(&mut self) -> PeerMemory<'_> {
        let Channels { own, options, peers, access, .. } = &mut self.channels;
        PeerMemory { own, options, peers, access }
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
    ) -> Option<Result<Sent, Refused>> {
        self.channels.send(to, head, body, off, len)
    }

    /// Sends to one without a channel to it yet.
    #[cold]
    pub(super) fn send_first(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        self.calls().open_channel(to.0)?;
        self.send_connected(to, head, body, off, len).unwrap_or(Err(Refused::Busy))
    }

    /// [`FrameLink::take`](link_api::FrameLink::take) of the frame at hand, of this peer, where it has more
    /// than one line.
    ///
    /// # Safety
    /// `dst` is valid for writes of `len` bytes.
    #[inline(never)]
    pub(super) unsafe fn take_longer(&mut self, id: u32, off: usize, dst: *mut u8, len: usize) -> bool {
        let Some(inb) = self.channels.peers.get_mut(id).and_then(|peer| peer.inb.as_mut()) else {
            return false;
        };
        let Some(at) = inb.rx.straight(off, len) else { return false };
        // SAFETY: the caller's promise; the place in the ring was found by `straight`, and the frame is ours
        // until it is given back.
        unsafe { inb.rx.mem().get(at, dst, len) };
        inb.advance();
        if id != self.channels.rings.sole() {
            // SAFETY: as where it was listed.
            unsafe { self.channels.rings.moved(id, inb.rx.word()) };
        }
        self.channels.rings.let_go_of(id);
        true
    }

    /// Whether a frame of `len` bytes would find room now. Connects if need be.
    #[inline]
    pub fn room(&mut self, to: PeerId, len: usize) -> Result<(), Refused> {
        if self.channels.peers[to.0].out.is_none() {
            self.calls().open_channel(to.0)?;
        }
        self.channels.room(to, len)
    }

    /// Sends one frame made of `head` and then what `pack` writes: at most `max` bytes at the
    /// address it is given, of which it returns the number. Returns the same. `pack` is called only
    /// if there is room, and it must not read what it has written: the memory may be shared.
    ///
    /// # Safety
    /// `pack` must not write more than `max` bytes nor return another number than it wrote.
    #[inline]
    pub unsafe fn send_packed(
        &mut self,
        to: PeerId,
        head: &[u8],
        max: usize,
        pack: impl FnOnce(*mut u8) -> usize,
    ) -> Result<usize, Refused> {
        assert!(head.len() + max <= self.channels.sending.max_frame(), "frame longer than Path::max_frame");
        self.room(to, head.len() + max)?;
        // SAFETY: there is room, and the caller promises the rest.
        unsafe { self.channels.send_packed(to, head, max, pack) }
    }

    /// Takes a frame in: gives its first `N` bytes, copies the rest to `to`, and releases it. `None` if
    /// it is shorter than that, or the rest longer than `room`.
    ///
    /// # Safety
    /// `to` must be initialized memory, valid for reads and writes of `room` bytes, and not used by anything
    /// else.
    #[inline]
    pub unsafe fn receive<const N: usize>(
        &mut self,
        frame: Frame,
        to: *mut u8,
        room: usize,
    ) -> Option<[u8; N]> {
        if !self.channels.rings.holds(frame.from.0) {
            return None;
        }
        let inb = self.channels.peers[frame.from.0].inb.as_ref()?;
        let rest = frame.len.wrapping_sub(N);
        // A shorter frame has more of a rest than there is room for anywhere.
        let head = if rest <= room { inb.rx.first() } else { None };
        if head.is_some() {
            // SAFETY: the caller's promise.
            inb.rx.read(N, unsafe { std::slice::from_raw_parts_mut(to, rest) });
        }
        self.channels.advance(frame.from.0);
        head
    }

    /// The pid of a peer that is connected, 0 where it is not visible here.
    pub fn peer_pid(&self, peer: PeerId) -> Option<i32> {
        self.channels.peers[peer.0].pid()
    }

    /// Asks a peer for a window, connecting if need be. Once it is there, [`super::Windows::find`] has it;
    /// until then it may be called again at any time.
    pub fn want(&mut self, from: PeerId, id: WindowId) -> Result<(), Refused> {
        if self.channels.peers[from.0].out.is_none() {
            self.calls().open_channel(from.0)?;
        }
        let Some(windows) = &self.channels.options.windows else { return Ok(()) };
        if let Some(out) = &self.channels.peers[from.0].out {
            if windows.ask(id) {
                socket::notify(&out.sock, &Packet::Want(id).encode());
                return Ok(());
            }
        }
        // The answer may be here: a program that only puts and gets has no other reason to poll.
        self.service().run();
        Ok(())
    }

    /// Whether the last [`link_api::SleepLink::arm`] returned true with no poll since: the caller may sleep
    /// next, also where something has begun since whose end no descriptor shows.
    pub fn may_sleep(&self) -> bool {
        self.channels.sleep.may_sleep()
    }

    /// Whether the address space of a peer is known, so that it may be accessed directly; `None` if it is
    /// not to be.
    pub fn knows_space(&mut self, id: PeerId) -> Option<bool> {
        if self.channels.peers[id.0].inb.is_none() {
            self.service().hear_outbound(id.0);
        }
        let peer = &self.channels.peers[id.0];
        let known = peer.inb.is_some() || peer.out.as_ref().is_some_and(|out| out.space.is_some());
        (self.channels.options.cma && peer.no_cma.is_none()).then_some(known)
    }

    /// Whether a peer is inside an access by a request of ours.
    pub fn is_inside(&self, peer: PeerId, request: u64) -> bool {
        self.channels.access.is_inside(&self.channels.peers, peer, request)
    }

    /// Reports that all pieces that this side took of a peer's transfer are done with: how many, and whether
    /// all could be copied.
    pub fn pieces_report(&mut self, to: PeerId, counter: PieceCounter, done: u16, good: bool) {
        if let Some(inb) = &self.channels.peers[to.0].inb {
            pieces::report(inb.rx.mem().report(counter.slot), counter.generation, done, good);
        }
    }

    /// What the peer reports: how many pieces it did, and whether all could be copied.
    pub fn pieces_reported(&self, by: PeerId, counter: PieceCounter) -> Option<(u16, bool)> {
        let out = self.channels.peers[by.0].out.as_ref()?;
        pieces::reported(out.tx.mem().report(counter.slot), counter.generation)
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        // A forked child only closes its copies. The endpoint's own process ends the connections
        // for good, even while a child still holds copies.
        if self.channels.own.is_forked() {
            return;
        }
        // Copies in flight are from or to peers' memory: before these see the end of the connection.
        self.copies.cancel_all();
        if !self.channels.access.is_closed() {
            let _ = self.channels.access.close(&self.channels.own, &self.channels.peers);
        }
        // The listener first: a peer that sees its channel end finds nothing to connect to.
        self.meeting.listening.shut_down();
        let mut ins: Vec<_> = self.meeting.contests.take().collect();
        for mut peer in self.channels.peers.take() {
            if let Some(out) = &peer.out {
                socket::shutdown(&out.sock);
            }
            ins.extend(peer.inb.take());
            ins.append(&mut peer.waiting);
        }
        for mut inb in ins {
            socket::shutdown(&inb.sock);
            wake::close(&mut inb.rx);
        }
        for guest in self.meeting.listening.guests_mut().take_all() {
            self.service().close_unmet(&guest.sock, guest.said);
        }
        // Those that were not accepted yet, which a child's copy of the listener would keep; each takes two
        // descriptors.
        self.meeting.listening.give_reserve();
        while let Ok(sock) = self.meeting.listening.accept() {
            self.service().close_unmet(&sock, None);
        }
    }
}

/// Listens under a name. If that is taken and was `chosen`, the log says by what.
fn listen(bound: SocketAddr, chosen: bool) -> io::Result<OwnedFd> {
    let e = match hello::listen(bound) {
        Ok(listener) => return Ok(listener),
        Err(e) => e,
    };
    if chosen && e.kind() == io::ErrorKind::AddrInUse {
        let owner = hello::listener(bound).map_or_else(
            || "a process that does not listen".into(),
            |cred| format!("pid {} of uid {}", cred.pid, cred.uid),
        );
        log::warn!(
            "{bound} cannot be opened: {owner} has its abstract unix socket; end it, or take another port"
        );
    }
    Err(e)
}
