//! A revocation table under loom: its owner takes memory back that a peer accesses. The twins lack an order.

use std::sync::atomic::Ordering::SeqCst;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::shared::twin::{Twin, TwinWord};

struct Model {
    /// used, process, namespace and inside of one reader slot, and a generation.
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

    fn readers(&self) -> u32 {
        1
    }
    fn used(&self) -> &TwinWord {
        &self.words[0]
    }
    fn process(&self, _: u32) -> &TwinWord {
        &self.words[1]
    }
    fn namespace(&self, _: u32) -> &TwinWord {
        &self.words[2]
    }
    fn inside(&self, _: u32) -> &TwinWord {
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

fn name(process: u32) -> Name {
    Name { process, namespace: 1 }
}

/// Memory is taken back, and used by its owner, while a peer comes and accesses it.
fn take_back(words: Twin, fence: Twin) {
    loom::model(move || {
        let table = Arc::new(Model::new(words, fence));
        let theirs = table.clone();
        let peer = thread::spawn(move || {
            let reader = claim(&*theirs, name(7), |_| false).unwrap();
            if enter(&*theirs, reader, 0, 0) {
                // SAFETY: loom hands out a valid pointer, and fails the test if another has one.
                theirs.memory.with_mut(|p| unsafe { *p = 1 });
                leave(&*theirs, reader);
            }
        });
        assert!(end(&*table, 0, 0, |_| {
            thread::yield_now();
            Wait::On
        }));
        // SAFETY: as above.
        table.memory.with_mut(|p| unsafe { *p = 2 });
        peer.join().unwrap();
    });
}

/// Two want the reader slot of a process that has ended: one of them gets it.
fn inherit(words: Twin) {
    loom::model(move || {
        let table = Arc::new(Model::new(words, Twin::Sound));
        table.process(0).store(1, Relaxed);
        table.inside(0).store(1, Relaxed);
        let theirs = table.clone();
        let ended = |user: Name| user.process == 1;
        let peer = thread::spawn(move || claim(&*theirs, name(7), ended).is_some());
        let mine = claim(&*table, name(8), ended).is_some();
        assert!(mine != peer.join().unwrap(), "a reader slot for two");
    });
}

#[test]
fn memory_is_taken_back() {
    take_back(Twin::Sound, Twin::Sound);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_without_fences_accesses_memory_taken_back() {
    take_back(Twin::Sound, Twin::Fence);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_stores_leaves_too_early() {
    take_back(Twin::Release, Twin::Sound);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_relaxed_loads_misses_the_last_access() {
    take_back(Twin::Acquire, Twin::Sound);
}

#[test]
fn a_left_reader_slot_has_one_successor() {
    inherit(Twin::Sound);
}

#[test]
#[should_panic(expected = "a reader slot for two")]
fn twin_without_exchange_has_two_successors() {
    inherit(Twin::Exchange);
}
