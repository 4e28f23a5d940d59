//! The ring under loom, which tries every interleaving and every value a weakly ordered load may
//! give. Each promise of the ring has a twin that lacks it and must fail.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p strait-link --lib`

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;
use crate::twin::{Twin, TwinWord};

/// A ring whose lines are a word, which is a commit word or payload, and payload that loom watches
/// for races.
#[derive(Debug)]
pub(crate) struct LoomMem {
    lines: Vec<(TwinWord, UnsafeCell<u8>)>,
    head: TwinWord,
    bell: TwinWord,
    want: TwinWord,
    fence: bool,
}

impl LoomMem {
    /// `data` is the twin of commit words, `head` that of the position, `fence` that of fences.
    pub(crate) fn new(lines: usize, data: Twin, head: Twin, fence: Twin) -> LoomMem {
        let word = TwinWord::new;
        LoomMem {
            lines: (0..lines).map(|_| (word(data), UnsafeCell::new(0))).collect(),
            head: word(head),
            bell: word(Twin::Sound),
            want: word(Twin::Sound),
            fence: fence != Twin::Fence,
        }
    }

    /// Sound but for `bell`, whose twin this is.
    pub(crate) fn with_bell(lines: usize, bell: Twin) -> LoomMem {
        let bell = TwinWord::new(bell);
        // Fences alone would make up for the order that `bell` lacks.
        LoomMem { bell, ..LoomMem::new(lines, Twin::Sound, Twin::Sound, Twin::Fence) }
    }

    fn each(at: usize, len: usize, mut f: impl FnMut(usize, bool, usize)) {
        // First byte of a line stands for its word, the fifth for the rest.
        for i in at..at + len {
            match i % LINE {
                0 => f(i / LINE, true, i - at),
                4 => f(i / LINE, false, i - at),
                _ => {}
            }
        }
    }
}

impl Mem for Arc<LoomMem> {
    type Word = TwinWord;

    fn lines(&self) -> u32 {
        self.lines.len() as u32
    }
    fn commit(&self, line: u32) -> &TwinWord {
        &self.lines[line as usize].0
    }
    fn head(&self) -> &TwinWord {
        &self.head
    }
    fn bell(&self) -> &TwinWord {
        &self.bell
    }
    fn want(&self) -> &TwinWord {
        &self.want
    }
    fn fence(&self) {
        if self.fence {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }
    fn will_read(&self, _: usize) {}
    fn will_write(&self, _: usize) {}
    fn hand_over(&self, _: usize) {}
    unsafe fn put(&self, at: usize, src: *const u8, len: usize) {
        LoomMem::each(at, len, |line, word, i| {
            // SAFETY: `i < len`, and `src` is valid for that by contract.
            let byte = unsafe { *src.add(i) };
            if word {
                self.lines[line].0.0.store(u32::from(byte), Relaxed);
            } else {
                // SAFETY: loom hands out a valid pointer, and fails the test if another has one.
                self.lines[line].1.with_mut(|p| unsafe { *p = byte });
            }
        });
    }
    unsafe fn get(&self, at: usize, dst: *mut u8, len: usize) {
        LoomMem::each(at, len, |line, word, i| {
            let byte = if word {
                self.lines[line].0.0.load(Relaxed) as u8
            } else {
                // SAFETY: as in `put`.
                self.lines[line].1.with(|p| unsafe { *p })
            };
            // SAFETY: `i < len`, and `dst` is valid for that by contract.
            unsafe { *dst.add(i) = byte };
        });
    }
}

/// Frames of these lengths cross a ring of four lines.
fn cross(data: Twin, head: Twin, lens: &'static [usize]) {
    cross_ring(4, data, head, lens);
}

/// Frames of these lengths cross a ring of so many lines.
fn cross_ring(lines: usize, data: Twin, head: Twin, lens: &'static [usize]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = runs.clone();
    model.check(move || {
        counted.fetch_add(1, Relaxed);
        let mem = Arc::new(LoomMem::new(lines, data, head, Twin::Sound));
        let mut tx = Producer::starting_at(mem.clone(), u32::MAX - 1, Allowance::new(u32::MAX));
        mem.head.0.store(u32::MAX - 1, Relaxed);
        let mut rx = Consumer::starting_at(mem, u32::MAX - 1);
        let sender = thread::spawn(move || {
            for (i, &len) in lens.iter().enumerate() {
                while !tx.reserve(len).unwrap() {
                    thread::yield_now();
                }
                // SAFETY: just reserved.
                unsafe { tx.write(0, &vec![i as u8 + 1; len]) };
                tx.publish(len);
            }
        });
        for (i, &len) in lens.iter().enumerate() {
            let got = loop {
                match rx.peek().unwrap() {
                    Some(got) => break got,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(got, len, "the length of frame {i}");
            let mut bytes = [0; LINE];
            rx.read(0, &mut bytes);
            assert_eq!(bytes[0], i as u8 + 1);
            if len > LINE - COMMIT {
                assert_eq!(bytes[LINE - COMMIT], i as u8 + 1);
            }
            rx.advance();
        }
        assert!(rx.peek().unwrap().is_none());
        sender.join().unwrap();
    });
    // loom has been seen to try one interleaving only, where it takes orders for given.
    assert!(runs.load(Relaxed) > 500, "loom tried {} runs only", runs.load(Relaxed));
}

/// The long frame leaves payload where later, on the next lap, a commit word is looked for.
const LAP: &[usize] = &[LINE, 8, 8, 8, 8];

#[test]
fn frames_arrive_whole_and_in_order() {
    cross(Twin::Sound, Twin::Sound, LAP);
    cross(Twin::Sound, Twin::Sound, &[8, LINE, LINE]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_a_relaxed_commit_is_torn() {
    cross(Twin::Release, Twin::Sound, LAP);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_with_a_relaxed_peek() {
    cross(Twin::Acquire, Twin::Sound, LAP);
}

#[test]
#[should_panic(expected = "the length of frame")]
fn twin_that_does_not_zero() {
    cross(Twin::Zero, Twin::Sound, LAP);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_that_publishes_its_place_relaxed() {
    cross(Twin::Sound, Twin::Release, LAP);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_that_looks_for_room_relaxed() {
    cross(Twin::Sound, Twin::Acquire, LAP);
}

/// In a ring of sixteen lines a lap may end after two, if the consumer has taken both; if it has not taken
/// the third record, the fourth is behind where that lap ended.
const LAPS: &[usize] = &[8, 8, 8, 8, 8];

#[test]
fn frames_arrive_whole_and_in_order_where_laps_end_early() {
    cross_ring(16, Twin::Sound, Twin::Sound, LAPS);
    cross_ring(16, Twin::Sound, Twin::Sound, &[8, 8, LINE, 8]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn twin_that_leads_elsewhere_relaxed() {
    cross_ring(16, Twin::HighBit, Twin::Sound, LAPS);
}

#[test]
#[should_panic(expected = "is_none()")]
fn twin_that_does_not_zero_where_laps_end_early() {
    cross_ring(16, Twin::Zero, Twin::Sound, LAPS);
}
