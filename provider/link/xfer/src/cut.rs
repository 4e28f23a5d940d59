//! How a transfer that both sides copy is cut.

use std::ops::RangeInclusive;

use link_api::MAX_PIECES;

/// Up to so many bytes each side copies a half, always the same one, so that its cache has it the next time.
const HALVES: usize = 1 << 20;
/// Bytes of a piece of more: large enough that a system call is little beside it, small enough that neither
/// side waits long for the last piece of the other.
const PIECE: RangeInclusive<usize> = 128 << 10..=256 << 10;
/// How many pieces there are, where their size is in that range.
const PIECES: usize = 8;
/// Pieces begin at multiples of this.
const PAGE: usize = 4096;

/// A transfer in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of each piece but the last.
    pub piece: usize,
    /// How many there are.
    pub pieces: u16,
}

impl Cut {
    /// Of `len` bytes that one side could copy alone.
    pub fn of(len: usize) -> Cut {
        if len <= HALVES {
            return Cut::halves(len);
        }
        let piece = (len / PIECES).clamp(*PIECE.start(), *PIECE.end()).max(len.div_ceil(MAX_PIECES.into()));
        let piece = piece.next_multiple_of(PAGE);
        Cut { piece, pieces: len.div_ceil(piece) as u16 }
    }

    /// Two pieces of `len` bytes, which are more than a page.
    pub fn halves(len: usize) -> Cut {
        Cut { piece: len.div_ceil(2).next_multiple_of(PAGE), pieces: 2 }
    }

    /// What a peer makes of `len` bytes by `piece` each. `None`: no peer of ours does, since the pieces are
    /// no whole pages, or so small that to copy them would take much longer than to copy it all at once.
    pub fn by(len: usize, piece: usize) -> Option<Cut> {
        if piece == 0 || piece % PAGE != 0 || len == 0 {
            return None;
        }
        let pieces = u16::try_from(len.div_ceil(piece)).ok().filter(|n| *n <= MAX_PIECES)?;
        (pieces <= 2 || piece >= *PIECE.start()).then_some(Cut { piece, pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_pieces_are_pages_and_not_many() {
        for (len, piece) in [(60_000, 1), (0, 4096), (8192, 0), (1 << 20, 4096), (1 << 20, (1 << 19) - 1)] {
            assert_eq!(Cut::by(len, piece), None, "{len} by {piece}");
        }
        assert_eq!(Cut::by(usize::MAX, 1 << 17), None);
        let pieces = |len| Cut::by(len, 4096).map(|cut| cut.pieces);
        assert_eq!((pieces(8192), pieces(1)), (Some(2), Some(1)));
    }

    #[test]
    fn pieces_are_all_of_it_and_none_is_empty() {
        let near = |at: usize| (-2..=2).map(move |by| at.saturating_add_signed(by));
        let most = if cfg!(miri) { 200 } else { 20_000 };
        for len in (1..=most).flat_map(|n| near(n * PAGE)).filter(|len| *len > PAGE) {
            for cut in [Cut::halves(len), Cut::of(len)] {
                assert_eq!(len.div_ceil(cut.piece), usize::from(cut.pieces), "{len} bytes: {cut:?}");
                assert_eq!(Cut::by(len, cut.piece), Some(cut), "{len} bytes");
            }
        }
    }
}
