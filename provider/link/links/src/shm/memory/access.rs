//! Memory of this process that peers access, and taking it back from them.
//!
//! What allows an access, a [`link_api::Grant`], can be ended by the owner at any time;
//! [`crate::shm::direct`] has how. The owner then waits for those that are inside of one, no longer than the
//! caller has said ([`Patience`]).

use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use ipc::access;
use ipc::fence::full_fence;
use link_api::{InUse, Patience, PeerId, Region};

use meet::Life;

use crate::shm::channel::segment::Segment;
use crate::shm::meet::own::Own;
use crate::shm::memory::grant::{REGION, place};
use crate::shm::memory::mr_table::MrTable;
use crate::shm::memory::parted::{Parted, receiver_is_inside};
use crate::shm::peer::{Inbound, Outbound, Peer};
use crate::shm::peers::Peers;

/// For how long the end of a peer that is inside an access is not taken note of.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::shm) struct Access {
    /// The registrations that peers access without help of this side.
    mr_table: MrTable,
    /// Channels that were given up while a peer was inside an access.
    parted: Vec<Parted>,
    /// How long a peer is waited for that is inside an access.
    patience: Patience,
    /// Peers see that nothing here is accessed any more.
    closed: bool,
    /// Memory of a peer could not be reached directly, and the log says so.
    warned: bool,
}

impl Access {
    pub(in crate::shm) fn new(mr_table: MrTable) -> Access {
        Access { mr_table, parted: Vec::new(), patience: Patience::Second, closed: false, warned: false }
    }

    pub(in crate::shm) fn mr_table(&self) -> &MrTable {
        &self.mr_table
    }

    pub(in crate::shm) fn publish(&mut self, memory: &Region) {
        self.mr_table.publish(memory);
    }

    pub(in crate::shm) fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    pub(in crate::shm) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the log gets a line aloud about a peer whose memory is not reached directly, which is so once:
    /// it is mostly so of all.
    pub(in crate::shm) fn warns(&mut self) -> bool {
        !std::mem::replace(&mut self.warned, true)
    }

    /// Waits until a peer has left.
    fn wait_for(
        &self,
        own: &Own,
        peer: &Peer,
        until: Instant,
        is_inside: impl Fn(&Peer) -> bool,
    ) -> Result<(), InUse> {
        let mut turns = 0u32;
        while is_inside(peer) {
            turns += 1;
            if turns < 100 {
                std::hint::spin_loop();
                continue;
            }
            if peer.has_ended() {
                return Ok(());
            }
            if Instant::now() >= until {
                if self.patience != Patience::Retried {
                    log::warn!(
                        "{}: {} is stopped in the middle of a copy from or to memory here: that memory cannot be \
                         given back before the process goes on or ends",
                        own.addr(),
                        peer.addr
                    );
                }
                return Err(InUse);
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// The same for those channels that were given up of which `is_inside` says so.
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

    /// A peer accesses nothing any more by this request of ours.
    pub(in crate::shm) fn revoke(
        &mut self,
        own: &Own,
        peers: &Peers,
        to: PeerId,
        request: u64,
    ) -> Result<(), InUse> {
        let Some((slot, generation)) = place(request).filter(|_| !own.is_forked()) else { return Ok(()) };
        let peer = &peers[to.0];
        if let Some(out) = &peer.out {
            out.tx.mem().revoked(slot).store(generation, Release);
            full_fence();
        }
        let until = Instant::now() + self.patience.time();
        // Which request's a device's copies are is not said.
        let inside = |mem: &Segment| {
            access::is_inside(mem.rx_inside(), Some(slot + 1)) || mem.rx_flights().load(Acquire) != 0
        };
        self.wait_for(own, peer, until, |peer| peer.out.as_ref().is_some_and(|out| inside(out.tx.mem())))?;
        self.wait_for_parted(until, |p| p.peer == to.0 && p.receiver && inside(&p.mem))
    }

    /// Whether a peer is inside an access by this request of ours.
    pub(in crate::shm) fn is_inside(&self, peers: &Peers, peer: PeerId, request: u64) -> bool {
        let Some((slot, _)) = place(request) else { return false };
        let is_it = |mem: &Segment| access::is_inside(mem.rx_inside(), Some(slot + 1));
        let parted = |p: &Parted| p.peer == peer.0 && p.receiver && is_it(&p.mem);
        peers[peer.0].out.as_ref().is_some_and(|out| is_it(out.tx.mem())) || self.parted.iter().any(parted)
    }

    /// No peer accesses the registration of this key any more.
    pub(in crate::shm) fn conceal(&mut self, own: &Own, peers: &Peers, key: u64) -> Result<(), InUse> {
        // A forked child's table is that of its parent.
        if own.is_forked() {
            return Ok(());
        }
        let Some(place) = self.mr_table.withdraw(key) else { return Ok(()) };
        full_fence();
        let until = Instant::now() + self.patience.time();
        let what = Some(REGION | place);
        let inside = |inb: &Inbound| access::is_inside(inb.rx.mem().tx_inside(), what);
        for peer in peers.list() {
            self.wait_for(own, peer, until, |peer| peer.inb.iter().chain(&peer.waiting).any(inside))?;
        }
        self.wait_for_parted(until, |p| !p.receiver && access::is_inside(p.mem.tx_inside(), what))?;
        self.mr_table.give_back(key);
        Ok(())
    }

    /// No peer accesses memory of this process any more on account of this endpoint.
    pub(in crate::shm) fn close(&mut self, own: &Own, peers: &Peers) -> Result<(), InUse> {
        if own.is_forked() {
            return Ok(());
        }
        self.closed = true;
        self.mr_table.withdraw_all();
        for peer in peers.list() {
            peer.out.iter().for_each(|out| out.tx.mem().tx_closed().store(1, Release));
            let ins = peer.inb.iter().chain(&peer.waiting);
            ins.for_each(|inb| inb.rx.mem().rx_closed().store(1, Release));
        }
        full_fence();
        let until = Instant::now() + self.patience.time();
        let sends = |inb: &Inbound| access::is_inside(inb.rx.mem().tx_inside(), None);
        for peer in peers.list() {
            self.wait_for(own, peer, until, |peer| {
                peer.out.as_ref().is_some_and(|out| receiver_is_inside(out.tx.mem()))
                    || peer.inb.iter().chain(&peer.waiting).any(sends)
            })?;
        }
        self.wait_for_parted(until, |_| true)
    }

    /// Gives up the channel to a peer, for which it may access nothing any more.
    pub(in crate::shm) fn part_outbound(&mut self, peer: &mut Peer, id: u32) {
        let life = life_of(peer);
        let Some(Outbound { tx, sock, pid, space, .. }) = peer.out.take() else { return };
        let mem = tx.into_mem();
        mem.tx_closed().store(1, Release);
        full_fence();
        let (since, receiver) = (Instant::now(), true);
        self.wait_later(Parted { peer: id, since, receiver, mem, sock, life, pid, space });
    }

    /// Gives up the channel from a peer.
    pub(in crate::shm) fn part_inbound(&mut self, peer: &mut Peer, id: u32) {
        let life = life_of(peer);
        let Some(Inbound { rx, sock, pid, space, .. }) = peer.inb.take() else { return };
        let (since, space, receiver) = (Instant::now(), Some(space), false);
        let mem = rx.into_mem();
        mem.rx_closed().store(1, Release);
        full_fence();
        self.wait_later(Parted { peer: id, since, receiver, mem, sock, life, pid, space });
    }

    fn wait_later(&mut self, parted: Parted) {
        if !parted.is_over() {
            self.parted.push(parted);
        }
    }

    /// Whether a channel to or from this peer was given up with the peer inside an access.
    pub(in crate::shm) fn waits_for(&self, id: u32) -> bool {
        self.parted.iter().any(|p| p.peer == id)
    }

    /// Whether a peer that was given up is still inside an access, and is waited for.
    pub(in crate::shm) fn is_inside_still(&mut self, id: u32) -> bool {
        if self.parted.is_empty() {
            return false;
        }
        self.parted.retain(|p| !p.is_over());
        self.parted.iter().any(|p| p.peer == id && p.since.elapsed() < PATIENCE)
    }
}

fn life_of(peer: &Peer) -> Option<Life> {
    peer.life.as_ref().and_then(|life| life.try_clone().ok())
}
