//! The one choice of protocol.

use std::ops::RangeInclusive;

use link_api::{MAX_PIECES, Path, RmaCaps};

/// Bytes from which on it is worth a message to the other side that both copy.
const SHARED: usize = 64 << 10;
/// Up to so many each copies a half, always the same one, so that its cache has it the next time.
const HALVES: usize = 1 << 20;
/// Pieces they take of more: large enough that a system call is little beside it, small enough that neither
/// waits long for the other's last one.
const PIECE: RangeInclusive<usize> = 128 << 10..=256 << 10;
/// How many pieces there are, where their size is in that range.
const PIECES: usize = 8;

/// Most bytes of which each copies a half while more messages are behind.
const GIVEN: usize = 8 << 20;

/// How the bytes of an operation get to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proto {
    /// InUse the frame that tells of them.
    Eager,
    /// The frame says where they are; the other side fetches them (directly, or asks for frames).
    Rendezvous,
}

/// What the choice depends on: a peer's path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thresholds {
    /// Most bytes of payload that travel eagerly.
    pub(crate) eager: usize,
    /// Most that do, of many in a row: one side then copies while the other does, which one alone would not gain by.
    pub(crate) in_a_row: usize,
    /// Most bytes of payload that fit a frame beside the longest header.
    pub(crate) fits: usize,
    /// Longest frame.
    pub(crate) max_frame: usize,
    /// How the peer's memory is accessed, and ours by the peer.
    pub(crate) rma: RmaCaps,
}

/// How a transfer of `len` bytes that one side could copy alone is cut so that both sides copy it: bytes of a
/// piece, and how many there are.
pub fn pieces(len: usize) -> (usize, u16) {
    if len <= HALVES {
        return Thresholds::halves(len);
    }
    let piece = (len / PIECES).clamp(*PIECE.start(), *PIECE.end()).max(len.div_ceil(MAX_PIECES.into()));
    let piece = piece.next_multiple_of(4096);
    (piece, len.div_ceil(piece) as u16)
}

/// How many pieces a peer makes of `len` bytes by `piece` each. `None`: none of ours would, since they are no whole
/// pages, or so small that copying them would take us much longer than to copy it all at once.
pub fn pieces_by(len: usize, piece: usize) -> Option<u16> {
    if piece == 0 || piece % 4096 != 0 || len == 0 {
        return None;
    }
    let pieces = u16::try_from(len.div_ceil(piece)).ok().filter(|n| *n <= MAX_PIECES)?;
    (pieces <= 2 || piece >= *PIECE.start()).then_some(pieces)
}

impl Thresholds {
    /// The path's, but no more than fits a frame beside the longest header.
    pub(crate) fn new(path: &Path) -> Self {
        let &Path { max_frame, eager, eager_in_a_row, rma, .. } = path;
        let fits = max_frame.saturating_sub(wire::EAGER_HEAD);
        let in_a_row = eager_in_a_row.max(eager).min(fits);
        Thresholds { eager: eager.min(fits), in_a_row, fits, max_frame, rma }
    }

    /// For `len` bytes of a message or an RMA write. What is injected is copied at once, whatever
    /// the threshold is set to, as long as it fits. `posting`: whether this is one of many in a row, which is noted of
    /// what is large.
    #[inline]
    pub(crate) fn choose(&self, len: usize, inject: bool, posting: &mut bool) -> Proto {
        let most = match inject {
            true => self.fits,
            false if len <= self.eager => self.eager,
            false if std::mem::replace(posting, true) => self.in_a_row,
            false => 0,
        };
        if len <= most { Proto::Eager } else { Proto::Rendezvous }
    }

    /// Whether a half of `len` bytes may be left to the other side while there is more to do here.
    #[inline]
    pub(crate) fn may_give(len: usize) -> bool {
        (SHARED..=GIVEN).contains(&len)
    }

    /// Two pieces.
    pub(crate) fn halves(len: usize) -> (usize, u16) {
        (len.div_ceil(2).next_multiple_of(4096), 2)
    }

    /// For `len` bytes that one side could copy alone: bytes of a piece, and how many there are, if
    /// both sides had better copy.
    pub(crate) fn pieces(len: usize) -> Option<(usize, u16)> {
        (len >= SHARED).then(|| pieces(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_pieces_are_pages_and_not_many() {
        for (len, piece) in [(60_000, 1), (0, 4096), (8192, 0), (1 << 20, 4096), (1 << 20, (1 << 19) - 1)] {
            assert_eq!(pieces_by(len, piece), None, "{len} by {piece}");
        }
        assert_eq!(pieces_by(usize::MAX, 1 << 17), None);
        assert_eq!((pieces_by(8192, 4096), pieces_by(1, 4096)), (Some(2), Some(1)));
    }

    #[test]
    fn pieces_are_all_of_it_and_none_is_empty() {
        let near = |at: usize| (-2..=2).map(move |by| at.saturating_add_signed(by));
        for len in (1..=20_000).flat_map(|n| near(n * 4096)).filter(|len| *len >= SHARED) {
            for (piece, pieces) in [Thresholds::halves(len)].into_iter().chain(Thresholds::pieces(len)) {
                assert_eq!(len.div_ceil(piece), usize::from(pieces), "{len} bytes by {piece}");
                assert_eq!(pieces_by(len, piece), Some(pieces), "{len} bytes by {piece}");
            }
        }
    }
}
