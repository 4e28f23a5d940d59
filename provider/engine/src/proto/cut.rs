//! How a transfer that both sides copy is cut.

use std::ops::RangeInclusive;

use link_api::MAX_PIECES;

/// Bytes from which on it is worth a message to the other side that both copy.
const WORTH: usize = 64 << 10;
/// Up to so many each copies a half, always the same one, so that its cache has it the next time.
const HALVES: usize = 1 << 20;
/// Bytes of a piece of more: large enough that a system call is little beside it, small enough that neither waits
/// long for the other's last one.
const PIECE: RangeInclusive<usize> = 128 << 10..=256 << 10;
/// How many pieces there are, where their size is in that range.
const PIECES: usize = 8;
/// Most bytes of which each copies a half while more messages are behind.
const DELEGATED: usize = 8 << 20;

/// A transfer in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Bytes of each piece but the last.
    pub(crate) piece: usize,
    /// How many there are.
    pub(crate) pieces: u16,
    /// The second of two is left to the peer until there is nothing else to do here.
    pub(crate) delegated: bool,
}

impl Cut {
    /// Of `len` bytes that one side could copy alone, if both sides had better copy. `delegate`: there is more to
    /// do here.
    pub(crate) fn of(len: usize, delegate: bool) -> Option<Cut> {
        if len < WORTH {
            return None;
        }
        let delegated = delegate && len <= DELEGATED;
        let (piece, pieces) = if delegated { halves(len) } else { pieces(len) };
        Some(Cut { piece, pieces, delegated })
    }

    /// Whether a part of `len` bytes may be left to the peer while there is more to do here.
    pub(crate) fn is_delegable(len: usize) -> bool {
        (WORTH..=DELEGATED).contains(&len)
    }
}

/// Two pieces.
fn halves(len: usize) -> (usize, u16) {
    (len.div_ceil(2).next_multiple_of(4096), 2)
}

/// How a transfer of `len` bytes that one side could copy alone is cut so that both sides copy it: bytes of a
/// piece, and how many there are.
pub fn pieces(len: usize) -> (usize, u16) {
    if len <= HALVES {
        return halves(len);
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
        for len in (1..=20_000).flat_map(|n| near(n * 4096)) {
            for Cut { piece, pieces, delegated } in [true, false].into_iter().filter_map(|d| Cut::of(len, d))
            {
                assert!(len >= WORTH && (!delegated || Cut::is_delegable(len)));
                assert_eq!(len.div_ceil(piece), usize::from(pieces), "{len} bytes by {piece}");
                assert_eq!(pieces_by(len, piece), Some(pieces), "{len} bytes by {piece}");
            }
            assert_eq!(Cut::of(len, false).is_some(), len >= WORTH, "{len}");
            assert_eq!(Cut::of(len, true).is_some_and(|c| c.delegated), Cut::is_delegable(len), "{len}");
        }
    }
}
