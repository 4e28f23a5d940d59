//! A transfer that both sides copy, as either side sees it.

use arrayvec::ArrayVec;
use wire::{MAX_SEGS, Pieces, RmaSeg, Seg, Status};

use crate::core::{Mrs, Spans};
use crate::proto::{Cut, pieces_by};
use link_api::{Grant, NoDirect, PeerId, PieceCounter};

/// A cooperative copy, as either side sees it.
#[derive(Debug)]
pub(super) struct CoopCopy {
    pub(super) counter: PieceCounter,
    /// Bytes in all, bytes of a piece, and how many of these there are.
    pub(super) len: usize,
    pub(super) piece: usize,
    pub(super) pieces: u16,
    /// The other side's memory, what allows to access it, and how an initiator names it.
    pub(super) segs: ArrayVec<Seg, MAX_SEGS>,
    pub(super) grant: Grant,
    pub(super) named: Option<RmaSeg>,
    /// Pieces copied, or given up, on this side.
    pub(super) mine: u16,
    /// Why a piece could not be copied here, and which.
    pub(super) failed: Option<(NoDirect, u16)>,
    /// Whether this side opened the counter, and whether it gets or puts.
    pub(super) owner: bool,
    pub(super) gets: bool,
    /// How many times more it is left to the other side.
    pub(super) left: u16,
    /// The owner's request, where that is the other side's.
    pub(super) theirs: u64,
    /// Said to the owner at the end.
    pub(super) reported: Option<(Status, u64)>,
}

/// A peer's read or write that we take pieces of.
#[derive(Debug)]
pub(super) struct CoopHelp {
    pub(super) peer: PeerId,
    pub(super) iov: Spans,
    pub(super) coop: Box<CoopCopy>,
    pub(super) mrs: Mrs,
}

impl CoopCopy {
    /// What the side that opens the counter knows.
    pub(super) fn opened(
        counter: PieceCounter,
        len: usize,
        cut: Cut,
        segs: ArrayVec<Seg, MAX_SEGS>,
        grant: Grant,
        gets: bool,
    ) -> CoopCopy {
        let Cut { piece, pieces, delegated } = cut;
        let left = delegated.into();
        let (named, mine, failed, owner, theirs, reported) = (None, 0, None, true, 0, None);
        CoopCopy {
            counter,
            len,
            piece,
            pieces,
            segs,
            grant,
            named,
            mine,
            failed,
            owner,
            gets,
            left,
            theirs,
            reported,
        }
    }

    /// The transfer as the other side is told of it.
    pub(super) fn about(&self) -> Pieces {
        let PieceCounter { slot, generation } = self.counter;
        let (len, piece) = ((self.len as u64).into(), (self.piece as u64).into());
        Pieces { len, piece, slot: slot.into(), generation: generation.into() }
    }

    /// What the side that did not open the counter knows, as it was told; `None` if that is nonsense.
    pub(super) fn helping(
        about: &Pieces,
        segs: ArrayVec<Seg, MAX_SEGS>,
        theirs: u64,
        gets: bool,
    ) -> Option<CoopCopy> {
        let len = usize::try_from(about.len.get()).ok()?;
        let piece = usize::try_from(about.piece.get()).ok()?;
        let there = segs.iter().try_fold(0u64, |n, s| n.checked_add(s.len.get()))?;
        (there >= len as u64).then_some(())?;
        let pieces = pieces_by(len, piece)?;
        let counter = PieceCounter { slot: about.slot.get(), generation: about.generation.get() };
        let (mine, failed, owner, left, reported) = (0, None, false, 0, None);
        let (grant, named) = (Grant::Request(theirs), None);
        Some(CoopCopy {
            counter,
            len,
            piece,
            pieces,
            segs,
            grant,
            named,
            mine,
            failed,
            owner,
            gets,
            left,
            theirs,
            reported,
        })
    }

    /// Whether this side opened the counter.
    pub(super) fn is_owner(&self) -> bool {
        self.owner
    }

    /// No more is copied here.
    pub(super) fn give_up(&mut self) {
        self.failed.get_or_insert((NoDirect::Revoked, 0));
    }

    /// Place and length of a piece.
    pub(super) fn bytes(&self, piece: u16) -> (usize, usize) {
        let off = usize::from(piece) * self.piece;
        (off, self.piece.min(self.len - off))
    }
}
