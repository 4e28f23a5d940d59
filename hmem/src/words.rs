//! Words that others write, too: a device, say.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use crate::kind::Caps;
use crate::span::Span;

/// Two words of 8 bytes in memory that the application provides and that others may write at any time, a
/// device by atomics of the whole system among them. What they hold is whatever was written there last: each
/// call loads a word once, and no value of it is wrong.
///
/// The memory stays valid for as long as this is used: for the span's promise that is the operation.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    addr: usize,
}

impl Words {
    /// The words of this memory: `None` if it is not 16 bytes, is not aligned to a word, cannot be loaded and
    /// stored by the CPU, or may vanish.
    pub fn of(span: Span) -> Option<Words> {
        let fits = span.len() == size_of::<[u64; 2]>() && span.addr() % size_of::<u64>() as u64 == 0;
        let addr = usize::try_from(span.addr()).ok()?;
        (fits && span.can(Caps::CPU) && !span.may_vanish()).then_some(Words { addr })
    }

    fn word(&self, second: bool) -> &AtomicU64 {
        let at = std::ptr::with_exposed_provenance_mut::<u64>(self.addr).wrapping_add(usize::from(second));
        // SAFETY: `of` was given a span of two words, aligned as a word is, whose invariant makes them valid
        // for reads and writes by the CPU until the operation is complete, and that is when this is not used
        // any more. What others do to them meanwhile is atomic, or a race of their own.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// What the first word holds, or the second.
    pub fn get(&self, second: bool) -> u64 {
        self.word(second).load(Acquire)
    }

    /// Adds to a word; beyond the largest number it begins at 0 again.
    pub fn add(&self, second: bool, n: u64) {
        self.word(second).fetch_add(n, AcqRel);
    }

    /// Overwrites a word.
    pub fn set(&self, second: bool, n: u64) {
        self.word(second).store(n, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    #[test]
    fn two_words_are_counted_in() {
        let memory = Span::leak(32);
        let at = (8 - memory.addr() as usize % 8) % 8;
        let span = memory.part(at, 16).unwrap();
        let words = Words::of(span).unwrap();
        words.set(false, u64::MAX);
        words.add(false, 3);
        words.add(true, 7);
        assert_eq!((words.get(false), words.get(true)), (2, 7));
        let mut bytes = [0; 16];
        crate::read(&[span], 0, &mut bytes);
        assert_eq!(bytes, [[2, 0, 0, 0, 0, 0, 0, 0], [7, 0, 0, 0, 0, 0, 0, 0]].concat()[..]);
    }

    #[test]
    fn memory_that_is_not_two_words_of_the_cpus_is_none() {
        let memory = Span::leak(64);
        let at = (8 - memory.addr() as usize % 8) % 8;
        for (off, len) in [(at, 15), (at, 17), (at, 0), (at + 1, 16), (at + 4, 16)] {
            assert!(Words::of(memory.part(off, len).unwrap()).is_none(), "{len} bytes at {off}");
        }
        // SAFETY: no device is asked to follow the address.
        let device = unsafe { Span::new(memory.addr() as usize + at, 16, Kind::Cuda) };
        assert!(Words::of(device).is_none());
    }
}
