//! Choosing a free block.

use super::{Heap, LEN, Policy};

impl Heap {
    /// A free block that `want` granules fit into on a multiple of `align`: where it begins, and where they would.
    #[inline]
    pub(super) fn choose(&self, want: u32, align: u32) -> Option<(u32, u32)> {
        match self.policy {
            Policy::NextFit => {
                let rover = self.rover as usize;
                // The block that the rover is in may begin before it.
                self.first(rover, usize::MAX, want, align).or_else(|| self.first(0, rover, want, align))
            }
            Policy::FirstFit => self.first(0, usize::MAX, want, align),
            Policy::BestFit => {
                self.by_len.range((want, 0)..).find_map(|(len, at)| fit(*at, *len, want, align))
            }
            Policy::WorstFit => {
                self.by_len.range((want, 0)..).rev().find_map(|(len, at)| fit(*at, *len, want, align))
            }
        }
    }

    /// The first that fits of those that begin in `from..until`.
    #[inline]
    fn first(&self, mut from: usize, until: usize, want: u32, align: u32) -> Option<(u32, u32)> {
        while let Some(at) = self.starts.next(from).filter(|at| *at < until) {
            if let Some(found) = fit(at as u32, self.entries[at][LEN], want, align) {
                return Some(found);
            }
            from = at + 1;
        }
        None
    }
}

#[inline]
fn fit(at: u32, len: u32, want: u32, align: u32) -> Option<(u32, u32)> {
    let begin = at.checked_next_multiple_of(align)?;
    let room = len.checked_sub(begin - at)?;
    (room >= want).then_some((at, begin))
}
