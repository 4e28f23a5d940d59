//! Tags: ranges of the heap that the reader has freed, on their way to the writer. They are the messages of
//! the bootstrap pipe, which leads from the reader of a pipe to its writer: a ring of words, each of them a
//! tag and its own flag.
//!
//! A tag is one word, so it is there or not. Its lap, which is never 0, distinguishes it from the one that
//! was in its place a lap before. The ring has as many places as there are slots for messages, and the writer
//! has no more blocks out than that: so there is always a place for a tag, and the reader never waits for
//! one.

use std::sync::atomic::Ordering::{Acquire, Release};

use crate::core::slot::Words;

/// A range of granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: u32,
    pub(crate) len: u32,
}

/// Bits for a number of granules: as many as the longest heap has.
const FIELD: u32 = 28;
const LAPS: u64 = 255;
const _: () = assert!(crate::core::settings::HEAP_MOST / 64 <= 1 << FIELD);

/// Which tag comes next, in a ring of so many places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    place: usize,
    lap: u64,
    places: usize,
}

impl Cursor {
    pub(crate) fn new(places: usize) -> Cursor {
        Cursor { place: 0, lap: 1, places }
    }

    /// Its place.
    #[inline]
    pub(crate) fn place(self) -> usize {
        self.place
    }

    /// A tag for this place.
    #[inline]
    pub(crate) fn tag(self, range: Range) -> u64 {
        self.lap << (2 * FIELD) | u64::from(range.len) << FIELD | u64::from(range.from)
    }

    #[inline]
    pub(crate) fn advance(&mut self) {
        self.place += 1;
        if self.place == self.places {
            self.place = 0;
            self.lap = self.lap % LAPS + 1;
        }
    }
}

/// The reader puts a tag into its place. The block is the writer's from then on.
#[inline]
pub(crate) fn publish<W: Words>(to: &W, at: usize, cursor: &mut Cursor, range: Range) {
    // Release: the reader's loads from the block come before.
    to.store(at + 8 * cursor.place(), cursor.tag(range), Release);
    cursor.advance();
}

/// The writer takes the next tag, if it is there.
#[inline]
pub(crate) fn take<W: Words>(from: &W, at: usize, cursor: &mut Cursor) -> Option<Range> {
    const MASK: u64 = (1 << FIELD) - 1;
    // Acquire: the writer's stores to the block come after.
    let tag = from.load(at + 8 * cursor.place(), Acquire);
    if tag >> (2 * FIELD) != cursor.lap {
        return None;
    }
    cursor.advance();
    Some(Range { from: (tag & MASK) as u32, len: (tag >> FIELD & MASK) as u32 })
}

/// What the reader has freed and not published: a sorted list of ranges, each as long as can be.
#[derive(Debug, Default)]
pub(crate) struct Frees {
    ranges: Vec<Range>,
    blocks: u32,
    granules: u32,
}

impl Frees {
    /// Adds a block, which no range has.
    #[inline]
    pub(crate) fn add(&mut self, block: Range) {
        self.blocks += 1;
        self.granules += block.len;
        // Mostly it is behind all others.
        let at = match self.ranges.last() {
            Some(last) if last.from > block.from => self.ranges.partition_point(|r| r.from < block.from),
            _ => self.ranges.len(),
        };
        let joins_next = self.ranges.get(at).is_some_and(|next| block.from + block.len == next.from);
        let joins_last = at > 0 && self.ranges[at - 1].from + self.ranges[at - 1].len == block.from;
        match (joins_last, joins_next) {
            (true, true) => self.ranges[at - 1].len += block.len + self.ranges.remove(at).len,
            (true, false) => self.ranges[at - 1].len += block.len,
            (false, true) => {
                self.ranges[at].from = block.from;
                self.ranges[at].len += block.len;
            }
            (false, false) => self.ranges.insert(at, block),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Blocks that the writer does not know of as freed.
    #[inline]
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Granules of them.
    #[inline]
    pub(crate) fn granules(&self) -> u32 {
        self.granules
    }

    /// All of them, which are published now.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Range> + '_ {
        (self.blocks, self.granules) = (0, 0);
        self.ranges.drain(..)
    }
}

#[cfg(all(test, loom))]
#[path = "tags_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frees_are_sorted_and_joined(mut order in Just((0u32..40).collect::<Vec<_>>()).prop_shuffle(), n in 1usize..40) {
            order.truncate(n);
            let mut frees = Frees::default();
            let mut plain = [false; 40];
            for at in &order {
                frees.add(Range { from: *at * 3, len: 3 });
                plain[*at as usize] = true;
            }
            prop_assert_eq!((frees.blocks(), frees.granules()), (n as u32, 3 * n as u32));
            let mut expected: Vec<Range> = Vec::new();
            for at in (0..40).filter(|at| plain[*at as usize]) {
                match expected.last_mut() {
                    Some(last) if last.from + last.len == at * 3 => last.len += 3,
                    _ => expected.push(Range { from: at * 3, len: 3 }),
                }
            }
            prop_assert_eq!(frees.drain().collect::<Vec<_>>(), expected);
            prop_assert!(frees.is_empty());
        }
    }
}
