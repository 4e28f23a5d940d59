//! Two sides at one counter under loom. The twin takes a piece in two steps.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::super::ring::model::Twin;
use super::*;

/// A word that forgets what its twin forgets.
#[derive(Debug)]
struct TwinWord(loom::sync::atomic::AtomicU64, Twin);

impl TwinWord {
    fn new(twin: Twin) -> TwinWord {
        TwinWord(loom::sync::atomic::AtomicU64::new(0), twin)
    }
}

impl Wide for TwinWord {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(if self.1 == Twin::Acquire { Relaxed } else { order })
    }

    fn store(&self, v: u64, order: Ordering) {
        self.0.store(v, if self.1 == Twin::Release { Relaxed } else { order });
    }

    fn compare_exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        if self.1 != Twin::Exchange {
            return self.0.compare_exchange(from, to, Relaxed, Relaxed).map(drop);
        }
        let now = self.0.load(Relaxed);
        if now != from {
            return Err(now);
        }
        self.0.store(to, Relaxed);
        Ok(())
    }
}

fn both(twin: Twin) {
    loom::model(move || {
        let word = Arc::new(TwinWord::new(twin));
        let mut slots = Slots::default();
        let (slot, generation) = slots.open(|_| &*word).unwrap();
        let theirs = word.clone();
        let other =
            thread::spawn(move || std::iter::from_fn(|| claim(&*theirs, generation, 2)).collect::<Vec<_>>());
        let mut all: Vec<u16> = std::iter::from_fn(|| claim(&*word, generation, 2)).collect();
        // The owner is done with its own; the other may still be at it while the counter moves on.
        slots.close(slot, generation, |_| &*word);
        let (_, next) = slots.open(|_| &*word).unwrap();
        let later = claim(&*word, next, 1);
        all.extend(other.join().unwrap());
        all.sort_unstable();
        assert_eq!(all, [0, 1], "a piece was lost or copied twice");
        assert_eq!(later, Some(0), "a piece of the next transfer went by the name of the last");
    });
}

#[test]
fn each_piece_is_claimed_once() {
    both(Twin::Sound);
}

#[test]
#[should_panic(expected = "a piece")]
fn twin_that_claims_in_two_steps_claims_twice() {
    both(Twin::Exchange);
}

/// The word for what one side copied, and the twin in which it is reported too early or heard too late.
fn told(twin: Twin) {
    loom::model(move || {
        let word = Arc::new((TwinWord::new(twin), UnsafeCell::new(0)));
        let theirs = word.clone();
        let other = thread::spawn(move || {
            // SAFETY: a piece that this side has claimed.
            theirs.1.with_mut(|piece| unsafe { *piece = 7 });
            report(&theirs.0, 1, 1, true);
        });
        if let Some(told) = reported(&word.0, 1) {
            assert_eq!(told, (1, true));
            // SAFETY: the other side has said that it is done.
            assert_eq!(word.1.with(|piece| unsafe { *piece }), 7);
        }
        other.join().unwrap();
    });
}

#[test]
fn what_is_reported_is_there() {
    told(Twin::Sound);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_that_reports_too_early_shows_what_is_not_there() {
    told(Twin::Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_that_hears_too_late_shows_what_is_not_there() {
    told(Twin::Acquire);
}
