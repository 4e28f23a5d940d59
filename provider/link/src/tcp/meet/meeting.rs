//! Peers that are called, or expected.

use link_api::PeerId;

/// Those peers, and what lacks for them.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Meeting {
    pending: Vec<PeerId>,
    /// What lacks for peers that are called, as an errno.
    lack: Option<i32>,
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

    /// What lacks for peers that are called, as an errno.
    pub(in crate::tcp) fn lack(&self) -> Option<i32> {
        self.lack
    }

    pub(in crate::tcp) fn set_lack(&mut self, errno: Option<i32>) {
        self.lack = errno;
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
