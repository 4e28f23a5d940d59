//! How much memory the rings of an endpoint take to be fast, beyond what they need.
//!
//! A ring through which much goes ends no laps early any more: neither side waits then for lines that the
//! other has just used, but the ring takes all of its memory, for good where it is never idle. With a few
//! peers that is little. With many, rings would take it all without one being full, so that an endpoint's
//! rings have so many lines for this together, and those that come first have them. Where a consumer is
//! behind, the ring grows all the same: that is not counted here.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Lines that are left for the rings of an endpoint. Each change is one by itself, and nothing else depends
/// on it.
#[derive(Clone, Debug)]
pub(crate) struct Allowance(Arc<AtomicU32>);

impl Allowance {
    pub(crate) fn new(lines: u32) -> Allowance {
        Allowance(Arc::new(AtomicU32::new(lines)))
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn left(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

/// What one ring has of it.
#[derive(Debug)]
pub(in crate::shm) struct Lines {
    of: Allowance,
    lines: u32,
}

impl Lines {
    pub(in crate::shm) fn new(of: Allowance) -> Lines {
        Lines { of, lines: 0 }
    }

    /// So many lines more, if they are left.
    pub(in crate::shm) fn take(&mut self, lines: u32) -> bool {
        let taken = self.of.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(lines)).is_ok();
        if taken {
            self.lines += lines;
        }
        taken
    }

    pub(in crate::shm) fn give_back(&mut self) {
        self.of.0.fetch_add(std::mem::take(&mut self.lines), Relaxed);
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(all(test, not(loom)))]
#[path = "allowance_tests.rs"]
mod tests;
