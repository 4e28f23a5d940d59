//! What is read for every buffer of every operation.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// Finds out whether an answer is old.
pub(super) struct Clock {
    /// When it was last asked.
    pub(super) asked: AtomicU64,
    /// The word, if one is known, and what it was then.
    pub(super) word: AtomicPtr<AtomicU32>,
    pub(super) seen: AtomicU32,
}

impl Clock {
    const fn new() -> Clock {
        Clock {
            asked: AtomicU64::new(0),
            word: AtomicPtr::new(std::ptr::null_mut()),
            seen: AtomicU32::new(0),
        }
    }
}

/// What is read for every buffer, on one cache line and under one symbol.
#[repr(align(64))]
pub(super) struct Asked {
    /// A bit for each kind that there may be memory of.
    pub(super) state: AtomicU32,
    /// Where the main thread's stack ends, and where the heap begins. See `is_never_a_device`.
    pub(super) stack: AtomicUsize,
    pub(super) heap: AtomicUsize,
    pub(super) clock: Clock,
}

pub(super) static ASKED: Asked = Asked {
    state: AtomicU32::new(0),
    stack: AtomicUsize::new(0),
    heap: AtomicUsize::new(usize::MAX),
    clock: Clock::new(),
};
