//! Which elements of a collective a rank owns.

use std::ops::Range;

/// What blocks are multiples of, in elements: they are aligned as the buffer is, in 16 bytes at least.
const UNIT: u64 = 64;

/// The blocks of all ranks, one behind another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Where each block begins, and where the last one ends.
    ends: Vec<u64>,
}

impl Shares {
    /// `count` elements in blocks of the same length; the last ones may be shorter, or empty.
    pub fn even(count: u64, ranks: usize) -> Shares {
        let block = count.div_ceil(ranks.max(1) as u64).next_multiple_of(UNIT);
        let ends = (0..=ranks as u64).map(|n| n.saturating_mul(block).min(count)).collect();
        Shares { ends }
    }

    /// Blocks of these lengths; `None` where their sum is too large.
    pub fn of_lengths(lengths: impl Iterator<Item = u64>) -> Option<Shares> {
        let mut ends = vec![0u64];
        for len in lengths {
            ends.push(ends.last()?.checked_add(len)?);
        }
        Some(Shares { ends })
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ends.len() - 1
    }

    /// All elements.
    pub fn count(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The elements of a rank that there is.
    pub fn of(&self, rank: usize) -> Range<u64> {
        self.ends[rank]..self.ends[rank + 1]
    }

    /// The length of the longest block.
    pub fn longest(&self) -> u64 {
        self.ends.windows(2).map(|block| block[1] - block[0]).max().unwrap_or(0)
    }

    /// Those elements of a rank that have these numbers in its block; empty where there are none.
    pub(super) fn piece(&self, rank: usize, of: &Range<u64>) -> Range<u64> {
        let block = self.of(rank);
        let at = |n: u64| block.start.saturating_add(n).min(block.end);
        at(of.start)..at(of.end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_elements_and_begin_at_multiples() {
        for (count, ranks) in [(0, 3), (1, 2), (63, 5), (64, 2), (100, 3), (1000, 7), (1 << 20, 4)] {
            let shares = Shares::even(count, ranks);
            assert_eq!((shares.ranks(), shares.count()), (ranks, count));
            let mut next = 0;
            for rank in 0..ranks {
                let block = shares.of(rank);
                assert!(block.start == next && (block.start % UNIT == 0 || block.is_empty()), "{shares:?}");
                next = block.end;
            }
            assert_eq!(next, count);
        }
        assert_eq!(Shares::even(1 << 20, 4).longest(), 1 << 18);
    }

    #[test]
    fn a_piece_is_inside_its_block() {
        let shares = Shares::of_lengths([5, 0, 9].into_iter()).unwrap();
        assert_eq!((shares.count(), shares.longest()), (14, 9));
        assert_eq!([0..4, 4..8, 8..12].map(|of| shares.piece(2, &of)), [5..9, 9..13, 13..14]);
        assert_eq!([0..4, 4..8, 8..12].map(|of| shares.piece(0, &of)), [0..4, 4..5, 5..5]);
        assert!(shares.piece(1, &(0..4)).is_empty());
        assert_eq!(Shares::of_lengths([u64::MAX, 1].into_iter()), None);
    }
}
