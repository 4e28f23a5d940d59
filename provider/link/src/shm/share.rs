//! Counters that hand out the pieces of transfers which two sides share.
//!
//! One word each, in the control page of the channel from the side that opens it: the number of the
//! transfer it serves (`turn`) in its upper 48 bits, the next piece in its lower 16. A piece is claimed by
//! a compare-exchange of the whole word, so that nobody gets one of a later transfer by a name of an
//! earlier, and nobody gets one twice. Claims ask for no order. Turns are so many that none comes again,
//! however long the name of an earlier one lies unread.
//!
//! What is copied changes hands by a frame, or by the word behind the counter: there the side that did not
//! open it reports, once, how many pieces it has done.
//!
//! The other side may write what it likes there: it only spoils its own transfers, and each side
//! stops at as many pieces as there are.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use link_api::{PeerId, PieceCounter};

use super::ShmLink;

/// A word of 64 bits. Exists so that a test can put in one that forgets an ordering.
pub(crate) trait Wide {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, v: u64, order: Ordering);
    /// Stores `to` if the word is `from`, else answers what it is. No order.
    fn compare_exchange(&self, from: u64, to: u64) -> Result<(), u64>;
}

impl Wide for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    fn store(&self, v: u64, order: Ordering) {
        AtomicU64::store(self, v, order);
    }
    fn compare_exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        AtomicU64::compare_exchange(self, from, to, Relaxed, Relaxed).map(drop)
    }
}

/// Counters of a channel.
pub(crate) const SLOTS: u16 = 48;
/// In the place of the next piece: there is none, the counter is free.
const CLOSED: u64 = 0xffff;
/// Bits of a word for the piece; the others are the turn's.
const PIECE: u32 = 16;

/// What the opener knows of its counters.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Bit by bit: which are in use.
    used: u64,
    turns: [u64; SLOTS as usize],
}

impl Default for Slots {
    fn default() -> Slots {
        Slots { used: 0, turns: [0; SLOTS as usize] }
    }
}

impl Slots {
    /// Opens a counter; its slot and turn.
    pub(crate) fn open<'a, W: Wide + 'a>(&mut self, word: impl Fn(u16) -> &'a W) -> Option<(u16, u64)> {
        let slot = self.used.trailing_ones() as u16;
        if slot >= SLOTS {
            return None;
        }
        self.used |= 1 << slot;
        let generation = &mut self.turns[usize::from(slot)];
        *generation += 1;
        word(slot).store(*generation << PIECE, Relaxed);
        Some((slot, *generation))
    }

    /// Closes one that is open for that turn.
    pub(crate) fn close<'a, W: Wide + 'a>(
        &mut self,
        slot: u16,
        generation: u64,
        word: impl Fn(u16) -> &'a W,
    ) {
        if slot < SLOTS && self.used & 1 << slot != 0 && self.turns[usize::from(slot)] == generation {
            self.used &= !(1 << slot);
            word(slot).store(generation << PIECE | CLOSED, Relaxed);
        }
    }
}

/// Whether a piece was claimed since the counter was opened for that turn.
pub(crate) fn is_begun<W: Wide>(word: &W, generation: u64) -> bool {
    word.load(Relaxed) != generation << PIECE | 1
}

/// Claims the next of `of` pieces.
pub(crate) fn claim<W: Wide>(word: &W, generation: u64, of: u16) -> Option<u16> {
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
pub(crate) fn report<W: Wide>(word: &W, generation: u64, done: u16, good: bool) {
    let done = u64::from(done) & (FAILED - 1);
    word.store(generation << PIECE | if good { 0 } else { FAILED } | done, Release);
}

/// What was reported for that turn: how many pieces, and whether all could be copied.
pub(crate) fn reported<W: Wide>(word: &W, generation: u64) -> Option<(u16, bool)> {
    let seen = word.load(Acquire);
    (seen >> PIECE == generation).then_some(((seen & (FAILED - 1)) as u16, seen & FAILED == 0))
}

/// The other way for pieces to change hands.
impl ShmLink {
    /// Reports that all pieces which we took of a peer's transfer are done with: how many, and whether all could be
    /// copied.
    pub fn pieces_report(&mut self, to: PeerId, share: PieceCounter, done: u16, good: bool) {
        if let Some(inb) = &self.peers[to.0 as usize].inb {
            report(inb.rx.mem().report(share.slot), share.generation, done, good);
        }
    }

    /// What the peer reports: how many pieces it did, and whether all could be copied.
    pub fn pieces_reported(&self, by: PeerId, share: PieceCounter) -> Option<(u16, bool)> {
        let out = self.peers[by.0 as usize].out.as_ref()?;
        reported(out.tx.mem().report(share.slot), share.generation)
    }
}

#[cfg(all(test, loom))]
#[path = "share_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_is_over_gives_nothing() {
        let words: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let word = |slot: u16| &words[usize::from(slot)];
        let mut slots = Slots::default();
        let (slot, generation) = slots.open(word).unwrap();
        assert_eq!(
            (0..3).map(|_| claim(word(slot), generation, 2)).collect::<Vec<_>>(),
            [Some(0), Some(1), None]
        );
        slots.close(slot, generation, word);
        assert_eq!(claim(word(slot), generation, u16::MAX), None);
        let (again, later) = slots.open(word).unwrap();
        assert_eq!(again, slot);
        assert_eq!(claim(word(slot), generation, 2), None);
        // Closing by the old name does nothing.
        slots.close(slot, generation, word);
        assert_eq!(claim(word(slot), later, 2), Some(0));
        let more = std::iter::from_fn(|| slots.open(word)).count();
        assert_eq!(more, usize::from(SLOTS) - 1);
    }

    #[test]
    fn no_turn_comes_again_while_its_name_lies_unread() {
        let words: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let word = |slot: u16| &words[usize::from(slot)];
        let mut slots = Slots::default();
        let (slot, first) = slots.open(word).unwrap();
        slots.close(slot, first, word);
        // As many as fit in less time than a peer may be stopped.
        for n in 0..if cfg!(miri) { 200 } else { 200_000 } {
            let (again, generation) = slots.open(word).unwrap();
            assert_eq!(again, slot);
            assert_eq!(claim(word(slot), first, 2), None, "after {n}");
            slots.close(slot, generation, word);
        }
    }

    #[test]
    fn a_report_is_of_one_turn() {
        let word = AtomicU64::new(0);
        report(&word, 7, 3, true);
        assert_eq!((reported(&word, 7), reported(&word, 8)), (Some((3, true)), None));
        report(&word, 7, i16::MAX as u16, false);
        assert_eq!(reported(&word, 7), Some((i16::MAX as u16, false)));
        assert_eq!((reported(&word, 6), reported(&word, 7 + (1 << 16))), (None, None));
    }

    #[test]
    fn whatever_the_word_says_a_claim_is_a_piece_or_none() {
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
