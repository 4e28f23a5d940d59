//! Cooperative copy: one side's share of a transfer that both sides copy.
//!
//! One core's copy of host memory is far from what the memory can do. So the side that could copy a large
//! transfer alone opens a counter that both sides can reach ([`RmaLink::pieces_open`]), sends the peer the
//! address of its memory, and copies piece after piece, each claimed from the counter. The peer, if it is
//! inside the library, claims pieces too and copies them the other way round. If it is not, it takes none,
//! and the opener copies them all as it would have done anyway: no side waits for the other to begin.
//!
//! The last bytes of a put are copied last, by its initiator, when all others are there
//! ([`CoopCopy::finish`]): a target that polls them finds the rest.
//!
//! The frames that announce a transfer and its end are the engine's and the UCX transport's.

use hmem::Span;
use link_api::{Direct, Grant, NoDirect, PeerId, PieceCounter, RmaLink, Way};
use wire::Seg;

use crate::Cut;

/// Bytes copied in a row, so that nothing else waits long.
pub const BYTES_PER_CALL: usize = 4 << 20;
/// Transfers of one peer that this side takes part in at a time: more than a peer of ours begins.
pub const MAX_HELPED: usize = 64;
/// The last bytes of a put, which no piece has: a cache line.
pub const LAST: usize = 64;

/// A transfer that both sides copy, as this side sees it.
#[derive(Debug)]
pub struct CoopCopy {
    /// The other side.
    pub peer: PeerId,
    /// What hands the pieces out.
    pub counter: PieceCounter,
    /// Bytes of all pieces.
    pub len: usize,
    /// Bytes behind the pieces, which the opener copies when it knows that these are copied.
    behind: usize,
    /// The pieces.
    pub cut: Cut,
    /// What allows this side to access the memory of the other.
    grant: Grant,
    way: Way,
    /// Whether this side opened the counter.
    is_opener: bool,
    /// Pieces claimed on this side: copied, or given up.
    mine: u16,
    failed: Option<(NoDirect, u16)>,
}

impl CoopCopy {
    /// On the side that opened the counter. `way`: where the `len` bytes go, as this side sees it, cut as
    /// `cut` says but for the last ones of a put.
    pub fn open(
        peer: PeerId,
        counter: PieceCounter,
        len: usize,
        cut: Cut,
        grant: Grant,
        way: Way,
    ) -> CoopCopy {
        let behind = if way == Way::Put && len > cut.piece + LAST { LAST } else { 0 };
        let len = len - behind;
        let cut = Cut { pieces: len.div_ceil(cut.piece) as u16, ..cut };
        CoopCopy { peer, counter, len, behind, cut, grant, way, is_opener: true, mine: 0, failed: None }
    }

    /// On the other side, by the peer's announcement, with its memory `there`; `None` if that is invalid.
    pub fn join(
        peer: PeerId,
        counter: PieceCounter,
        (len, piece): (u64, u64),
        there: &[Seg],
        grant: Grant,
        way: Way,
    ) -> Option<CoopCopy> {
        let total = there.iter().try_fold(0u64, |n, s| n.checked_add(s.len.get()))?;
        if total < len {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        let cut = Cut::by(len, usize::try_from(piece).ok()?)?;
        let (behind, mine, failed) = (0, 0, None);
        Some(CoopCopy { peer, counter, len, behind, cut, grant, way, is_opener: false, mine, failed })
    }

    /// Whether this side opened the counter.
    pub fn is_opener(&self) -> bool {
        self.is_opener
    }

    /// Pieces claimed on this side.
    pub fn mine(&self) -> u16 {
        self.mine
    }

    /// Pieces that this side has not claimed; when no more are to be claimed, those of the other side.
    pub fn theirs(&self) -> u16 {
        self.cut.pieces - self.mine
    }

    /// Why a piece could not be copied on this side, and which.
    pub fn failed(&self) -> Option<(NoDirect, u16)> {
        self.failed
    }

    /// The memory here is given up: no more is copied on this side.
    pub fn give_up(&mut self) {
        self.failed.get_or_insert((NoDirect::Revoked, 0));
    }

    /// Copies one piece, between the front of the memory `here` and that of the peer's `there`.
    pub fn copy_piece<L: RmaLink>(
        &self,
        link: &mut L,
        here: &[Span],
        there: &[Seg],
        piece: u16,
    ) -> Result<(), NoDirect> {
        let off = usize::from(piece) * self.cut.piece;
        self.copy(link, here, there, off, self.cut.piece.min(self.len - off))
    }

    fn copy<L: RmaLink>(
        &self,
        link: &mut L,
        here: &[Span],
        there: &[Seg],
        off: usize,
        len: usize,
    ) -> Result<(), NoDirect> {
        link.access(self.way, self.peer, &Direct::new(self.grant, there, here, len).at(off, off))
    }

    /// Copies what is behind the pieces. For the opener, when it knows that all of these are copied.
    pub fn finish<L: RmaLink>(&mut self, link: &mut L, here: &[Span], there: &[Seg]) -> Result<(), NoDirect> {
        match std::mem::take(&mut self.behind) {
            0 => Ok(()),
            behind => self.copy(link, here, there, self.len, behind),
        }
    }

    /// Claims and copies pieces until there are none, `most` bytes have been copied, or `pause` says so,
    /// which is asked before each piece; whether this side takes no more.
    pub fn run<L: RmaLink>(
        &mut self,
        link: &mut L,
        here: &[Span],
        there: &[Seg],
        most: usize,
        pause: impl FnMut(&L, &CoopCopy) -> bool,
    ) -> bool {
        self.go(
            link,
            most,
            pause,
            |copy, link| link.pieces_claim(copy.peer, copy.counter, copy.is_opener, copy.cut.pieces),
            |copy, link, piece| {
                copy.copy_piece(link, here, there, piece)?;
                // Behind the last one, if all were copied here.
                if copy.theirs() == 0 { copy.finish(link, here, there) } else { Ok(()) }
            },
        )
    }

    fn go<L>(
        &mut self,
        link: &mut L,
        most: usize,
        mut pause: impl FnMut(&L, &CoopCopy) -> bool,
        claim: impl Fn(&CoopCopy, &mut L) -> Option<u16>,
        copy: impl Fn(&mut CoopCopy, &mut L, u16) -> Result<(), NoDirect>,
    ) -> bool {
        let mut left = most;
        while left > 0 && !pause(link, self) {
            // A peer that turns the counter back gets no more out of this side than there is.
            if self.mine >= self.cut.pieces {
                return true;
            }
            let Some(piece) = claim(self, link) else { return true };
            self.mine += 1;
            // What is left after a failure is claimed only so that the other side does not.
            if self.failed.is_some() {
                continue;
            }
            if let Err(why) = copy(self, link, piece) {
                self.failed = Some((why, piece));
                // The opener can still do it alone.
                if !self.is_opener {
                    return true;
                }
            }
            left = left.saturating_sub(self.cut.piece);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counter, and pieces that were copied.
    #[derive(Default)]
    struct Other {
        next: u16,
        copied: Vec<u16>,
    }

    const PEER: PeerId = PeerId(0);
    const COUNTER: PieceCounter = PieceCounter { slot: 0, generation: 1 };

    fn opener(len: usize) -> CoopCopy {
        CoopCopy::open(PEER, COUNTER, len, Cut::of(len), Grant::Agreed, Way::Put)
    }

    fn joiner(len: u64) -> CoopCopy {
        let there = [Seg { addr: 1.into(), len: len.into() }];
        let piece = Cut::of(len as usize).piece as u64;
        CoopCopy::join(PEER, COUNTER, (len, piece), &there, Grant::Request(1), Way::Get).unwrap()
    }

    fn claim(copy: &CoopCopy, other: &mut Other) -> Option<u16> {
        (other.next < copy.cut.pieces).then(|| {
            other.next += 1;
            other.next - 1
        })
    }

    fn note(_: &mut CoopCopy, other: &mut Other, piece: u16) -> Result<(), NoDirect> {
        other.copied.push(piece);
        Ok(())
    }

    #[test]
    fn one_call_copies_no_more_than_it_may() {
        const LEN: usize = 10 * BYTES_PER_CALL + 5;
        let (mut copy, mut other, mut calls) = (opener(LEN), Other::default(), 0);
        loop {
            let before = other.copied.len();
            let over = copy.go(&mut other, BYTES_PER_CALL, |_, _| false, claim, note);
            calls += 1;
            let bytes = (other.copied.len() - before) * copy.cut.piece;
            assert!(bytes < BYTES_PER_CALL + copy.cut.piece, "{bytes} bytes in one call");
            if over {
                break;
            }
        }
        assert!(calls >= 10, "{calls} calls");
        assert_eq!((copy.mine(), copy.theirs(), copy.failed()), (copy.cut.pieces, 0, None));
        // Each piece once.
        assert!(other.copied.into_iter().eq(0..copy.cut.pieces));
    }

    #[test]
    fn a_counter_that_is_turned_back_gives_no_more_than_there_is() {
        for mut copy in [opener(3 << 20), joiner(3 << 20)] {
            let mut other = Other::default();
            assert!(copy.go(&mut other, usize::MAX, |_, _| false, |_, _| Some(0), note));
            assert_eq!(other.copied.len(), usize::from(copy.cut.pieces));
        }
    }

    /// After a failure the opener claims the rest, and the other side leaves it.
    #[test]
    fn after_a_failure_the_opener_alone_claims_the_rest() {
        let fail = |_: &mut CoopCopy, other: &mut Other, piece| {
            other.copied.push(piece);
            if piece == 1 { Err(NoDirect::Memory) } else { Ok(()) }
        };
        for (mut copy, claimed) in [(opener(3 << 20), Cut::of(3 << 20).pieces), (joiner(3 << 20), 2)] {
            let mut other = Other::default();
            assert!(copy.go(&mut other, usize::MAX, |_, _| false, claim, fail));
            assert_eq!(other.copied, [0, 1], "nothing is copied after the one that failed");
            assert_eq!((copy.mine(), copy.failed()), (claimed, Some((NoDirect::Memory, 1))));
        }
    }

    #[test]
    fn a_pause_leaves_the_rest_for_later() {
        let (mut copy, mut other) = (opener(1 << 20), Other::default());
        let pause = |_: &Other, copy: &CoopCopy| copy.mine() == 1;
        assert!(!copy.go(&mut other, usize::MAX, pause, claim, note));
        assert_eq!((copy.mine(), copy.theirs()), (1, 1));
        assert!(copy.go(&mut other, usize::MAX, |_, _| false, claim, note));
        assert_eq!(other.copied, [0, 1]);
    }

    #[test]
    fn what_was_given_up_is_claimed_and_not_copied() {
        let (mut copy, mut other) = (opener(1 << 20), Other::default());
        copy.give_up();
        assert!(copy.go(&mut other, usize::MAX, |_, _| false, claim, note));
        assert_eq!((other.copied.len(), copy.theirs()), (0, 0));
        assert_eq!(copy.failed(), Some((NoDirect::Revoked, 0)));
    }

    #[test]
    fn what_a_peer_tells_has_to_make_sense() {
        let segs = |lens: &[u64]| -> Vec<Seg> {
            lens.iter().map(|len| Seg { addr: 1.into(), len: (*len).into() }).collect()
        };
        let join = |len, piece, there: &[u64]| {
            CoopCopy::join(PEER, COUNTER, (len, piece), &segs(there), Grant::Request(1), Way::Get).is_some()
        };
        assert!(join(1 << 20, 1 << 19, &[1 << 19, 1 << 19]));
        assert!(!join(1 << 20, 1 << 19, &[1 << 19]), "less memory than bytes");
        assert!(!join(1 << 20, 1 << 19, &[u64::MAX, u64::MAX]), "more memory than there can be");
        assert!(!join(1 << 20, 1, &[1 << 20]), "pieces of a byte");
        assert!(!join(0, 4096, &[]), "no bytes");
    }
}
