//! Two sides at one counter under loom. The twin takes a piece in two steps.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::shared::twin::{Twin, WideTwin};

fn both(twin: Twin) {
    loom::model(move || {
        let word = Arc::new(WideTwin::new(twin));
        let mut counters = Counters::default();
        let (slot, generation) = counters.open(|_| &*word).unwrap();
        let theirs = word.clone();
        let other =
            thread::spawn(move || std::iter::from_fn(|| claim(&*theirs, generation, 2)).collect::<Vec<_>>());
        let mut all: Vec<u16> = std::iter::from_fn(|| claim(&*word, generation, 2)).collect();
        // The owner is done with its own; the other may still be at it while the counter moves on.
        counters.close(slot, generation, |_| &*word);
        let (_, next) = counters.open(|_| &*word).unwrap();
        let later = claim(&*word, next, 1);
        all.extend(other.join().unwrap());
        all.sort_unstable();
        assert_eq!(all, [0, 1], "a piece was lost or copied twice");
        assert_eq!(later, Some(0), "a piece of the next transfer was claimed by the last generation");
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

/// The word for what one side copied, and the twin in which it is reported too early or loaded without an
/// order.
fn report_of(twin: Twin) {
    loom::model(move || {
        let word = Arc::new((WideTwin::new(twin), UnsafeCell::new(0)));
        let theirs = word.clone();
        let other = thread::spawn(move || {
            // SAFETY: a piece that this side has claimed.
            theirs.1.with_mut(|piece| unsafe { *piece = 7 });
            report(&theirs.0, 1, 1, true);
        });
        if let Some(seen) = reported(&word.0, 1) {
            assert_eq!(seen, (1, true));
            // SAFETY: the other side has said that it is done.
            assert_eq!(word.1.with(|piece| unsafe { *piece }), 7);
        }
        other.join().unwrap();
    });
}

#[test]
fn a_reported_piece_is_visible() {
    report_of(Twin::Sound);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_stores_reports_before_the_piece() {
    report_of(Twin::Release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_loads_sees_a_report_before_the_piece() {
    report_of(Twin::Acquire);
}
