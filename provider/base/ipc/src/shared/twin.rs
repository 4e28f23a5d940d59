//! Words for loom that lack an order: what a model of shared memory must fail with. `provider/link/links` takes
//! this file too.

use std::sync::atomic::Ordering::{self, Relaxed};

use ipc::word::{Wide, Word};
use loom::sync::atomic::{AtomicU32, AtomicU64};

/// What a twin forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Twin {
    Sound,
    /// Stores are Relaxed.
    Release,
    /// Loads are Relaxed.
    Acquire,
    /// Zeros are not stored.
    Zero,
    /// Stores of words with the highest bit are Relaxed.
    HighBit,
    /// Fences are none.
    Fence,
    /// A compare-exchange is a load and a store.
    Exchange,
}

/// A word that forgets what its twin forgets.
#[derive(Debug)]
pub(crate) struct TwinWord(pub(crate) AtomicU32, Twin);

impl TwinWord {
    pub(crate) fn new(twin: Twin) -> TwinWord {
        TwinWord(AtomicU32::new(0), twin)
    }
}

impl Word for TwinWord {
    fn load(&self, order: Ordering) -> u32 {
        self.0.load(if self.1 == Twin::Acquire { Relaxed } else { order })
    }

    fn store(&self, v: u32, order: Ordering) {
        if !(self.1 == Twin::Zero && v == 0) {
            let forgets = self.1 == Twin::Release || self.1 == Twin::HighBit && v >> 31 == 1;
            self.0.store(v, if forgets { Relaxed } else { order });
        }
    }

    fn fetch_and(&self, v: u32, order: Ordering) -> u32 {
        self.0.fetch_and(v, order)
    }

    fn compare_exchange(&self, from: u32, to: u32) -> Result<(), u32> {
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

/// A word of 64 bits that forgets what its twin forgets.
#[derive(Debug)]
pub(crate) struct WideTwin(AtomicU64, Twin);

#[allow(dead_code)] // Not every model has one.
impl WideTwin {
    pub(crate) fn new(twin: Twin) -> WideTwin {
        WideTwin(AtomicU64::new(0), twin)
    }
}

impl Wide for WideTwin {
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
