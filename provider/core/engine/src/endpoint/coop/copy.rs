//! A cooperative copy as a request of the engine has it.

use arrayvec::ArrayVec;
use wire::{MAX_SEGS, Pieces, RmaSeg, Seg, Status};
use xfer::CoopCopy;

use crate::core::{Mrs, Spans};
use link_api::{Grant, PeerId, PieceCounter, Way};

/// A cooperative copy, as either side sees it.
#[derive(Debug)]
pub(in crate::endpoint) struct Coop {
    pub(in crate::endpoint) copy: CoopCopy,
    /// The other side's memory, and how an initiator names it.
    pub(in crate::endpoint) segs: ArrayVec<Seg, MAX_SEGS>,
    pub(in crate::endpoint) named: Option<RmaSeg>,
    /// How many times more it is left to the other side.
    pub(in crate::endpoint) left: u16,
    /// The opener's request, where that is the other side's.
    pub(in crate::endpoint) theirs: u64,
    /// Said to the opener at the end.
    pub(in crate::endpoint) reported: Option<(Status, u64)>,
}

/// A peer's read or write of which this side takes pieces.
#[derive(Debug)]
pub(in crate::endpoint) struct CoopHelp {
    pub(in crate::endpoint) peer: PeerId,
    pub(in crate::endpoint) iov: Spans,
    pub(in crate::endpoint) coop: Box<Coop>,
    pub(in crate::endpoint) mrs: Mrs,
}

impl Coop {
    /// What the side that opens the counter knows.
    pub(in crate::endpoint) fn opened(copy: CoopCopy, segs: ArrayVec<Seg, MAX_SEGS>) -> Coop {
        Coop { copy, segs, named: None, left: 0, theirs: 0, reported: None }
    }

    /// The transfer as it is announced to the other side.
    pub(in crate::endpoint) fn about(&self) -> Pieces {
        let PieceCounter { slot, generation } = self.copy.counter;
        let (len, piece) = ((self.copy.len as u64).into(), (self.copy.cut.piece as u64).into());
        Pieces { len, piece, slot: slot.into(), generation: generation.into() }
    }

    /// That of the side that did not open the counter, from the frame that announced it; `None` if that is
    /// malformed.
    pub(in crate::endpoint) fn helping(
        peer: PeerId,
        about: &Pieces,
        segs: ArrayVec<Seg, MAX_SEGS>,
        theirs: u64,
        way: Way,
    ) -> Option<Coop> {
        let counter = PieceCounter { slot: about.slot.get(), generation: about.generation.get() };
        let size = (about.len.get(), about.piece.get());
        let copy = CoopCopy::join(peer, counter, size, &segs, Grant::Request(theirs), way)?;
        Some(Coop { theirs, ..Coop::opened(copy, segs) })
    }

    /// Whether this side opened the counter.
    pub(in crate::endpoint) fn is_owner(&self) -> bool {
        self.copy.is_opener()
    }
}
