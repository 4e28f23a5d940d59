//! Control messages that are still to be sent by the connection.

use std::collections::VecDeque;

use link_api::{PeerId, Refused, RmaLink};

/// Control messages, in the order of each peer.
#[derive(Debug, Default)]
pub(crate) struct Saying {
    queue: VecDeque<(PeerId, Vec<u8>)>,
}

impl Saying {
    /// Sends a message, or as soon as there is room.
    pub(crate) fn say<B: RmaLink>(&mut self, base: &mut B, peer: PeerId, bytes: Vec<u8>) {
        self.queue.push_back((peer, bytes));
        self.flush(base);
    }

    /// Sends what found no room.
    pub(crate) fn flush<B: RmaLink>(&mut self, base: &mut B) {
        let mut full: Vec<PeerId> = Vec::new();
        for (peer, bytes) in std::mem::take(&mut self.queue) {
            let busy = full.contains(&peer) || base.send(peer, &bytes, &[], 0, 0) == Err(Refused::Busy);
            if busy {
                full.push(peer);
                self.queue.push_back((peer, bytes));
            }
        }
    }

    /// Nothing more is sent to a peer.
    pub(crate) fn drop_of(&mut self, peer: PeerId) {
        self.queue.retain(|(to, _)| *to != peer);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
