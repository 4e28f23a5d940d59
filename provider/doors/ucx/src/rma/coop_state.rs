//! Large puts and gets that both sides copy, as the interface keeps them ([`crate::rma::coop_begin`],
//! [`crate::rma::coop_help`]).

use arrayvec::ArrayVec;
use hmem::Span;
use link::ShmLink;
use link_api::PieceCounter;
use ucx_sys::Completion;
use wire::Seg;
use xfer::CoopCopy;

use crate::iface::attr::MAX_IOV;
use crate::md::region::Region;

/// A put or get of a peer's memory.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) put: bool,
    pub(crate) addr: u64,
    pub(crate) rkey: usize,
    pub(crate) local: ArrayVec<Span, MAX_IOV>,
    pub(crate) len: usize,
    pub(crate) comp: *mut Completion,
}

/// The name under which an owner accesses memory here, so that it can be taken back.
pub(crate) fn request(share: PieceCounter) -> u64 {
    u64::from((share.generation as u32).max(1)) << 32 | u64::from(share.slot)
}

/// A put or get of which the owner of the memory has pieces.
#[derive(Debug)]
pub(crate) struct Shared<E> {
    pub(crate) ep: E,
    pub(crate) copy: CoopCopy,
    pub(crate) access: Access,
}

impl<E> Shared<E> {
    /// Whether the owner is done, and all is there.
    pub(crate) fn over(&self, link: &ShmLink) -> Option<bool> {
        let (done, good) = link.pieces_reported(self.copy.peer, self.copy.counter)?;
        Some(self.copy.failed().is_none() && good && done == self.copy.theirs())
    }
}

/// A peer's put or get of memory here, of which pieces are copied on this side.
#[derive(Debug)]
pub(crate) struct Helping {
    pub(crate) copy: CoopCopy,
    pub(crate) addr: usize,
    /// The registration at the time of the peer's frame.
    pub(crate) region: Region,
    pub(crate) there: ArrayVec<Seg, MAX_IOV>,
}

impl Helping {
    /// No more pieces are taken.
    pub(crate) fn report(&self, link: &mut ShmLink) {
        let CoopCopy { peer, counter, .. } = self.copy;
        if self.copy.mine() > 0 {
            link.pieces_report(peer, counter, self.copy.mine(), self.copy.failed().is_none());
        }
    }
}
