//! What the channels to all peers share: their longest frame, memory, and the peers whose rings had no room.

use std::time::Instant;

use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::ring;
use crate::shm::channel::shrink::{Shrinking, TOGETHER};
use crate::shm::channel::wake;
use crate::shm::options::NEAR;
use crate::shm::peers::Peers;

#[derive(Debug)]
pub(super) struct Sending {
    max_frame: usize,
    /// Of all rings to peers.
    longer_laps: Allowance,
    /// Which rings are next asked whether they need their pages.
    shrinking: Shrinking,
    /// Peers with a ring that had no room lately.
    starved: Vec<u32>,
    /// Where a packed frame is put together that runs over a ring's end.
    scratch: Vec<u8>,
}

impl Sending {
    /// For rings of `ring` bytes, and of `long_ring` to the nearest peers.
    pub(super) fn new(ring: usize, long_ring: usize) -> Sending {
        Sending {
            max_frame: ring::max_frame((ring / ring::LINE) as u32),
            // What the rings to the nearest peers take.
            longer_laps: Allowance::new((NEAR * (long_ring / ring::LINE)) as u32),
            shrinking: Shrinking::new(),
            starved: Vec::new(),
            scratch: Vec::new(),
        }
    }

    #[inline(always)]
    pub(super) fn max_frame(&self) -> usize {
        self.max_frame
    }

    pub(super) fn longer_laps(&self) -> Allowance {
        self.longer_laps.clone()
    }

    pub(super) fn scratch(&mut self) -> &mut Vec<u8> {
        &mut self.scratch
    }

    /// The ring to this peer has no room for a frame of that length.
    #[cold]
    pub(super) fn starve(&mut self, peers: &mut Peers, id: u32, len: usize) {
        if let Some(out) = &mut peers[id].out {
            if out.starved.replace(len).is_none() {
                self.starved.push(id);
            }
        }
    }

    pub(super) fn forget(&mut self, id: u32) {
        self.starved.retain(|&i| i != id);
    }

    /// Whether a peer has made the room that was missing. From now on it will say when it does.
    pub(super) fn has_room_again(&mut self, peers: &mut Peers) -> bool {
        let mut has_room = false;
        self.starved.retain(|&id| {
            let Some(out) = &mut peers[id].out else { return false };
            let Some(len) = out.starved else { return false };
            wake::want_room(out.tx.mem());
            if out.tx.reserve(len) == Ok(false) {
                return true;
            }
            out.starved = None;
            has_room = true;
            false
        });
        has_room
    }

    /// Polls the rings to some peers for pages that can be given back, if it is time to.
    #[inline]
    pub(super) fn shrink_rings(&mut self, peers: &mut Peers, now: Instant) {
        if let Some(first) = self.shrinking.is_due(now, peers.list().len()) {
            self.shrink_those_from(peers, first, now);
        }
    }

    #[cold]
    fn shrink_those_from(&mut self, peers: &mut Peers, first: usize, now: Instant) {
        for (at, peer) in peers.list_mut().iter_mut().enumerate().skip(first).take(TOGETHER) {
            if let Some(inb) = &mut peer.inb {
                // Else the sender never sees that a ring is empty through which little goes.
                inb.publish();
            }
            if peer.out.as_mut().is_some_and(|out| out.tx.shrink()) {
                return self.shrinking.gave(at, now);
            }
        }
    }
}
