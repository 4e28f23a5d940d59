//! A block of each of two ranks' kernels under loom: the words and slots as the kernel's text has them, and a
//! twin for each thing that it relies on.

use std::sync::atomic::{AtomicUsize, Ordering as Plain};
use std::sync::{Arc, Mutex};

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use crate::ptx::pair::{AHEAD, DEPTH};

/// How often a rank reads a word that does not let it go on, before it ends.
const TRIES: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// There is one slot less.
    NoSlot,
    /// A piece is read that has not come.
    NoPiece,
    /// The word is raised before the step is done.
    WordFirst,
    /// Nothing orders the word behind what the step has done.
    NoFence,
}

/// A rank's memory.
#[derive(Default)]
struct Side {
    arrived: AtomicU64,
    slots: [UnsafeCell<u64>; DEPTH as usize],
}

// SAFETY: what the model is to find out; loom looks at each access to the slots.
unsafe impl Sync for Side {}

/// Waits until the word is past the number; whether it is.
fn wait(word: &AtomicU64, number: u64) -> bool {
    for _ in 0..TRIES {
        if word.load(Acquire) > number {
            return true;
        }
        thread::yield_now();
    }
    false
}

/// What a rank sends as the piece with that number.
fn piece(rank: usize, number: u64) -> u64 {
    10 * number + rank as u64 + 1
}

/// Kernels of so many steps, one after the other; whether the rank has come to its end.
fn kernels(sides: &[Side; 2], rank: usize, all: &[u64], flaw: Flaw) -> bool {
    let (own, peer, mut before) = (&sides[rank], &sides[1 - rank], 0);
    let depth = if flaw == Flaw::NoSlot { DEPTH - 1 } else { DEPTH };
    for steps in all {
        let ahead = AHEAD.min(*steps);
        for step in 0..steps + ahead {
            let (sends, reduces) = (step < *steps, step >= ahead);
            let (sent, got) = (before + step, (before + step).wrapping_sub(ahead));
            if reduces && flaw != Flaw::NoPiece && !wait(&own.arrived, got) {
                return false;
            }
            let raise = || {
                if sends && flaw != Flaw::NoFence {
                    fence(AcqRel);
                }
                if sends {
                    peer.arrived.store(sent + 1, Relaxed);
                }
            };
            if flaw == Flaw::WordFirst {
                raise();
            }
            if sends {
                // SAFETY: as of `Side`; so below.
                peer.slots[(sent % depth) as usize].with_mut(|slot| unsafe { *slot = piece(rank, sent) });
            }
            if reduces {
                // SAFETY: as above.
                let found = own.slots[(got % depth) as usize].with(|slot| unsafe { *slot });
                assert_eq!(found, piece(1 - rank, got), "rank {rank}, piece {got}");
            }
            if flaw != Flaw::WordFirst {
                raise();
            }
        }
        before += steps;
    }
    true
}

fn model(flaw: Flaw, all: &'static [u64]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Executions in which both ranks came to the end.
    static WHOLE: AtomicUsize = AtomicUsize::new(0);
    WHOLE.store(0, Plain::Relaxed);
    builder.check(move || {
        let sides = Arc::new([Side::default(), Side::default()]);
        let other = {
            let sides = sides.clone();
            thread::spawn(move || kernels(&sides, 1, all, flaw))
        };
        let own = kernels(&sides, 0, all, flaw);
        if other.join().unwrap() && own {
            WHOLE.fetch_add(1, Plain::Relaxed);
        }
    });
    assert!(WHOLE.load(Plain::Relaxed) > 0, "no execution in which both ranks come to the end");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum EndFlaw {
    None,
    /// The first block that ends says that the kernel is done.
    First,
    /// What counts the blocks orders nothing.
    NoOrder,
    /// Nothing orders the host's word behind the count.
    NoFence,
}

/// A kernel of two blocks, of which each has results.
#[derive(Default)]
struct End {
    results: [UnsafeCell<u64>; 2],
    ended: AtomicU64,
    /// The host's word.
    done: AtomicU64,
}

// SAFETY: as of `Side`.
unsafe impl Sync for End {}

impl End {
    fn block(&self, block: usize, flaw: EndFlaw) {
        // SAFETY: as of `Side`; so below.
        self.results[block].with_mut(|result| unsafe { *result = block as u64 + 1 });
        let order = if flaw == EndFlaw::NoOrder { Relaxed } else { AcqRel };
        let is_last = self.ended.fetch_add(1, order) == 1;
        if is_last || flaw == EndFlaw::First {
            if flaw != EndFlaw::NoFence {
                fence(AcqRel);
            }
            self.done.store(1, Relaxed);
        }
    }
}

/// The host reads the results once its word says that the kernel is done.
fn end_model(flaw: EndFlaw) {
    static WHOLE: AtomicUsize = AtomicUsize::new(0);
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    WHOLE.store(0, Plain::Relaxed);
    loom::model(move || {
        let end = Arc::new(End::default());
        let blocks = [0, 1].map(|block| {
            let end = end.clone();
            thread::spawn(move || end.block(block, flaw))
        });
        if wait(&end.done, 0) {
            let found = [0, 1].map(|n| end.results[n].with(|result| unsafe { *result }));
            assert_eq!(found, [1, 2]);
            WHOLE.fetch_add(1, Plain::Relaxed);
        }
        blocks.into_iter().for_each(|block| block.join().unwrap());
    });
    assert!(WHOLE.load(Plain::Relaxed) > 0, "no execution in which the host sees the end");
}

#[test]
fn all_results_are_there_once_the_last_block_has_said_so() {
    end_model(EndFlaw::None);
}

#[test]
#[should_panic(expected = "Concurrent")]
fn twin_whose_first_block_says_so_lacks_results() {
    end_model(EndFlaw::First);
}

#[test]
#[should_panic(expected = "Concurrent")]
fn twin_that_counts_without_order_lacks_results() {
    end_model(EndFlaw::NoOrder);
}

#[test]
#[should_panic(expected = "Concurrent")]
fn twin_without_a_fence_before_the_last_word_lacks_results() {
    end_model(EndFlaw::NoFence);
}

#[test]
fn each_piece_is_read_once_it_has_come_and_before_the_next_one_is_in_its_slot() {
    model(Flaw::None, &[4]);
    model(Flaw::None, &[1, 2, 1]);
}

#[test]
#[should_panic(expected = "Concurrent read and write")]
fn twin_with_a_slot_less_writes_over_a_piece() {
    model(Flaw::NoSlot, &[4]);
}

#[test]
#[should_panic(expected = "piece 0")]
fn twin_that_waits_for_no_piece_reads_what_was_there_before() {
    model(Flaw::NoPiece, &[1]);
}

#[test]
#[should_panic(expected = "Concurrent read and write")]
fn twin_that_raises_its_word_first_has_pieces_read_that_are_not_there() {
    model(Flaw::WordFirst, &[2]);
}

#[test]
#[should_panic(expected = "Concurrent read and write")]
fn twin_without_a_fence_has_pieces_read_that_are_not_there() {
    model(Flaw::NoFence, &[2]);
}
