//! Free blocks by place: the index of next-fit and first-fit.

use super::hole::{Entry, Hole, LEN, fit};
use crate::Error;
use crate::core::memory::zeroed;

/// Bounds of so many groups have one bound above them.
const SHIFT: u32 = 4;
const FAMILY: usize = 1 << SHIFT;

/// Places in groups of 64. A bound is what no block that begins in the group is longer than. It rises with a
/// longer block, stays when that is taken, and falls when the group was searched for nothing; so each block
/// that is entered pays for one such search at most, and searches pass by groups, and groups of groups, of
/// blocks that are too short.
#[derive(Debug)]
pub(super) struct Places {
    /// Where blocks begin: a word for each group.
    starts: Box<[u64]>,
    /// Of groups, and then of [`FAMILY`] of the level before each.
    bounds: Vec<Box<[u32]>>,
}

impl Places {
    pub(super) fn new(total: u32) -> Result<Places, Error> {
        let mut groups = (total as usize).div_ceil(64);
        let (starts, mut bounds) = (zeroed(groups)?, vec![zeroed(groups)?]);
        while groups > 1 {
            groups = groups.div_ceil(FAMILY);
            bounds.push(zeroed(groups)?);
        }
        Ok(Places { starts, bounds })
    }

    #[inline]
    pub(super) fn insert(&mut self, at: u32, len: u32) {
        let mut group = at as usize / 64;
        self.starts[group] |= 1 << (at & 63);
        for level in &mut self.bounds {
            if level[group] >= len {
                return;
            }
            level[group] = len;
            group >>= SHIFT;
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, at: u32) {
        self.starts[at as usize / 64] &= !(1 << (at & 63));
    }

    /// The length of the longest, 0 if there is none.
    pub(super) fn longest(&self, entries: &[Entry]) -> u32 {
        self.longer(entries, self.bounds.len() - 1, 0, 0)
    }

    /// The length of the longest of a family of this level, or `than`, if that is more.
    fn longer(&self, entries: &[Entry], height: usize, first: usize, than: u32) -> u32 {
        let (mut longest, level) = (than, &self.bounds[height]);
        for group in first..level.len().min(first + FAMILY) {
            if level[group] <= longest {
                continue;
            }
            if height > 0 {
                longest = self.longer(entries, height - 1, group << SHIFT, longest);
                continue;
            }
            let mut word = self.starts[group];
            while word != 0 {
                longest = longest.max(entries[group * 64 + word.trailing_zeros() as usize][LEN]);
                word &= word - 1;
            }
        }
        longest
    }

    /// The first, of those that begin at `from` or behind it, that `want` granules fit into on a multiple of
    /// `align`.
    #[inline]
    pub(super) fn first(
        &mut self,
        entries: &[Entry],
        from: u32,
        want: u32,
        align: u32,
    ) -> Option<(Hole, u32)> {
        let (mut group, mut skip) = (from as usize / 64, from & 63);
        loop {
            if *self.bounds[0].get(group)? >= want {
                let (mut word, mut longest) = (self.starts[group] & u64::MAX << skip, 0);
                while word != 0 {
                    let at = group * 64 + word.trailing_zeros() as usize;
                    let hole = Hole { at: at as u32, len: entries[at][LEN] };
                    if let Some(begin) = fit(hole.at, hole.len, want, align) {
                        return Some((hole, begin));
                    }
                    longest = longest.max(hole.len);
                    word &= word - 1;
                }
                if skip == 0 {
                    self.bounds[0][group] = longest;
                }
            }
            skip = 0;
            group = self.group(group + 1, want)?;
        }
    }

    /// The first group from this one on whose bound is `want` at least.
    #[inline]
    fn group(&mut self, mut group: usize, want: u32) -> Option<usize> {
        let mut height = 0;
        loop {
            let level = &self.bounds[height];
            let end = (group | (FAMILY - 1)).saturating_add(1).min(level.len());
            match level.get(group..end)?.iter().position(|bound| *bound >= want) {
                Some(ahead) if height == 0 => return Some(group + ahead),
                Some(ahead) => {
                    group = (group + ahead) << SHIFT;
                    height -= 1;
                }
                None => {
                    let (begin, above) = (group & !(FAMILY - 1), group >> SHIFT);
                    let bound = level[begin..end].iter().copied().max().unwrap_or(0);
                    *self.bounds.get_mut(height + 1)?.get_mut(above)? = bound;
                    group = above + 1;
                    height += 1;
                }
            }
        }
    }
}
