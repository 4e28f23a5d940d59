//! Choosing a free block.

use super::hole::{Hole, fit};
use super::index::Index;
use super::lengths::End;
use super::{Heap, Policy};

impl Heap {
    /// The free block that an allocation comes from, and where `want` granules fit into it on a multiple of
    /// `align`.
    #[inline]
    pub(super) fn choose(&mut self, want: u32, align: u32) -> Option<(Hole, u32)> {
        let aside = self.aside;
        let here = fit(aside.at, aside.len, want, align).map(|begin| (aside, begin));
        let there = match (&mut self.index, self.policy) {
            // The one aside is where the last allocation ended.
            (Index::Place(_), Policy::NextFit) if here.is_some() => return here,
            (Index::Place(places), Policy::NextFit) => {
                let from = self.rover;
                places
                    .first(&self.entries, from, want, align)
                    .or_else(|| places.first(&self.entries, 0, want, align))
            }
            (Index::Place(places), _) => places.first(&self.entries, 0, want, align),
            (Index::Length(lengths), Policy::BestFit) => lengths.choose(End::Least, want, align),
            (Index::Length(lengths), _) => lengths.choose(End::Greatest, want, align),
        };
        match (here, there) {
            (Some((one, _)), Some((other, _))) if self.policy.prefers(one, other) => here,
            (_, None) => here,
            _ => there,
        }
    }
}

impl Policy {
    /// Whether it takes this free block and not the other, where both are long enough.
    #[inline]
    fn prefers(self, one: Hole, other: Hole) -> bool {
        match self {
            Policy::NextFit | Policy::FirstFit => one.at < other.at,
            Policy::BestFit => (one.len, one.at) < (other.len, other.at),
            Policy::WorstFit => (one.len, one.at) > (other.len, other.at),
        }
    }
}
