//! Short frames that are kept back while the frames are taken in that they answer.

use link_api::PeerId;

/// Longest frame that is kept back: to copy it takes far less than a call of the kernel's.
pub(super) const LONGEST: usize = 8 << 10;

/// Whether frames are kept back, and to which peers some are.
#[derive(Debug, Default)]
pub(super) struct Cork {
    on: bool,
    peers: Vec<PeerId>,
}

impl Cork {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn set(&mut self, on: bool) {
        self.on = on;
    }

    /// A frame to this peer is the first that is kept back.
    pub(super) fn add(&mut self, peer: PeerId) {
        self.peers.push(peer);
    }

    /// A peer that frames were kept back for, once they are not any more.
    pub(super) fn next(&mut self) -> Option<PeerId> {
        if self.on { None } else { self.peers.pop() }
    }
}
