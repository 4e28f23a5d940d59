//! Which pair has a queue pair's number: a table with open addressing. A device gives numbers in a row, or at
//! a distance where several processes make queue pairs in turns: both are spread by a product.

/// No queue pair has this number: those have 24 bits.
const NONE: (u32, u32) = (u32::MAX, 0);
/// Places at first.
const FEW: usize = 16;
/// An odd number near 2^32 by the golden ratio: products of numbers at any usual distance are spread evenly.
const FACTOR: u32 = 0x9e37_79b9;

/// The pairs by the numbers of their queue pairs.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Numbers of queue pairs and of pairs: a power of two of places, of which at most half are used.
    places: Vec<(u32, u32)>,
    used: usize,
    /// Bits of a product that say nothing of a place.
    shift: u32,
}

impl Numbers {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Where a number is, unless others are there.
    #[inline(always)]
    fn home(&self, qpn: u32) -> usize {
        (qpn.wrapping_mul(FACTOR) >> self.shift) as usize
    }

    /// Where a number is, or is to be put.
    #[inline]
    fn find(&self, qpn: u32) -> Option<usize> {
        let mask = self.places.len().wrapping_sub(1);
        let mut at = self.home(qpn);
        loop {
            let known = self.places.get(at)?.0;
            if known == qpn || known == NONE.0 {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// The pair whose queue pair has this number.
    #[inline]
    pub(super) fn get(&self, qpn: u32) -> Option<u32> {
        let (known, number) = self.places[self.find(qpn)?];
        (known == qpn && qpn != NONE.0).then_some(number)
    }

    /// The queue pair of this number is that of a pair.
    pub(super) fn insert(&mut self, qpn: u32, number: u32) {
        if 2 * (self.used + 1) > self.places.len() {
            let n = (2 * self.places.len()).max(FEW);
            let known = std::mem::replace(&mut self.places, vec![NONE; n]);
            (self.used, self.shift) = (0, u32::BITS - n.trailing_zeros());
            known.into_iter().filter(|one| one.0 != NONE.0).for_each(|(qpn, number)| self.put(qpn, number));
        }
        self.put(qpn, number);
    }

    fn put(&mut self, qpn: u32, number: u32) {
        let Some(at) = self.find(qpn) else { return };
        self.used += usize::from(self.places[at].0 != qpn);
        self.places[at] = (qpn, number);
    }

    /// No pair has the queue pair of this number. What has gone on from its place is found without it.
    pub(super) fn remove(&mut self, qpn: u32) {
        let Some(mut free) = self.find(qpn) else { return };
        if self.places[free].0 != qpn || qpn == NONE.0 {
            return;
        }
        let mask = self.places.len() - 1;
        let mut at = free;
        loop {
            at = (at + 1) & mask;
            let (known, _) = self.places[at];
            if known == NONE.0 {
                break;
            }
            let from_own = at.wrapping_sub(self.home(known)) & mask;
            if from_own >= at.wrapping_sub(free) & mask {
                (self.places[free], free) = (self.places[at], at);
            }
        }
        self.places[free] = NONE;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn none_has_a_number_in_an_empty_table() {
        let mut numbers = Numbers::default();
        numbers.remove(3);
        numbers.insert(3, 1);
        numbers.remove(u32::MAX);
        assert_eq!(numbers.len(), 1, "a place without a number is none's");
        numbers.remove(3);
        assert_eq!((numbers.get(3), numbers.get(u32::MAX), numbers.len()), (None, None, 0));
    }

    #[test]
    fn numbers_are_found_after_any_others_were_added_and_removed() {
        let (mut numbers, mut known) = (Numbers::default(), HashMap::new());
        // Few homes for many numbers, also at the table's end, where places go on at its beginning.
        let has_home = |qpn: &u32, home| qpn.wrapping_mul(FACTOR) >> 25 == home;
        let of_home = |home| (0..1 << 24).filter(move |qpn| has_home(qpn, home)).take(12);
        let all: Vec<u32> = [0, 64, 126, 127].into_iter().flat_map(of_home).collect();
        let mut chance = 1u64;
        for step in 0..20_000u32 {
            chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let qpn = all[(chance >> 33) as usize % all.len()];
            if chance >> 63 == 0 {
                numbers.insert(qpn, step);
                known.insert(qpn, step);
            } else {
                numbers.remove(qpn);
                known.remove(&qpn);
            }
            assert_eq!(numbers.len(), known.len(), "step {step}");
            for qpn in &all {
                assert_eq!(numbers.get(*qpn), known.get(qpn).copied(), "{qpn} in step {step}");
            }
        }
        assert_eq!(numbers.get(u32::MAX), None);
    }

    #[test]
    fn numbers_at_any_usual_distance_are_near_their_homes() {
        for stride in [1, 2, 8, 64, 128, 192, 1 << 10, 1 << 12, 1 << 14] {
            for many in [64, 1_000] {
                let mut numbers = Numbers::default();
                (0..many).for_each(|n| numbers.insert(0x1234 + n * stride, n));
                let mask = numbers.places.len() - 1;
                let way = |n: u32| {
                    let qpn = 0x1234 + n * stride;
                    numbers.find(qpn).expect("a place").wrapping_sub(numbers.home(qpn)) & mask
                };
                let (longest, all) =
                    (0..many).map(way).fold((0, 0), |(longest, all), way| (way.max(longest), all + way));
                assert!(longest <= 4, "{longest} places beside its own, {many} numbers of stride {stride}");
                assert!(all <= 2 * many as usize, "{all} for {many} numbers of stride {stride}");
            }
        }
    }
}
