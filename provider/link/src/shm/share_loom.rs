//! Two sides at one counter under loom. The twin takes a piece in two steps.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::super::ring::model::{Twin, TwinWord};
use super::*;

fn both(twin: Twin) {
    loom::model(move || {
        let word = Arc::new(TwinWord::new(twin));
        let mut slots = Slots::default();
        let (slot, turn) = slots.open(|_| &*word).unwrap();
        let theirs = word.clone();
        let other =
            thread::spawn(move || std::iter::from_fn(|| claim(&*theirs, turn, 2)).collect::<Vec<_>>());
        let mut all: Vec<u16> = std::iter::from_fn(|| claim(&*word, turn, 2)).collect();
        // The owner is done with its own; the other may still be at it while the counter moves on.
        slots.close(slot, turn, |_| &*word);
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
        forget(&word.0, 1);
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
