//! Free blocks in the order that a policy asks for.

use super::hole::{Entry, Hole};
use super::lengths::Lengths;
use super::places::Places;
use super::policy::Policy;
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
