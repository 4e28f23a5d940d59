//! What is read for every buffer of every operation.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// What is read for every buffer, on one cache line and under one symbol.
#[repr(align(64))]
pub(super) struct Asked {
    /// A bit for each kind that there may be memory of.
    pub(super) state: AtomicU32,
    /// Where the main thread's stack ends, and where the heap begins. See `is_never_a_device`.
    pub(super) stack: AtomicUsize,
    pub(super) heap: AtomicUsize,
    /// Where the program's data and bss begin, and how many bytes they have.
    pub(super) program: AtomicUsize,
    pub(super) program_len: AtomicUsize,
    /// When the kinds were last looked for.
    pub(super) answered: AtomicU64,
}

pub(super) static ASKED: Asked = Asked {
    state: AtomicU32::new(0),
    stack: AtomicUsize::new(0),
    heap: AtomicUsize::new(usize::MAX),
    program: AtomicUsize::new(0),
    program_len: AtomicUsize::new(0),
    answered: AtomicU64::new(0),
};
