//! Access to memory of peers, by the link that each has.

use hmem::Span;
use link_api::{
    Direct, InUse, NoDirect, OpId, Patience, PeerId, PieceCounter, Region, RegionVersion, RmaLink, Way,
};
use wire::{Handle, Seg};

use super::{Links, route};

/// Calls a method of the link that a peer has.
macro_rules! by_peer {
    ($self:ident, $peer:ident, $method:ident($($arg:expr),*)) => {
        match $self.routes.far_of($peer) {
            Some((at, id)) => $self.further[at].$method(id, $($arg),*),
            None => $self.shm.$method($peer, $($arg),*),
        }
    };
}

impl RmaLink for Links {
    fn get(&mut self, from: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        by_peer!(self, from, get(access))
    }

    fn put(&mut self, to: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        by_peer!(self, to, put(access))
    }

    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        match self.routes.far_of(peer) {
            Some((at, id)) => {
                let op = self.further[at].start(way, id, access)?;
                Ok(route::tag_op(at, op))
            }
            None => self.shm.start(way, peer, access),
        }
    }

    fn cancel(&mut self, op: OpId) {
        match route::untag_op(op) {
            (Some(at), op) => self.further[at].cancel(op),
            (None, op) => self.shm.cancel(op),
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        by_peer!(self, to, export_handles(iov))
    }

    fn mark_exported(&mut self, to: PeerId, handle: &Handle) {
        by_peer!(self, to, mark_exported(handle))
    }

    fn import_handle(&mut self, from: PeerId, handle: &Handle) {
        by_peer!(self, from, import_handle(handle))
    }

    fn retire_handles(&mut self, to: PeerId, iov: &[Span]) {
        by_peer!(self, to, retire_handles(iov));
    }

    fn on_distinct_devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        by_peer!(self, peer, on_distinct_devices(theirs, ours))
    }

    fn on_one_device(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        by_peer!(self, peer, on_one_device(theirs, ours))
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

    fn publish(&mut self, region: &Region) {
        self.shm.publish(region);
        self.further.each_mut().for_each(|link| link.publish(region));
    }

    fn unpublish(&mut self, key: u64) -> Result<(), InUse> {
        // Each of them, whatever the others say.
        let shm = self.shm.unpublish(key);
        self.further.each_mut().fold(shm, |all, link| link.unpublish(key).and(all))
    }

    #[inline]
    fn published(&self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        by_peer!(self, by, published(key))
    }

    fn revoke(&mut self, from: PeerId, request: u64) -> Result<(), InUse> {
        by_peer!(self, from, revoke(request))
    }

    fn renew(&mut self, to: PeerId, request: u64) {
        by_peer!(self, to, renew(request))
    }

    fn set_patience(&mut self, patience: Patience) {
        self.shm.set_patience(patience);
        self.further.each_mut().for_each(|link| link.set_patience(patience));
    }

    fn close(&mut self) -> Result<(), InUse> {
        let shm = self.shm.close();
        self.further.each_mut().fold(shm, |all, link| link.close().and(all))
    }
}
