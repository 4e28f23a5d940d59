//! Access to memory of peers, by the link that each has.

use hmem::Span;
use link_api::{
    Allow, Devices, Direct, HandleNote, InUse, NoDirect, OpId, PeerId, PieceCounter, Region, RegionVersion,
    Revoke, RmaLink, Way,
};
use wire::{Handle, Seg};

use super::{Links, route};

/// Calls a method of the link that a peer has.
macro_rules! by_peer {
    ($self:ident, $peer:ident, $method:ident($($arg:expr),*)) => {
        match $self.far_of($peer) {
            Some((at, id)) => $self.far[at].link.$method(id, $($arg),*),
            None => $self.shm.$method($peer, $($arg),*),
        }
    };
}

impl RmaLink for Links {
    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        match self.far_of(peer) {
            Some((at, id)) => self.far[at].link.access(way, id, access),
            None => self.shm.access(way, peer, access),
        }
    }

    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        match self.far_of(peer) {
            Some((at, id)) => {
                let op = self.far[at].link.start(way, id, access)?;
                Ok(route::tag_op(at, op))
            }
            None => self.shm.start(way, peer, access),
        }
    }

    fn cancel(&mut self, op: OpId) {
        match route::untag_op(op) {
            (Some(at), op) => self.far[at].link.cancel(op),
            (None, op) => self.shm.cancel(op),
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        by_peer!(self, to, export_handles(iov))
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        by_peer!(self, peer, note_handle(what))
    }

    fn devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> Devices {
        by_peer!(self, peer, devices(theirs, ours))
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        by_peer!(self, with, pieces_open())
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        by_peer!(self, with, pieces_claim(counter, mine, of))
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        by_peer!(self, with, pieces_begun(counter))
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        by_peer!(self, with, pieces_close(counter))
    }

    #[inline]
    fn published(&self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        by_peer!(self, by, published(key))
    }

    fn allow(&mut self, what: Allow<'_>) {
        match what {
            Allow::Request(to, request) => match self.far_of(to) {
                Some((at, id)) => self.far[at].link.allow(Allow::Request(id, request)),
                None => self.shm.allow(what),
            },
            Allow::Region(_) => {
                self.shm.allow(what);
                self.far.iter_mut().for_each(|far| far.link.allow(what));
            }
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        match what {
            Revoke::Request(from, request) => match self.far_of(from) {
                Some((at, id)) => self.far[at].link.revoke(Revoke::Request(id, request)),
                None => self.shm.revoke(what),
            },
            // Each of them, whatever the others say.
            Revoke::Region(_) | Revoke::All => {
                let shm = self.shm.revoke(what);
                self.far.iter_mut().fold(shm, |all, far| far.link.revoke(what).and(all))
            }
        }
    }
}
