//! Direct access to peers' memory, and taking our own back from them.
//!
//! Each access is by process_vm_readv(2) or process_vm_writev(2) to an address space that was proved to be
//! the peer's (`space`), and between two stores of a word that the peer can read (`access`). What allows
//! it, a [`Grant`], can be ended by the peer at any time:
//!
//! | grant | the owner ends it by | and waits for |
//! |---|---|---|
//! | a request of the owner's | its generation in the table of the owner's channel | the word of the receiver |
//! | a registration | its entry in the table that the owner shows | the word of the sender in each channel |
//! | any | a word for each direction of a channel, set for good | both words |
//!
//! After that, nothing of the owner's is accessed any more. Memory that a device copies is waited for by a
//! count of copies in flight.
//!
//! No wait is longer than the caller has said ([`Patience`]): a peer that was stopped inside an access is reported by [`InUse`],
//! and memory stays the library's until it has left. A peer that has ended, or whose address space has, is
//! not waited for.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use ipc::fence::full_fence;
use ipc::{access, pidfd, socket};
use link_api::{Direct, Grant, InUse, NoDirect, Patience, PeerId, Way};

use super::link::ShmLink;
use super::parted::{Parted, receiver_is_inside};
use super::peer::{Inbound, Outbound, Peer, SURE, tick};
use super::segment::{REVOCABLE, Segment};
use crate::cma;
use crate::space::{self, Target};

/// Why the memory of a process in another pid namespace is not reached directly.
pub(super) const NO_PID: &str = "its pid is not visible here (another pid namespace)";

/// For how long the end of a peer that is inside an access is not taken note of.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes accessed before it is looked again whether that is still allowed.
const STRETCH: usize = 2 << 20;

/// In the word of an access: to a registration at that place of the owner's table.
const REGION: u32 = 1 << 31;
/// To memory that the caller has agreed on with the peer by other means.
const AGREED: u32 = 1 << 30;

/// Place and generation of a request in its owner's pool, if it can be taken back.
fn place(request: u64) -> Option<(u32, u32)> {
    let (slot, generation) = (request as u32, (request >> 32) as u32);
    (slot < REVOCABLE).then_some((slot, generation))
}

impl Peer {
    /// Begins an access; the word that says so, to be left. Or why there is none to be.
    #[inline]
    fn enter(&self, grant: Grant) -> Result<&AtomicU32, NoDirect> {
        let (inside, allowed) = match grant {
            Grant::Request(name) => {
                let mem = self.inb.as_ref().ok_or(NoDirect::Fault)?.rx.mem();
                let (slot, generation) = place(name).ok_or(NoDirect::Memory)?;
                let inside = mem.rx_inside();
                let allowed =
                    || mem.tx_closed().load(Acquire) == 0 && mem.revoked(slot).load(Acquire) != generation;
                (inside, access::enter(inside, slot + 1, full_fence, allowed))
            }
            Grant::Region(ticket) => {
                let out = self.out.as_ref().ok_or(NoDirect::Fault)?;
                let table = out.mr_table.as_ref().ok_or(NoDirect::Memory)?;
                let (mem, inside) = (out.tx.mem(), out.tx.mem().tx_inside());
                let allowed = || mem.rx_closed().load(Acquire) == 0 && table.shows(ticket);
                if !access::enter(inside, REGION | ticket.place, full_fence, allowed) {
                    // It may only have changed: the owner knows.
                    return Err(NoDirect::Memory);
                }
                (inside, true)
            }
            Grant::Agreed => {
                let (inside, closed) = match (&self.inb, &self.out) {
                    (Some(inb), _) => (inb.rx.mem().rx_inside(), inb.rx.mem().tx_closed()),
                    (None, Some(out)) => (out.tx.mem().tx_inside(), out.tx.mem().rx_closed()),
                    (None, None) => return Err(NoDirect::Fault),
                };
                (inside, access::enter(inside, AGREED, full_fence, || closed.load(Acquire) == 0))
            }
        };
        if allowed { Ok(inside) } else { Err(NoDirect::Revoked) }
    }
}

impl ShmLink {
    /// How a peer's memory is reached. The proof that it is the peer's is not older than some milliseconds.
    #[inline]
    fn target(&mut self, id: PeerId) -> Result<Target, NoDirect> {
        let peer = &mut self.peers[id.0 as usize];
        if !self.options.cma || peer.no_cma.is_some() {
            return Err(NoDirect::Never);
        }
        if peer.dying.is_some() {
            return Err(NoDirect::Fault);
        }
        match peer.target {
            Some((target, seen)) if target.guarded || tick().saturating_sub(seen) <= SURE => Ok(target),
            _ => self.find_target(id),
        }
    }

    #[cold]
    fn find_target(&mut self, id: PeerId) -> Result<Target, NoDirect> {
        let peer = &mut self.peers[id.0 as usize];
        let (pid, space) = match (&peer.inb, &peer.out) {
            (Some(Inbound { pid, space, .. }), _) => (*pid, *space),
            (None, Some(Outbound { pid, space: Some(space), .. })) => (*pid, *space),
            // It has not said yet which address space is its own.
            (None, Some(_)) => return Err(NoDirect::Memory),
            (None, None) => return Err(NoDirect::Fault),
        };
        if pid <= 0 {
            self.frames_only(id, NO_PID.into());
            return Err(NoDirect::Never);
        }
        let now = tick();
        let target = peer.target.map_or_else(|| Target::new(pid, space), |(target, _)| target);
        cma::verify(&target).map_err(|fault| self.not_moved(id, &target, fault))?;
        self.peers[id.0 as usize].target = Some((target, now));
        Ok(target)
    }

    /// Whether the address space of a peer is known, so that it may be accessed directly; `None` if it is
    /// not to be.
    pub fn knows_space(&mut self, id: PeerId) -> Option<bool> {
        if self.peers[id.0 as usize].inb.is_none() {
            self.hear_outbound(id.0);
        }
        let peer = &self.peers[id.0 as usize];
        let known = peer.inb.is_some() || peer.out.as_ref().is_some_and(|out| out.space.is_some());
        (self.options.cma && peer.no_cma.is_none()).then_some(known)
    }

    pub(super) fn direct(&mut self, way: Way, id: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        let mut done = 0;
        loop {
            // Each time, since a proof that it is the peer's address space is not good for long.
            let target = self.target(id)?;
            let n = (access.len - done).min(STRETCH);
            let part = Direct { len: n, ..access.at(access.roff.saturating_add(done), access.loff + done) };
            let inside = self.peers[id.0 as usize].enter(access.grant)?;
            let moved = cma::transfer(way, &target, &part);
            access::leave(inside);
            moved.map_err(|fault| self.not_moved(id, &target, fault))?;
            done += n;
            if done >= access.len {
                return Ok(());
            }
        }
    }

    #[cold]
    fn not_moved(&mut self, id: PeerId, target: &Target, fault: cma::Fault) -> NoDirect {
        match &fault {
            cma::Fault::Forbidden(e) => self.frames_only(id, cma::why_not(e)),
            // By its pid a process is not found any more once its main thread has ended.
            cma::Fault::Gone if target.guarded && !self.has_ended(id.0) && cma::lives(target.id) => {
                self.frames_only(id, "its main thread has ended".into());
                return NoDirect::Never;
            }
            cma::Fault::Gone => self.peers[id.0 as usize].lost = true,
            cma::Fault::Memory => {}
        }
        fault.into()
    }

    /// A peer's memory cannot be reached directly. Said aloud once, since it is mostly so of all.
    #[cold]
    fn frames_only(&mut self, id: PeerId, why: String) {
        let peer = &mut self.peers[id.0 as usize];
        let level = if self.warned_cma { log::Level::Debug } else { log::Level::Warn };
        self.warned_cma = true;
        log::log!(level, "{}: frames only to {}: {why}", self.addr, peer.addr);
        peer.no_cma = Some(why);
    }

    /// Whether a peer accesses nothing any more for certain: its process or address space has ended, or it
    /// closed its sockets.
    pub(super) fn has_ended(&self, id: u32) -> bool {
        let peer = &self.peers[id as usize];
        let socks = peer.inb.iter().map(|i| &i.sock).chain(peer.out.iter().map(|o| &o.sock));
        peer.lost
            || peer.life.as_ref().is_some_and(|life| pidfd::has_ended(&life.fd))
            || self.space_is_gone(id)
            || socks.into_iter().any(socket::hung_up)
    }

    /// Whether the address space of a peer is gone for certain.
    pub(super) fn space_is_gone(&self, id: u32) -> bool {
        let peer = &self.peers[id as usize];
        let of_out = peer.out.as_ref().and_then(|o| Some((o.pid, o.space?)));
        let mut spaces = peer.inb.iter().map(|i| (i.pid, i.space)).chain(of_out);
        spaces.any(|(pid, space)| space::is_gone(&space, pid))
    }

    /// Waits until a peer has left.
    fn wait_for(&self, id: u32, until: Instant, is_inside: impl Fn(&Peer) -> bool) -> Result<(), InUse> {
        let peer = &self.peers[id as usize];
        let mut turns = 0u32;
        while is_inside(peer) {
            turns += 1;
            if turns < 100 {
                std::hint::spin_loop();
                continue;
            }
            if self.has_ended(id) {
                return Ok(());
            }
            if Instant::now() >= until {
                if self.patience != Patience::Look {
                    log::warn!(
                        "{}: {} is stopped in the middle of a copy from or to memory here: that memory cannot be \
                         given back before the process goes on or ends",
                        self.addr,
                        peer.addr
                    );
                }
                return Err(InUse);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Likewise, for those channels that were given up of which `is_inside` says so.
    fn wait_for_parted(&mut self, until: Instant, is_inside: impl Fn(&Parted) -> bool) -> Result<(), InUse> {
        while self.parted.iter().any(|p| is_inside(p) && !p.is_over()) {
            if Instant::now() >= until {
                return Err(InUse);
            }
            std::thread::yield_now();
        }
        self.parted.retain(|p| !p.is_over());
        Ok(())
    }

    /// Whether this is a process forked from the link's, which has the same channels mapped.
    fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    pub(super) fn revoke_request(&mut self, to: PeerId, request: u64) -> Result<(), InUse> {
        let Some((slot, generation)) = place(request).filter(|_| !self.is_forked()) else { return Ok(()) };
        if let Some(out) = &self.peers[to.0 as usize].out {
            out.tx.mem().revoked(slot).store(generation, Release);
            full_fence();
        }
        let until = Instant::now() + self.patience.time();
        // Which request's a device's copies are is not said.
        let inside = |mem: &Segment| {
            access::is_inside(mem.rx_inside(), Some(slot + 1)) || mem.rx_flights().load(Acquire) != 0
        };
        self.wait_for(to.0, until, |peer| peer.out.as_ref().is_some_and(|out| inside(out.tx.mem())))?;
        self.wait_for_parted(until, |p| p.peer == to.0 && p.receiver && inside(&p.mem))
    }

    /// Whether a peer is inside an access by a request of ours.
    pub fn is_inside(&self, peer: PeerId, request: u64) -> bool {
        let Some((slot, _)) = place(request) else { return false };
        let is_it = |mem: &Segment| access::is_inside(mem.rx_inside(), Some(slot + 1));
        let parted = |p: &Parted| p.peer == peer.0 && p.receiver && is_it(&p.mem);
        self.peers[peer.0 as usize].out.as_ref().is_some_and(|out| is_it(out.tx.mem()))
            || self.parted.iter().any(parted)
    }

    pub(super) fn renew_request(&mut self, to: PeerId, request: u64) {
        let (Some((slot, generation)), Some(out)) = (place(request), &self.peers[to.0 as usize].out) else {
            return;
        };
        let word = out.tx.mem().revoked(slot);
        if word.load(Relaxed) == generation {
            word.store(0, Release);
        }
    }

    pub(super) fn conceal_region(&mut self, key: u64) -> Result<(), InUse> {
        // A forked child's table is that of its parent.
        if self.is_forked() {
            return Ok(());
        }
        let Some(place) = self.mr_table.withdraw(key) else { return Ok(()) };
        full_fence();
        let until = Instant::now() + self.patience.time();
        let what = Some(REGION | place);
        let inside = |inb: &Inbound| access::is_inside(inb.rx.mem().tx_inside(), what);
        for id in 0..self.peers.len() as u32 {
            self.wait_for(id, until, |peer| peer.inb.iter().chain(&peer.waiting).any(inside))?;
        }
        self.wait_for_parted(until, |p| !p.receiver && access::is_inside(p.mem.tx_inside(), what))?;
        self.mr_table.give_back(key);
        Ok(())
    }

    /// No peer accesses memory of this process any more on account of this endpoint.
    pub(super) fn close_to_all(&mut self) -> Result<(), InUse> {
        if self.is_forked() {
            return Ok(());
        }
        self.closed = true;
        self.mr_table.withdraw_all();
        for peer in &self.peers {
            peer.out.iter().for_each(|out| out.tx.mem().tx_closed().store(1, Release));
            let ins = peer.inb.iter().chain(&peer.waiting);
            ins.for_each(|inb| inb.rx.mem().rx_closed().store(1, Release));
        }
        full_fence();
        let until = Instant::now() + self.patience.time();
        for id in 0..self.peers.len() as u32 {
            self.wait_for(id, until, |peer| {
                peer.out.as_ref().is_some_and(|out| receiver_is_inside(out.tx.mem()))
                    || peer
                        .inb
                        .iter()
                        .chain(&peer.waiting)
                        .any(|inb| access::is_inside(inb.rx.mem().tx_inside(), None))
            })?;
        }
        self.wait_for_parted(until, |_| true)
    }

    /// Gives up the channel to a peer, for which it may access nothing any more.
    pub(super) fn part_outbound(&mut self, id: u32) {
        let life = self.life_of(id);
        let Some(Outbound { tx, sock, pid, space, .. }) = self.peers[id as usize].out.take() else { return };
        let mem = tx.into_mem();
        mem.tx_closed().store(1, Release);
        full_fence();
        self.wait_later(Parted {
            peer: id,
            since: Instant::now(),
            receiver: true,
            mem,
            sock,
            life,
            pid,
            space,
        });
    }

    fn wait_later(&mut self, parted: Parted) {
        if !parted.is_over() {
            self.parted.push(parted);
        }
    }

    fn life_of(&self, id: u32) -> Option<OwnedFd> {
        self.peers[id as usize].life.as_ref().and_then(|life| life.fd.try_clone().ok())
    }

    /// Gives up the channel from a peer; whether there was one.
    pub(super) fn part_inbound(&mut self, id: u32) {
        let life = self.life_of(id);
        let Some(Inbound { rx, sock, pid, space, .. }) = self.peers[id as usize].inb.take() else {
            return;
        };
        self.rings.unlist(id);
        let (since, space, receiver) = (Instant::now(), Some(space), false);
        let mem = rx.into_mem();
        mem.rx_closed().store(1, Release);
        full_fence();
        self.wait_later(Parted { peer: id, since, receiver, mem, sock, life, pid, space });
    }

    /// Whether a peer that was given up is still inside an access, and is waited for.
    pub(super) fn is_inside_still(&mut self, id: u32) -> bool {
        if self.parted.is_empty() {
            return false;
        }
        self.parted.retain(|p| !p.is_over());
        self.parted.iter().any(|p| p.peer == id && p.since.elapsed() < PATIENCE)
    }

    /// A device begins a copy that a frame of the peer's allows.
    pub(super) fn enter_flight(&mut self, id: PeerId, request: u64) -> Result<(), NoDirect> {
        let peer = &self.peers[id.0 as usize];
        let mem = peer.inb.as_ref().ok_or(NoDirect::Fault)?.rx.mem();
        let (slot, generation) = place(request).ok_or(NoDirect::Never)?;
        let flights = mem.rx_flights();
        flights.store(flights.load(Relaxed).wrapping_add(1), Release);
        full_fence();
        if mem.tx_closed().load(Acquire) != 0 || mem.revoked(slot).load(Acquire) == generation {
            self.leave_flight(id);
            return Err(NoDirect::Revoked);
        }
        Ok(())
    }

    /// Such a copy is over.
    pub(super) fn leave_flight(&mut self, id: PeerId) {
        if let Some(inb) = &self.peers[id.0 as usize].inb {
            let flights = inb.rx.mem().rx_flights();
            flights.store(flights.load(Relaxed).saturating_sub(1), Release);
        }
    }
}
