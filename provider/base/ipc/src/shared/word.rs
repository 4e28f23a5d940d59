//! Words that several processes change. The traits exist so that a test can put in one that forgets an
//! ordering.

use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A shared word of 32 bits.
pub trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, v: u32, order: Ordering);
    fn fetch_and(&self, v: u32, order: Ordering) -> u32;
    /// Stores `to` if the word is `from`, else answers what it is. No order.
    fn compare_exchange(&self, from: u32, to: u32) -> Result<(), u32>;
}

/// One of 64 bits.
pub trait Wide {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, v: u64, order: Ordering);
    /// Stores `to` if the word is `from`, else answers what it is. No order.
    fn compare_exchange(&self, from: u64, to: u64) -> Result<(), u64>;
}

impl Word for AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }
    #[inline]
    fn store(&self, v: u32, order: Ordering) {
        AtomicU32::store(self, v, order);
    }
    #[inline]
    fn fetch_and(&self, v: u32, order: Ordering) -> u32 {
        AtomicU32::fetch_and(self, v, order)
    }
    #[inline]
    fn compare_exchange(&self, from: u32, to: u32) -> Result<(), u32> {
        AtomicU32::compare_exchange(self, from, to, Relaxed, Relaxed).map(drop)
    }
}

impl Wide for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    #[inline]
    fn store(&self, v: u64, order: Ordering) {
        AtomicU64::store(self, v, order);
    }
    #[inline]
    fn compare_exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        AtomicU64::compare_exchange(self, from, to, Relaxed, Relaxed).map(drop)
    }
}
