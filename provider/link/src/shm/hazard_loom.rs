//! A board under loom: its owner takes memory back that a peer accesses. The twins lack an order.

use std::sync::atomic::Ordering::SeqCst;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::super::ring::model::{Twin, TwinWord};
use super::*;

struct Model {
    /// used, who, space, holds of one seat, and a generation.
    words: [TwinWord; 5],
    fence: bool,
    memory: UnsafeCell<u32>,
}

impl Model {
    fn new(words: Twin, fence: Twin) -> Model {
        let words = [(); 5].map(|()| TwinWord::new(words));
        Model { words, fence: fence != Twin::Fence, memory: UnsafeCell::new(0) }
    }
}

impl Words for Model {
    type Word = TwinWord;

    fn seats(&self) -> u32 {
        1
    }
    fn used(&self) -> &TwinWord {
        &self.words[0]
    }
    fn who(&self, _: u32) -> &TwinWord {
        &self.words[1]
    }
    fn space(&self, _: u32) -> &TwinWord {
        &self.words[2]
    }
    fn holds(&self, _: u32) -> &TwinWord {
        &self.words[3]
    }
    fn generation(&self, _: u32) -> &TwinWord {
        &self.words[4]
    }
    fn fence(&self) {
        if self.fence {
            loom::sync::atomic::fence(SeqCst);
        }
    }
}

/// Memory is taken back, and used by its owner, while a peer comes and accesses it.
fn take_back(words: Twin, fence: Twin) {
    loom::model(move || {
        let board = Arc::new(Model::new(words, fence));
        let theirs = board.clone();
        let peer = thread::spawn(move || {
            let seat = claim(&*theirs, (7, 1), |_, _| false).unwrap();
            if enter(&*theirs, seat, 0, 0) {
                // SAFETY: loom hands out a valid pointer, and fails the test if another has one.
                theirs.memory.with_mut(|p| unsafe { *p = 1 });
                leave(&*theirs, seat);
            }
        });
        assert!(end(&*board, 0, 0, |_, _| {
            thread::yield_now();
            Waits::On
        }));
        // SAFETY: as above.
        board.memory.with_mut(|p| unsafe { *p = 2 });
        peer.join().unwrap();
    });
}

/// Two want the seat of a dead one, and then it has the one who got it.
fn inherit(words: Twin) {
    loom::model(move || {
        let board = Arc::new(Model::new(words, Twin::Sound));
        board.who(0).store(1, Relaxed);
        board.holds(0).store(1, Relaxed);
        let theirs = board.clone();
        let dead = |who, _| who == 1;
        let peer = thread::spawn(move || claim(&*theirs, (7, 1), dead).is_some());
        let mine = claim(&*board, (8, 1), dead).is_some();
        assert!(mine != peer.join().unwrap(), "a seat for two");
    });
}

#[test]
fn memory_is_taken_back() {
    take_back(Twin::Sound, Twin::Sound);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_without_fences_is_inside_meanwhile() {
    take_back(Twin::Sound, Twin::Fence);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_stores_leaves_too_early() {
    take_back(Twin::Release, Twin::Sound);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_loads_sees_no_leaving() {
    take_back(Twin::Acquire, Twin::Sound);
}

#[test]
fn a_seat_has_one_heir() {
    inherit(Twin::Sound);
}

#[test]
#[should_panic(expected = "a seat for two")]
fn twin_without_exchange_has_two_heirs() {
    inherit(Twin::Exchange);
}
