//! The agreement under loom: two and three ranks that run ahead of each other, and a twin for each thing that
//! it relies on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::*;
use crate::words_loom::LoomWords;

const H: Kind = Kind::Host;
const D: Kind = Kind::Device;

/// How often a rank reads words that do not let it go on, before it ends: what comes later is the same.
const TRIES: u32 = 2;

/// Ranks with these kinds of memory, one collective after the other. Words have `BITS` collectives, so that
/// few are enough to push one out.
fn model<const BITS: u32>(flaw: Flaw, kinds: &'static [&'static [Kind]]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(if kinds.len() > 2 { 1 } else { 2 });
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Executions in which all ranks came to the end.
    static WHOLE: AtomicUsize = AtomicUsize::new(0);
    WHOLE.store(0, Ordering::Relaxed);
    builder.check(move || {
        let words = LoomWords::new(kinds.len());
        let side = move |words: LoomWords, rank: usize| {
            let mut board: Agreement<LoomWords, BITS> = Agreement::new(words, rank).unwrap();
            board.flaw = flaw;
            for (i, kind) in kinds[rank].iter().enumerate() {
                let mut tries = 0;
                let wait = || {
                    tries += 1;
                    thread::yield_now();
                    if tries < TRIES { Ok(()) } else { Err(()) }
                };
                let all = kinds.iter().all(|of| of[i] == D);
                let outcome = match board.agree(*kind, wait) {
                    Ok(outcome) => outcome,
                    Err(Disagreement::Ended(())) => return 0,
                    Err(e) => panic!("{e:?}"),
                };
                let wanted = if all { Outcome::Device } else { Outcome::Staged };
                assert_eq!(outcome, wanted, "rank {rank} at collective {i}");
            }
            1
        };
        let others: Vec<_> = (1..kinds.len())
            .map(|rank| {
                let words = words.clone();
                thread::spawn(move || side(words, rank))
            })
            .collect();
        let own = side(words, 0);
        let ended: usize = others.into_iter().map(|other| other.join().unwrap()).sum();
        WHOLE.fetch_add((own + ended) / kinds.len(), Ordering::Relaxed);
    });
    assert!(WHOLE.load(Ordering::Relaxed) > 0, "no execution in which all ranks come to the end");
}

/// Rank 0 runs ahead, after a collective that is all ranks' with device memory.
const AHEAD: &[&[Kind]] = &[&[D, H, H], &[D, D, H]];

#[test]
fn two_ranks_come_to_one_outcome() {
    model::<2>(Flaw::None, AHEAD);
    model::<2>(Flaw::None, &[&[H, D], &[D, D]]);
    model::<2>(Flaw::None, &[&[D, D, D], &[D, D, D]]);
}

#[test]
fn three_ranks_come_to_one_outcome() {
    model::<2>(Flaw::None, &[&[D, H, H], &[D, D, H], &[D, D, H]]);
    model::<2>(Flaw::None, &[&[D, D], &[D, H], &[H, D]]);
}

#[test]
#[should_panic(expected = "at collective 0")]
fn twin_that_takes_the_last_collective_for_this_one_comes_to_another_outcome() {
    model::<2>(Flaw::NoHistory, AHEAD);
}

#[test]
#[should_panic(expected = "at collective 0")]
fn twin_that_pushes_out_without_waiting_comes_to_another_outcome() {
    model::<2>(Flaw::NoWait, AHEAD);
}
