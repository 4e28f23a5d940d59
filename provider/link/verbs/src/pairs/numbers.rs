//! Which pair has a queue pair's number: a table with open addressing. Numbers that a device gives in a row
//! have places of their own.

/// No queue pair has this number: those have 24 bits.
const NONE: (u32, u32) = (u32::MAX, 0);
/// Places at first.
const FEW: usize = 16;

/// The pairs by the numbers of their queue pairs.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Numbers of queue pairs and of pairs: a power of two of places, of which at most half are used.
    places: Vec<(u32, u32)>,
    used: usize,
}

impl Numbers {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.used
    }

    /// Where a number is, or is to be put.
    #[inline]
    fn find(&self, qpn: u32) -> Option<usize> {
        let mask = self.places.len().wrapping_sub(1);
        let mut at = qpn as usize & mask;
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
            self.used = 0;
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
        let Some(mut free) = self.find(qpn).filter(|at| self.places[*at].0 == qpn) else { return };
        let mask = self.places.len() - 1;
        let mut at = free;
        loop {
            at = (at + 1) & mask;
            let (known, _) = self.places[at];
            if known == NONE.0 {
                break;
            }
            let from_own = at.wrapping_sub(known as usize) & mask;
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
        assert_eq!((numbers.get(3), numbers.get(u32::MAX), numbers.len()), (None, None, 0));
    }

    #[test]
    fn numbers_are_found_after_any_others_were_added_and_removed() {
        let (mut numbers, mut known) = (Numbers::default(), HashMap::new());
        // Few homes for many numbers, also at the table's end, where places go on at its beginning.
        let all: Vec<u32> = (0..12).flat_map(|n| [n << 8, (n << 8) + 0xff, (n << 8) + 0xfe, n]).collect();
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
}
