//! Words for loom that forget an order: what a model of shared memory must fail with.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use loom::sync::atomic::AtomicU64;

use crate::core::slot::Words;

/// What a twin forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Twin {
    Sound,
    /// Stores are Relaxed.
    Release,
    /// Loads are Relaxed.
    Acquire,
}

#[derive(Debug)]
pub(crate) struct LoomWords(Vec<AtomicU64>, Twin);

impl LoomWords {
    pub(crate) fn new(words: usize, twin: Twin) -> LoomWords {
        LoomWords((0..words).map(|_| AtomicU64::new(0)).collect(), twin)
    }
}

impl Words for LoomWords {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0[at / 8].load(if self.1 == Twin::Acquire && order == Acquire { Relaxed } else { order })
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.0[at / 8]
            .store(value, if self.1 == Twin::Release && order == Release { Relaxed } else { order });
    }
}
