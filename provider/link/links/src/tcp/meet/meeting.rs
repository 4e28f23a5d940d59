//! Peers that are called, or expected.

use link_api::PeerId;

use crate::tcp::meet::agreement::Conn;

/// Those peers, and the numbers of connections.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Meeting {
    pending: Vec<PeerId>,
    /// Connections that have been numbered.
    conns: u64,
    /// A connection that is being made has come further.
    met: bool,
}

impl Meeting {
    pub(in crate::tcp) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(in crate::tcp) fn iter(&self) -> std::slice::Iter<'_, PeerId> {
        self.pending.iter()
    }

    /// A peer is called, or expected.
    pub(in crate::tcp) fn add(&mut self, peer: PeerId) {
        if !self.pending.contains(&peer) {
            self.pending.push(peer);
        }
    }

    pub(in crate::tcp) fn remove(&mut self, peer: PeerId) {
        self.pending.retain(|known| *known != peer);
    }

    /// Takes all of them out: those are added again that are still called, or expected.
    pub(in crate::tcp) fn take(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.pending)
    }

    /// The number of a new connection.
    pub(in crate::tcp) fn number(&mut self) -> Conn {
        self.conns += 1;
        Conn(self.conns)
    }

    /// A connection that is being made has come further.
    pub(in crate::tcp) fn set_met(&mut self) {
        self.met = true;
    }

    /// Whether one has, since this was asked last.
    pub(in crate::tcp) fn take_met(&mut self) -> bool {
        std::mem::take(&mut self.met)
    }
}
