//! Counters that hand out the pieces of transfers which two processes do together.
//!
//! One word each, in memory that both have: the generation of the counter, which is a transfer's, in its
//! upper 48 bits, the next piece in its lower 16. A piece is claimed by a compare-exchange of the whole word,
//! so that no claim gets one of a later transfer by the generation of an earlier, and none is claimed twice.
//! Claims ask for no order. Generations are so many that none comes again, however long the message that
//! names an earlier one lies unread.
//!
//! What is copied changes hands by a message, or by a second word, the report: there the side that did not
//! open the counter says, once, how many pieces it has done.
//!
//! The other process may write what it likes there: it only spoils its own transfers, and each side
//! stops at as many pieces as there are.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::shared::word::Wide;

/// Most counters that one side opens at a time.
pub const COUNTERS: u16 = 48;
/// In the place of the next piece: there is none, the counter is free.
const CLOSED: u64 = 0xffff;
/// Bits of a word for the piece; the others are the generation's.
const PIECE: u32 = 16;

/// What the side that opens counters knows of them.
#[derive(Debug)]
pub struct Counters {
    /// Bit by bit: which are in use.
    used: u64,
    generations: [u64; COUNTERS as usize],
}

impl Default for Counters {
    fn default() -> Counters {
        Counters { used: 0, generations: [0; COUNTERS as usize] }
    }
}

impl Counters {
    /// Opens a counter; its slot and generation.
    pub fn open<'a, W: Wide + 'a>(&mut self, word: impl Fn(u16) -> &'a W) -> Option<(u16, u64)> {
        let slot = self.used.trailing_ones() as u16;
        if slot >= COUNTERS {
            return None;
        }
        self.used |= 1 << slot;
        let generation = &mut self.generations[usize::from(slot)];
        *generation += 1;
        word(slot).store(*generation << PIECE, Relaxed);
        Some((slot, *generation))
    }

    /// Closes one that is open for that generation.
    pub fn close<'a, W: Wide + 'a>(&mut self, slot: u16, generation: u64, word: impl Fn(u16) -> &'a W) {
        if slot < COUNTERS && self.used & 1 << slot != 0 && self.generations[usize::from(slot)] == generation
        {
            self.used &= !(1 << slot);
            word(slot).store(generation << PIECE | CLOSED, Relaxed);
        }
    }
}

/// Whether a piece was claimed since the counter was opened for that generation.
pub fn is_begun<W: Wide>(word: &W, generation: u64) -> bool {
    word.load(Relaxed) != generation << PIECE | 1
}

/// Claims the next of `of` pieces.
pub fn claim<W: Wide>(word: &W, generation: u64, of: u16) -> Option<u16> {
    let mut seen = word.load(Relaxed);
    loop {
        let next = seen & CLOSED;
        if seen >> PIECE != generation || next >= u64::from(of) {
            return None;
        }
        match word.compare_exchange(seen, seen + 1) {
            Ok(()) => return Some(next as u16),
            Err(now) => seen = now,
        }
    }
}

/// In a report: not all of these pieces could be copied.
const FAILED: u64 = 1 << 15;

/// Reports so many pieces as done, and whether all could be copied.
pub fn report<W: Wide>(word: &W, generation: u64, done: u16, good: bool) {
    let done = u64::from(done) & (FAILED - 1);
    word.store(generation << PIECE | if good { 0 } else { FAILED } | done, Release);
}

/// What was reported for that generation: how many pieces, and whether all could be copied.
pub fn reported<W: Wide>(word: &W, generation: u64) -> Option<(u16, bool)> {
    let seen = word.load(Acquire);
    (seen >> PIECE == generation).then_some(((seen & (FAILED - 1)) as u16, seen & FAILED == 0))
}

#[cfg(all(test, loom))]
#[path = "pieces_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn a_closed_counter_gives_no_pieces() {
        let words: Vec<AtomicU64> = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        let word = |slot: u16| &words[usize::from(slot)];
        let mut counters = Counters::default();
        let (slot, generation) = counters.open(word).unwrap();
        assert_eq!(
            (0..3).map(|_| claim(word(slot), generation, 2)).collect::<Vec<_>>(),
            [Some(0), Some(1), None]
        );
        counters.close(slot, generation, word);
        assert_eq!(claim(word(slot), generation, u16::MAX), None);
        let (again, later) = counters.open(word).unwrap();
        assert_eq!(again, slot);
        assert_eq!(claim(word(slot), generation, 2), None);
        // Closing by the old generation does nothing.
        counters.close(slot, generation, word);
        assert_eq!(claim(word(slot), later, 2), Some(0));
        let more = std::iter::from_fn(|| counters.open(word)).count();
        assert_eq!(more, usize::from(COUNTERS) - 1);
    }

    #[test]
    fn no_generation_comes_again_while_a_message_that_names_it_lies_unread() {
        let words: Vec<AtomicU64> = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        let word = |slot: u16| &words[usize::from(slot)];
        let mut counters = Counters::default();
        let (slot, first) = counters.open(word).unwrap();
        counters.close(slot, first, word);
        // As many as fit in less time than a peer may be stopped.
        for n in 0..200_000 {
            let (again, generation) = counters.open(word).unwrap();
            assert_eq!(again, slot);
            assert_eq!(claim(word(slot), first, 2), None, "after {n}");
            counters.close(slot, generation, word);
        }
    }

    #[test]
    fn a_report_is_of_one_generation() {
        let word = AtomicU64::new(0);
        report(&word, 7, 3, true);
        assert_eq!((reported(&word, 7), reported(&word, 8)), (Some((3, true)), None));
        report(&word, 7, i16::MAX as u16, false);
        assert_eq!(reported(&word, 7), Some((i16::MAX as u16, false)));
        assert_eq!((reported(&word, 6), reported(&word, 7 + (1 << 16))), (None, None));
    }

    #[test]
    fn a_claim_on_any_word_is_a_piece_below_the_count_or_none() {
        let word = AtomicU64::new(0);
        for seen in [0, 0xffff, 0x1_0000, 0x1_fffe, 0x1_ffff, u64::MAX] {
            for generation in [0, 1, (1 << 48) - 1, 1 << 48, u64::MAX] {
                word.store(seen, Relaxed);
                let got = claim(&word, generation, u16::MAX - 1);
                assert!(got.is_none_or(|p| p < u16::MAX - 1), "{seen:x}: {got:?}");
            }
        }
    }
}
