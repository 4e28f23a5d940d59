//! A cooperative copy as a request of the engine has it.

use arrayvec::ArrayVec;
use wire::{MAX_SEGS, Pieces, RmaSeg, Seg, Status};
use xfer::CoopCopy;

use crate::core::{Mrs, Spans};
use link_api::{Grant, PeerId, PieceCounter, Way};

/// A cooperative copy, as either side sees it.
#[derive(Debug)]
pub(super) struct Coop {
    pub(super) copy: CoopCopy,
    /// The other side's memory, and how an initiator names it.
    pub(super) segs: ArrayVec<Seg, MAX_SEGS>,
    pub(super) named: Option<RmaSeg>,
    /// How many times more it is left to the other side.
    pub(super) left: u16,
    /// The opener's request, where that is the other side's.
    pub(super) theirs: u64,
    /// Said to the opener at the end.
    pub(super) reported: Option<(Status, u64)>,
}

/// A peer's read or write of which this side takes pieces.
#[derive(Debug)]
pub(super) struct CoopHelp {
    pub(super) peer: PeerId,
    pub(super) iov: Spans,
    pub(super) coop: Box<Coop>,
    pub(super) mrs: Mrs,
}

impl Coop {
    /// What the side that opens the counter knows.
    pub(super) fn opened(copy: CoopCopy, segs: ArrayVec<Seg, MAX_SEGS>) -> Coop {
        Coop { copy, segs, named: None, left: 0, theirs: 0, reported: None }
    }

    /// The transfer as it is announced to the other side.
    pub(super) fn about(&self) -> Pieces {
        let PieceCounter { slot, generation } = self.copy.counter;
        let (len, piece) = ((self.copy.len as u64).into(), (self.copy.cut.piece as u64).into());
        Pieces { len, piece, slot: slot.into(), generation: generation.into() }
    }

    /// That of the side that did not open the counter, from the frame that announced it; `None` if that is
    /// malformed.
    pub(super) fn helping(
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
    pub(super) fn is_owner(&self) -> bool {
        self.copy.is_opener()
    }
}
