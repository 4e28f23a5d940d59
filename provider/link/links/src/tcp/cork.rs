//! Short frames that are kept back: answers, while the frames are taken in that they answer; and writes,
//! until one that is answered, or a call of progress.

use link_api::PeerId;

/// Longest frame that is kept back: to copy it takes far less than a call of the kernel's.
pub(super) const LONGEST: usize = 8 << 10;

/// Whether frames are kept back, and to which peers some are.
#[derive(Debug)]
pub(super) struct Cork {
    now: link_api::Cork,
    /// Frames may stay from one call of the application's to the next.
    gathers: bool,
    peers: Vec<PeerId>,
}

impl Cork {
    pub(super) fn new(gathers: bool) -> Cork {
        Cork { now: link_api::Cork::Off, gathers, peers: Vec::new() }
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        matches!(self.now, link_api::Cork::On | link_api::Cork::Gather)
    }

    #[inline]
    pub(super) fn set(&mut self, how: link_api::Cork) {
        let across_calls = matches!(how, link_api::Cork::Gather | link_api::Cork::Leave);
        self.now = if across_calls && !self.gathers { link_api::Cork::Off } else { how };
    }

    /// A frame to this peer is the first that is kept back.
    pub(super) fn add(&mut self, peer: PeerId) {
        self.peers.push(peer);
    }

    /// A peer that frames were kept back for, if they are not any more.
    #[inline]
    pub(super) fn next(&mut self) -> Option<PeerId> {
        if self.now == link_api::Cork::Off { self.peers.pop() } else { None }
    }
}
