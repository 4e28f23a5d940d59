//! The ring: how a command gets from a producer to the drain.
//!
//! Eight words a slot, each with a lap bit: bit 63 is 1 in the first lap, 0 in the second, and so on. A
//! producer stores them in any order, and the drain takes a slot when all eight have the bit of the lap it is
//! in. What it has loaded by then is what it uses, so no word can be of another lap than the others: a
//! producer comes to write the next lap only after the drain has stored in `consumed` that it has taken this
//! one. That holds for producers that keep to `consumed`; of one that does not, the drain gets words that
//! make no command, or another one than was meant, and checks it as any.
//!
//! A memory that a command names is written before it: a producer on a device fences once, at system scope,
//! before the eight stores. Producers of this process store with Release. The drain loads with Acquire.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ipc::word::Wide;

use crate::layout::{LAP_BIT, SLOT_WORDS};

/// The lap bit of a ticket.
pub fn lap(ticket: u64, log2_slots: u32) -> u64 {
    (ticket >> log2_slots & 1) ^ 1
}

/// Which slot a ticket has.
pub fn slot(ticket: u64, log2_slots: u32) -> usize {
    (ticket & ((1 << log2_slots) - 1)) as usize
}

/// The words of a slot, if all of them are of this lap. Each word is loaded once.
#[inline]
pub fn take<'w, W: Wide + 'w>(word: impl Fn(usize) -> &'w W, lap: u64) -> Option<[u64; SLOT_WORDS]> {
    let mut words = [0; SLOT_WORDS];
    for (i, to) in words.iter_mut().enumerate() {
        let seen = word(i).load(Acquire);
        if seen >> LAP_BIT != lap {
            return None;
        }
        *to = seen;
    }
    Some(words)
}

/// Writes a slot.
#[inline]
pub fn put<'w, W: Wide + 'w>(word: impl Fn(usize) -> &'w W, words: &[u64; SLOT_WORDS]) {
    for (i, w) in words.iter().enumerate() {
        word(i).store(*w, Release);
    }
}

/// Reserves `n` tickets; the first of them, or `None` if the ring has no room for so many now.
#[inline]
pub fn reserve<W: Wide>(reserved: &W, consumed: &W, n: u64, log2_slots: u32) -> Option<u64> {
    loop {
        let at = reserved.load(Relaxed);
        // Of this word later values may be seen already, so that the difference may be below zero.
        let taken = consumed.load(Acquire);
        if (at + n).saturating_sub(taken) > 1 << log2_slots {
            return None;
        }
        if reserved.compare_exchange(at, at + n).is_ok() {
            return Some(at);
        }
    }
}

#[cfg(all(test, loom))]
#[path = "ring_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::command::Raw;

    fn memory(slots: usize) -> Vec<AtomicU64> {
        (0..slots * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn a_slot_is_taken_when_all_words_have_the_lap_and_not_before() {
        let words = memory(1);
        let raw = Raw { op: 2, flags: 1, peer: 3, region: 0xff_ffff, local: u64::MAX, ..Raw::default() };
        for ticket in 0..4 {
            let lap = lap(ticket, 0);
            let packed = raw.pack(lap);
            for (i, w) in packed.iter().enumerate() {
                assert_eq!(take(|i| &words[i], lap), None, "ticket {ticket}: taken with {i} words");
                words[i].store(*w, Release);
            }
            let taken = take(|i| &words[i], lap).expect("all words are there");
            assert_eq!(Raw::of(&taken), raw);
            assert_eq!(take(|i| &words[i], lap ^ 1), None, "it is taken again in the next lap");
        }
    }

    #[test]
    fn a_full_ring_reserves_nothing() {
        let (reserved, consumed) = (AtomicU64::new(0), AtomicU64::new(0));
        assert_eq!(reserve(&reserved, &consumed, 3, 2), Some(0));
        assert_eq!(reserve(&reserved, &consumed, 2, 2), None);
        assert_eq!(reserve(&reserved, &consumed, 1, 2), Some(3));
        consumed.store(2, Release);
        assert_eq!(reserve(&reserved, &consumed, 2, 2), Some(4));
        assert_eq!(reserve(&reserved, &consumed, 1, 2), None);
    }
}
