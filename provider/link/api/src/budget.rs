//! What peers may have a domain keep, besides messages that wait: a number of bytes for all of them together,
//! however many they are and whatever they call themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// So many bytes for all that share it. It is counted by one thread at a time, which has the domain: where
/// others looked, they would see what was true a moment before.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    most: AtomicUsize,
    used: AtomicUsize,
}

impl Default for Budget {
    /// Without a limit.
    fn default() -> Self {
        Budget::new(usize::MAX)
    }
}

impl Budget {
    /// Of so many bytes.
    pub fn new(most: usize) -> Budget {
        Budget(Arc::new(Counts { most: AtomicUsize::new(most), used: AtomicUsize::new(0) }))
    }

    /// From now on it is of so many bytes.
    pub fn set_most(&self, bytes: usize) {
        self.0.most.store(bytes, Relaxed);
    }

    #[inline]
    fn most(&self) -> usize {
        self.0.most.load(Relaxed)
    }

    /// Bytes that are taken up.
    #[inline]
    pub fn used(&self) -> usize {
        self.0.used.load(Relaxed)
    }

    /// A part of it, of no bytes at first.
    pub fn share(&self) -> Reservation {
        Reservation { of: self.clone(), bytes: 0 }
    }
}

/// Bytes that something takes up, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    of: Budget,
    bytes: usize,
}

impl Reservation {
    /// Whether so many bytes more are there.
    #[inline]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.of.most().saturating_sub(self.of.used()) >= bytes
    }

    /// Takes up so many bytes more, if they are there.
    #[inline]
    pub fn try_add(&mut self, bytes: usize) -> bool {
        let is_room = self.has_room(bytes);
        if is_room {
            self.add(bytes);
        }
        is_room
    }

    /// Takes up so many bytes more in any case; whether all are within the limit.
    #[inline]
    pub fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let used = self.of.used() + bytes;
        self.of.0.used.store(used, Relaxed);
        used <= self.of.most()
    }

    /// Takes up so many bytes less.
    #[inline]
    pub fn sub(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.of.0.used.store(self.of.used().saturating_sub(bytes), Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.sub(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_up_is_there_again_when_it_is_given_back_or_dropped() {
        let budget = Budget::new(10);
        let (mut one, mut other) = (budget.share(), budget.share());
        assert!(one.try_add(6) && !other.try_add(5) && other.try_add(4));
        assert!(!one.add(1), "beyond the limit");
        one.sub(100);
        assert_eq!(budget.used(), 4, "no more than it has taken up");
        drop(other);
        assert_eq!(budget.used(), 0);
        assert!(one.try_add(10) && !one.try_add(1));
        budget.set_most(11);
        assert!(one.try_add(1) && !one.try_add(1));
    }
}
