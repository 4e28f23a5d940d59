//! On-demand registrations that stay when no request names them: which one holds some memory.
//!
//! The kernel invalidates what an on-demand registration has of a page before that page goes from the
//! process. What is mapped at the address next is what the adapter accesses next, so that an entry outlives
//! its memory and is not stale. Of pinned memory there are no entries: docs/measurements/registration.md.

use std::collections::BTreeMap;

/// Most that stay: those used last.
pub(crate) const MOST: usize = 256;

/// One that stays.
#[derive(Clone, Copy, Debug)]
struct Place {
    end: u64,
    number: u64,
    used: u64,
}

/// By their first bytes. None holds another one, so that ends rise as beginnings do: of those that begin at
/// or before an address, the last one ends last.
type Places = BTreeMap<u64, Place>;

/// Those that the adapter reads alone, and those that it writes too.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    all: [Places; 2],
    clock: u64,
}

impl Kept {
    /// The one that holds all bytes from `first` to before `end`, and is written if `writes` says so.
    #[inline]
    pub(crate) fn find(&mut self, (first, end): (u64, u64), writes: bool) -> Option<u64> {
        self.clock += 1;
        let of = self.all.iter_mut().skip(usize::from(writes));
        let mut last = of.filter_map(|places| places.range_mut(..=first).next_back());
        let (_, place) = last.find(|(_, place)| end <= place.end)?;
        place.used = self.clock;
        Some(place.number)
    }

    /// Adds one where no other one holds its memory that serves for what it does. What it takes the place of
    /// is found no more: what it holds, and of too many the one that was used longest ago.
    pub(crate) fn add(&mut self, (first, end): (u64, u64), writes: bool, number: u64) -> Vec<u64> {
        self.clock += 1;
        let mut gone = Vec::new();
        // What is written serves for what is read.
        for places in &mut self.all[..=usize::from(writes)] {
            let held = places.range(first..).take_while(|(_, place)| place.end <= end);
            let held: Vec<u64> = held.map(|(first, _)| *first).collect();
            gone.extend(held.iter().filter_map(|first| places.remove(first)).map(|place| place.number));
        }
        self.all[usize::from(writes)].insert(first, Place { end, number, used: self.clock });
        if self.len() > MOST {
            let all = self.all.iter().flat_map(BTreeMap::values);
            let oldest = all.min_by_key(|place| place.used).map(|place| place.number);
            gone.extend(oldest.filter(|number| self.remove(*number)));
        }
        gone
    }

    /// Has one not be found any more; whether it was.
    fn remove(&mut self, number: u64) -> bool {
        let before = self.len();
        self.all.iter_mut().for_each(|places| places.retain(|_, place| place.number != number));
        self.len() < before
    }

    /// Has none be found any more of which some memory is that of another one: which were.
    pub(crate) fn remove_all(&mut self, (first, end): (u64, u64)) -> Vec<u64> {
        let mut gone = Vec::new();
        for places in &mut self.all {
            places.retain(|from, place| {
                let stays = place.end <= first || end <= *from;
                gone.extend(Some(place.number).filter(|_| !stays));
                stays
            });
        }
        gone
    }

    /// Whether this one, of that memory, stays.
    pub(crate) fn has(&self, (first, _): (u64, u64), number: u64) -> bool {
        self.all.iter().any(|places| places.get(&first).is_some_and(|place| place.number == number))
    }

    /// How many stay.
    pub(crate) fn len(&self) -> usize {
        self.all.iter().map(BTreeMap::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is added, found and removed in whatever order: what is found is there, and holds what it
        /// is found for; what is there and holds it is found.
        #[test]
        fn what_holds_memory_is_found_and_nothing_else(
            steps in prop::collection::vec((0u8..8, 0u64..40, 1u64..20, any::<bool>()), 0..200),
        ) {
            let mut kept = Kept::default();
            let mut model: BTreeMap<u64, (u64, u64, bool)> = BTreeMap::new();
            for (number, (what, first, len, writes)) in (1u64..).zip(steps) {
                let end = first + len;
                let found = kept.find((first, end), writes);
                let holds = |&(from, to, may): &(u64, u64, bool)| from <= first && end <= to && (may || !writes);
                prop_assert_eq!(found.is_some(), model.values().any(holds));
                prop_assert!(found.is_none_or(|number| holds(&model[&number])));
                match (what, found) {
                    (0, Some(number)) => {
                        prop_assert!(kept.remove(number) && !kept.remove(number));
                        model.remove(&number);
                    }
                    (1, _) => {
                        let (mut gone, mut want) = (kept.remove_all((first, end)), Vec::new());
                        model.retain(|number, (from, to, _)| {
                            let stays = *to <= first || end <= *from;
                            want.extend(Some(*number).filter(|_| !stays));
                            stays
                        });
                        gone.sort_unstable();
                        prop_assert_eq!(gone, want);
                    }
                    (_, None) => {
                        for gone in kept.add((first, end), writes, number) {
                            let (from, to, may) = model.remove(&gone).expect("one that was there");
                            prop_assert!(first <= from && to <= end && (writes || !may), "one that it holds");
                        }
                        model.insert(number, (first, end, writes));
                    }
                    _ => {}
                }
                prop_assert_eq!(kept.len(), model.len());
            }
        }
    }

    #[test]
    fn of_too_many_the_one_used_longest_ago_goes() {
        let mut kept = Kept::default();
        let at = |n: u64| (4096 * n, 4096 * n + 4096);
        for n in 0..MOST as u64 {
            assert!(kept.add(at(n), n % 2 == 0, n).is_empty());
        }
        assert_eq!(kept.find(at(0), false), Some(0));
        assert_eq!(kept.add(at(5000), true, 5000), [1]);
        assert_eq!((kept.len(), kept.find(at(1), false)), (MOST, None));
        assert_eq!(kept.find(at(2), true), Some(2));
    }
}
