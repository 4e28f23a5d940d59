//! Memory for tests and models: words of 4 bytes, by their number.

use std::sync::Arc;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Relaxed, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Relaxed, fence};

use crate::error::Error;
use crate::memory::Memory;
use crate::place::{Place, TargetId};

/// The place of a word.
pub(crate) fn word(number: u64) -> Place {
    Place { target: TargetId(0), offset: 4 * number }
}

/// Words that start as 0.
#[derive(Debug)]
pub(crate) struct TestMemory {
    words: Arc<Vec<AtomicU32>>,
    /// What a broken twin lacks.
    fences: bool,
}

impl TestMemory {
    pub(crate) fn new(words: usize) -> Arc<TestMemory> {
        let words = Arc::new((0..words).map(|_| AtomicU32::new(0)).collect());
        Arc::new(TestMemory { words, fences: true })
    }

    /// The same words for a side with fences, or for its twin without.
    #[cfg(loom)]
    pub(crate) fn side(&self, fences: bool) -> Arc<TestMemory> {
        Arc::new(TestMemory { words: self.words.clone(), fences })
    }

    fn at(&self, place: Place) -> Result<&AtomicU32, Error> {
        self.check(place, 4, 4)?;
        Ok(&self.words[place.offset as usize / 4])
    }
}

impl Memory for TestMemory {
    fn check(&self, place: Place, len: u64, align: u64) -> Result<(), Error> {
        let inside = place.offset.checked_add(len).is_some_and(|end| end <= 4 * self.words.len() as u64);
        match (place.target, inside && place.offset % align == 0) {
            (TargetId(0), true) => Ok(()),
            (TargetId(0), false) => Err(Error::OutOfPlace(place, len)),
            (other, _) => Err(Error::NoTarget(other)),
        }
    }

    fn load32(&self, at: Place) -> Result<u32, Error> {
        Ok(self.at(at)?.load(Relaxed))
    }

    fn store32(&self, to: Place, value: u32) -> Result<(), Error> {
        self.at(to)?.store(value, Relaxed);
        Ok(())
    }

    fn store64(&self, to: Place, value: u64) -> Result<(), Error> {
        self.check(to, 8, 8)?;
        self.store32(to, value as u32)?;
        self.store32(to.plus(4), (value >> 32) as u32)
    }

    fn add32(&self, to: Place, value: u32) -> Result<(), Error> {
        self.at(to)?.fetch_add(value, Relaxed);
        Ok(())
    }

    fn fence(&self) {
        if self.fences {
            fence(AcqRel);
        }
    }
}
