//! Copies that devices have in their queues, from or to peers' memory.

use link_api::{OpId, PeerId};
use wire::Addr;

/// How often frames come first before a driver is polled for its copies.
const PATIENCE: u32 = 8;

#[derive(Debug, Default)]
pub(in crate::shm) struct Copies {
    pending: xfer::DeviceCopies<OpId>,
    peers: Vec<(OpId, PeerId)>,
    /// Polls since a driver was last polled for them.
    polls_since_asked: u32,
    started: u64,
}

impl Copies {
    #[inline(always)]
    pub(in crate::shm) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// One more, from or to memory of this peer.
    pub(in crate::shm) fn add(&mut self, peer: PeerId, pending: Box<dyn hmem::pending::PendingCopy>) -> OpId {
        self.started += 1;
        let copy = OpId(self.started);
        self.pending.add(copy, pending);
        self.peers.push((copy, peer));
        copy
    }

    /// One that is over as far as is known without asking a driver.
    pub(in crate::shm) fn over(&mut self) -> Option<OpId> {
        self.pending.over()
    }

    /// Whether a driver is asked by this poll only after frames.
    pub(in crate::shm) fn are_frames_first(&mut self) -> bool {
        self.polls_since_asked += 1;
        self.polls_since_asked < PATIENCE
    }

    /// One that is over, by the drivers' word, and whether it is done. The log says of `own` why one failed.
    pub(in crate::shm) fn ask(&mut self, own: Addr) -> Option<(OpId, bool)> {
        self.polls_since_asked = 0;
        self.pending.poll(own)
    }

    /// Returns once this one makes no access any more.
    pub(in crate::shm) fn cancel(&mut self, copy: OpId) {
        self.pending.cancel(|name| *name == copy);
    }

    pub(in crate::shm) fn cancel_all(&mut self) {
        self.pending.cancel(|_| true);
    }

    /// One is over: the peer that may have its memory back.
    pub(in crate::shm) fn end(&mut self, copy: OpId) -> Option<PeerId> {
        let at = self.peers.iter().position(|(c, _)| *c == copy)?;
        Some(self.peers.swap_remove(at).1)
    }
}
