//! Free blocks by length, and those of one length by place: the index of best-fit and worst-fit.

use super::bits::Bits;
use super::hole::{Hole, fit};
use crate::Error;
use crate::core::memory::zeroed;

/// Blocks of one length are a tree by the bits of their places, the highest first: below a node are on the
/// left those whose next bit is 0, on the right the others. So no path is longer than a place has bits,
/// nothing is balanced, and a block that is the only one of its length, as most are, takes one store.
#[derive(Debug)]
pub(super) struct Lengths {
    /// Lengths of which there is a block.
    some: Bits,
    /// For each length its root, then for each place its node's two children: places plus 1, 0 for none.
    links: Box<[u32]>,
    /// Where nodes begin in `links`.
    nodes: usize,
    /// The highest bit of a place.
    top: u32,
}

/// Which children are visited first, and where the first of a length is: at its least place, or at its
/// greatest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Least = 0,
    Greatest = 1,
}

impl Lengths {
    pub(super) fn new(total: u32) -> Result<Lengths, Error> {
        let nodes = total as usize + 1;
        Ok(Lengths {
            some: Bits::new(nodes)?,
            links: zeroed(nodes + 2 * total as usize)?,
            nodes,
            top: (total - 1).checked_ilog2().unwrap_or(0),
        })
    }

    #[inline]
    fn children(&self, link: u32) -> usize {
        self.nodes + 2 * (link as usize - 1)
    }

    #[inline]
    pub(super) fn insert(&mut self, at: u32, len: u32) {
        let mut link = len as usize;
        if self.links[link] == 0 {
            self.some.insert(link);
        } else {
            let mut bit = 1 << self.top;
            while self.links[link] != 0 {
                link = self.children(self.links[link]) + usize::from(at & bit != 0);
                bit >>= 1;
            }
        }
        self.links[link] = at + 1;
    }

    /// Takes a block out that is in it.
    #[inline]
    pub(super) fn remove(&mut self, at: u32, len: u32) {
        let mut link = len as usize;
        let mut bit = 1 << self.top;
        while self.links[link] != at + 1 {
            link = self.children(self.links[link]) + usize::from(at & bit != 0);
            bit >>= 1;
        }
        let node = self.children(at + 1);
        let below = [self.links[node], self.links[node + 1]];
        if below == [0, 0] {
            self.links[link] = 0;
            if link == len as usize {
                self.some.remove(link);
            }
            return;
        }
        // Any block below may stand here: a leaf does.
        let mut leaf = node + usize::from(below[0] == 0);
        let moved = loop {
            let children = self.children(self.links[leaf]);
            match (self.links[children], self.links[children + 1]) {
                (0, 0) => break std::mem::take(&mut self.links[leaf]),
                (left, _) => leaf = children + usize::from(left == 0),
            }
        };
        let to = self.children(moved);
        self.links[to] = std::mem::take(&mut self.links[node]);
        self.links[to + 1] = std::mem::take(&mut self.links[node + 1]);
        self.links[link] = moved;
    }

    /// The length of the longest, 0 if there is none.
    #[inline]
    pub(super) fn longest(&self) -> u32 {
        self.some.last().unwrap_or(0) as u32
    }

    /// The shortest (`Least`) or longest that `want` granules fit into on a multiple of `align`; of several
    /// of one length that at the same end of the heap.
    #[inline]
    pub(super) fn choose(&self, end: End, want: u32, align: u32) -> Option<(Hole, u32)> {
        let mut len = match end {
            End::Least => self.some.next(want as usize)?,
            End::Greatest => self.some.last()?,
        };
        while len >= want as usize {
            let at = self.outermost(len, end);
            if let Some(begin) = fit(at, len as u32, want, align) {
                return Some((Hole { at, len: len as u32 }, begin));
            }
            if let Some(found) = self.aligned(len, end, want, align) {
                return Some(found);
            }
            len = match end {
                End::Least => self.some.next(len + 1)?,
                End::Greatest => self.some.previous(len.checked_sub(1)?)?,
            };
        }
        None
    }

    /// The least or the greatest place of those of a length of which there is one.
    #[inline]
    fn outermost(&self, len: usize, end: End) -> u32 {
        let mut link = self.links[len];
        let mut found = link;
        loop {
            let children = self.children(link);
            let near = self.links[children + end as usize];
            link = if near != 0 { near } else { self.links[children + 1 - end as usize] };
            if link == 0 {
                return found - 1;
            }
            found = if end == End::Least { found.min(link) } else { found.max(link) };
        }
    }

    /// As [`Lengths::choose`], of this length, where its outermost block does not fit: each is looked at, at
    /// most.
    #[cold]
    fn aligned(&self, len: usize, end: End, want: u32, align: u32) -> Option<(Hole, u32)> {
        let mut found: Option<(Hole, u32)> = None;
        // A node's sibling waits while the nodes below are looked at: one for each bit.
        let (mut waiting, mut count) = ([0u32; 34], 1);
        waiting[0] = self.links[len];
        while count > 0 {
            count -= 1;
            let link = waiting[count];
            let at = link - 1;
            let nearer = found.is_none_or(|(hole, _)| (at < hole.at) == (end == End::Least));
            if let Some(begin) = fit(at, len as u32, want, align).filter(|_| nearer) {
                found = Some((Hole { at, len: len as u32 }, begin));
            }
            let children = self.children(link);
            for below in [self.links[children], self.links[children + 1]] {
                if below != 0 {
                    waiting[count] = below;
                    count += 1;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_of_one_length_the_outermost_that_is_placed_well_is_chosen() {
        let mut lengths = Lengths::new(64).unwrap();
        [11, 4, 3, 8, 6].iter().for_each(|at| lengths.insert(*at, 2));
        let place = |end| lengths.choose(end, 2, 4).map(|(hole, begin)| (hole.at, begin));
        assert_eq!((place(End::Least), place(End::Greatest)), (Some((4, 4)), Some((8, 8))));
        assert_eq!(lengths.choose(End::Greatest, 2, 16).map(|found| found.1), None);
    }
}
