//! A set of numbers below a limit, with the next one and the previous one from any place on in a few steps.

use crate::Error;
use crate::core::memory::zeroed;

/// Each level has a bit for each word of the one below.
#[derive(Debug)]
pub(super) struct Bits {
    levels: Vec<Box<[u64]>>,
}

const SHIFT: u32 = 6;

impl Bits {
    pub(super) fn new(limit: usize) -> Result<Bits, Error> {
        let mut levels = Vec::new();
        let mut words = limit.div_ceil(64).max(1);
        loop {
            levels.push(zeroed(words)?);
            if words == 1 {
                return Ok(Bits { levels });
            }
            words = words.div_ceil(64);
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, mut n: usize) {
        for level in &mut self.levels {
            let word = &mut level[n >> SHIFT];
            let was = *word;
            *word = was | 1 << (n & 63);
            if was != 0 {
                return;
            }
            n >>= SHIFT;
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, mut n: usize) {
        for level in &mut self.levels {
            let word = &mut level[n >> SHIFT];
            *word &= !(1 << (n & 63));
            if *word != 0 {
                return;
            }
            n >>= SHIFT;
        }
    }

    /// The least one that is not below `from`.
    #[inline]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(at >> SHIFT)? & (u64::MAX << (at & 63));
            if word != 0 {
                let mut n = (at & !63) + word.trailing_zeros() as usize;
                for below in self.levels[..height].iter().rev() {
                    n = (n << SHIFT) + below[n].trailing_zeros() as usize;
                }
                return Some(n);
            }
            at = (at >> SHIFT) + 1;
        }
        None
    }

    /// The greatest one.
    #[inline]
    pub(super) fn last(&self) -> Option<usize> {
        self.levels.iter().rev().try_fold(0, |n, level| {
            let word = level[n];
            (word != 0).then(|| (n << SHIFT) + word.ilog2() as usize)
        })
    }

    /// The greatest one that is not above `from`, which is below the limit.
    pub(super) fn previous(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level[at >> SHIFT] & (u64::MAX >> (63 - (at & 63)));
            if word != 0 {
                let mut n = (at & !63) + word.ilog2() as usize;
                for below in self.levels[..height].iter().rev() {
                    n = (n << SHIFT) + below[n].ilog2() as usize;
                }
                return Some(n);
            }
            at = (at >> SHIFT).checked_sub(1)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_next_and_the_previous_one_are_those_of_a_plain_set() {
        const LIMIT: usize = 300_000;
        let (mut bits, mut plain) = (Bits::new(LIMIT).unwrap(), BTreeSet::new());
        let mut x = 1u64;
        for _ in 0..20_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let n = (x >> 33) as usize % LIMIT;
            let at = if x & 1 << 20 == 0 { n } else { n / 1000 };
            if plain.insert(at) {
                bits.insert(at);
            } else {
                plain.remove(&at);
                bits.remove(at);
            }
            for from in [0, at, at + 1, n, LIMIT - 1] {
                assert_eq!(bits.next(from), plain.range(from..).next().copied());
                assert_eq!(bits.previous(from), plain.range(..=from).next_back().copied());
            }
            assert_eq!(bits.last(), plain.last().copied());
        }
    }
}
