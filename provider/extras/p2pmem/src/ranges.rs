//! Which parts of a piece of memory are free.

use std::collections::BTreeMap;

/// The free parts of `from..from+size`: by where they begin, their lengths. No two of them touch.
#[derive(Clone, Debug)]
pub struct Ranges {
    from: u64,
    size: u64,
    free: BTreeMap<u64, u64>,
}

impl Ranges {
    /// All of it is free. `from + size` is no more than a `u64` has room for.
    pub fn new(from: u64, size: u64) -> Ranges {
        let free = if size > 0 { BTreeMap::from([(from, size)]) } else { BTreeMap::new() };
        Ranges { from, size, free }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    /// How much is free.
    pub fn available(&self) -> u64 {
        self.free.values().sum()
    }

    /// The longest free part that begins at a multiple of `align`.
    pub fn longest(&self, align: u64) -> u64 {
        let usable = |(at, len): (&u64, &u64)| {
            let start = at.checked_next_multiple_of(align)?;
            (at + len).checked_sub(start)
        };
        self.free.iter().filter_map(usable).max().unwrap_or(0)
    }

    /// Takes `len` bytes at a multiple of `align`: of the shortest part that has room, the first.
    pub fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        if len == 0 || align == 0 {
            return None;
        }
        let fit = |(&at, &room): (&u64, &u64)| {
            let start = at.checked_next_multiple_of(align)?;
            (start.checked_add(len)? <= at + room).then_some((room, at, start))
        };
        let (room, at, start) = self.free.iter().filter_map(fit).min()?;
        self.free.remove(&at);
        if start > at {
            self.free.insert(at, start - at);
        }
        if start + len < at + room {
            self.free.insert(start + len, at + room - start - len);
        }
        Some(start)
    }

    /// Gives a part back; whether all of it was taken. If not, nothing changes.
    pub fn give(&mut self, at: u64, len: u64) -> bool {
        let inside = |end: &u64| len > 0 && at >= self.from && *end - self.from <= self.size;
        let Some(end) = at.checked_add(len).filter(inside) else { return false };
        let before = self.free.range(..end).next_back().map(|(a, l)| (*a, *l));
        if before.is_some_and(|(a, l)| a + l > at) {
            return false;
        }
        let after = self.free.get(&end).copied();
        let (mut start, mut total) = (at, len);
        if let Some((a, l)) = before.filter(|(a, l)| a + l == at) {
            (start, total) = (a, total + l);
        }
        if let Some(l) = after {
            self.free.remove(&end);
            total += l;
        }
        self.free.insert(start, total);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take {
            len: u64,
            shift: u32,
        },
        Give(usize),
        /// A range that may be anything.
        Wrong(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u64..40, 0u32..4).prop_map(|(len, shift)| Step::Take { len, shift }),
            any::<usize>().prop_map(Step::Give),
            (0u64..300, 0u64..300).prop_map(|(at, len)| Step::Wrong(at, len)),
        ]
    }

    proptest! {
        /// Against a byte for each byte: nothing is given twice, nothing is refused that has room, all comes
        /// back.
        #[test]
        fn ranges_are_those_of_a_map_of_bytes(from in 0u64..50, size in 0u64..256, steps in prop::collection::vec(step(), 0..200)) {
            let mut ranges = Ranges::new(from, size);
            let end = from + size;
            // What is before it is no one's.
            let mut taken: Vec<bool> = (0..end).map(|at| at < from).collect();
            let mut live: Vec<(u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Take { len, shift } => {
                        let align = 1u64 << shift;
                        let fits = |at: u64| at + len <= end && !taken[at as usize..(at + len) as usize].contains(&true);
                        let room = (0..end).step_by(align as usize).any(fits);
                        prop_assert_eq!(ranges.longest(align) >= len, room);
                        let got = ranges.take(len, align);
                        prop_assert_eq!(got.is_some(), room);
                        if let Some(at) = got {
                            prop_assert!(at % align == 0 && fits(at));
                            taken[at as usize..(at + len) as usize].fill(true);
                            live.push((at, len));
                        }
                    }
                    Step::Give(n) if !live.is_empty() => {
                        let (at, len) = live.swap_remove(n % live.len());
                        prop_assert!(ranges.give(at, len));
                        taken[at as usize..(at + len) as usize].fill(false);
                    }
                    Step::Give(_) => {}
                    Step::Wrong(at, len) => {
                        let inside = len > 0 && at >= from && at + len <= end;
                        if !inside || taken[at as usize..(at + len) as usize].contains(&false) {
                            prop_assert!(!ranges.give(at, len));
                        }
                    }
                }
                prop_assert_eq!(ranges.available(), taken.iter().filter(|t| !**t).count() as u64);
            }
            for (at, len) in live {
                prop_assert!(ranges.give(at, len));
            }
            // Whole again: as one piece.
            prop_assert_eq!((ranges.available(), ranges.longest(1)), (size, size));
        }
    }

    #[test]
    fn the_shortest_part_that_has_room_is_taken() {
        let mut ranges = Ranges::new(0, 100);
        let first: Vec<u64> = (0..10).map(|_| ranges.take(10, 1).unwrap()).collect();
        assert_eq!(ranges.take(1, 1), None, "exhausted");
        for at in [first[1], first[4], first[5], first[8]] {
            assert!(ranges.give(at, 10));
        }
        assert_eq!((ranges.available(), ranges.longest(1)), (40, 20));
        assert_eq!(ranges.take(21, 1), None, "fragmented");
        assert_eq!(ranges.take(20, 1), Some(40), "the only one");
        assert_eq!(ranges.take(10, 1), Some(10));
        assert_eq!((ranges.take(0, 1), ranges.take(1, 0)), (None, None));
        assert_eq!(ranges.take(u64::MAX, 8), None);
    }
}
