//! Choosing a free block.

use super::lengths::{End, Lengths};
use super::places::Places;
use super::{Entry, Heap, Hole, Policy};
use crate::Error;

/// All free blocks but the one that is aside, in the order that the policy asks for.
#[derive(Debug)]
pub(super) enum Index {
    /// Next-fit and first-fit.
    Place(Places),
    /// Best-fit and worst-fit.
    Length(Lengths),
}

impl Index {
    pub(super) fn new(policy: Policy, total: u32) -> Result<Index, Error> {
        match policy {
            Policy::NextFit | Policy::FirstFit => Places::new(total).map(Index::Place),
            Policy::BestFit | Policy::WorstFit => Lengths::new(total).map(Index::Length),
        }
    }

    #[inline]
    pub(super) fn insert(&mut self, hole: Hole) {
        match self {
            Index::Place(places) => places.insert(hole.at, hole.len),
            Index::Length(lengths) => lengths.insert(hole.at, hole.len),
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, hole: Hole) {
        match self {
            Index::Place(places) => places.remove(hole.at),
            Index::Length(lengths) => lengths.remove(hole.at, hole.len),
        }
    }

    /// The length of the longest, 0 if there is none.
    pub(super) fn longest(&self, entries: &[Entry]) -> u32 {
        match self {
            Index::Place(places) => places.longest(entries),
            Index::Length(lengths) => lengths.longest(),
        }
    }
}

impl Heap {
    /// The free block that an allocation comes from, and where `want` granules fit into it on a multiple of `align`.
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

/// Where in a free block `want` granules fit on a multiple of `align`, a power of two.
#[inline]
pub(super) fn fit(at: u32, len: u32, want: u32, align: u32) -> Option<u32> {
    let lead = at.wrapping_neg() & (align - 1);
    (len >= want && len - want >= lead).then_some(at + lead)
}
