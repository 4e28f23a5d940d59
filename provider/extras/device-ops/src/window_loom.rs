//! The agreement of collectives that overlap, under loom: ranks that run ahead of each other, and a twin for
//! what it relies on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread;

use super::*;
use crate::words_loom::LoomWords;

const H: Kind = Kind::Host;
const D: Kind = Kind::Device;

/// How often a rank goes round without an outcome, before it ends.
const TRIES: u32 = 3;

/// Ranks with these kinds of memory, of which each posts as many as there is room for before it asks for an
/// outcome. Words have one collective.
fn model(flaw: Flaw, kinds: &'static [&'static [Kind]]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    static WHOLE: AtomicUsize = AtomicUsize::new(0);
    WHOLE.store(0, Ordering::Relaxed);
    builder.check(move || {
        let (posted, found) = (LoomWords::new(kinds.len()), LoomWords::new(kinds.len()));
        let side = move |posted: LoomWords, found: LoomWords, rank: usize| {
            let mut window: Window<LoomWords, 1> = Window::new(posted, found, rank).unwrap();
            window.flaw = flaw;
            let (mut next, mut outcomes, mut tries) = (0, 0, 0);
            while outcomes < kinds[rank].len() && tries < TRIES {
                if next < kinds[rank].len() && window.has_room(1).unwrap() {
                    window.post(kinds[rank][next]);
                    next += 1;
                }
                match window.outcome().unwrap() {
                    Some(outcome) => {
                        let all = kinds.iter().all(|of| of[outcomes] == D);
                        let wanted = if all { Outcome::Device } else { Outcome::Staged };
                        assert_eq!(outcome, wanted, "rank {rank} at collective {outcomes}");
                        outcomes += 1;
                    }
                    None => {
                        tries += 1;
                        thread::yield_now();
                    }
                }
            }
            usize::from(outcomes == kinds[rank].len())
        };
        let others: Vec<_> = (1..kinds.len())
            .map(|rank| {
                let (posted, found) = (posted.clone(), found.clone());
                thread::spawn(move || side(posted, found, rank))
            })
            .collect();
        let mut whole = side(posted, found, 0);
        for other in others {
            whole += other.join().unwrap();
        }
        if whole == kinds.len() {
            WHOLE.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(WHOLE.load(Ordering::Relaxed) > 0, "no execution came to the end");
}

#[test]
fn ranks_that_run_ahead_agree() {
    model(Flaw::None, &[&[D, D], &[D, D]]);
    model(Flaw::None, &[&[D, H], &[D, D]]);
    model(Flaw::None, &[&[H, D], &[D, D]]);
}

#[test]
#[should_panic(expected = "at collective")]
fn what_is_pushed_out_too_early_is_missed() {
    model(Flaw::NoRoom, &[&[D, H], &[D, D]]);
}

#[test]
#[should_panic(expected = "at collective")]
fn that_others_have_posted_it_is_not_enough() {
    model(Flaw::PostedAlone, &[&[D, H], &[D, D]]);
}
