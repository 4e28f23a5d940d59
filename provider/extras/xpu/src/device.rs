//! The device's side of a ring, for code of this process that plays one: a host program without a GPU, and
//! tests.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use crate::command::Raw;
use crate::layout::{SLOT_WORDS, word_of};
use crate::ring;
use crate::side::RingPlaces;

/// How a wait ended that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time is over.
    Timeout,
    /// The ring's error word.
    Error(u64),
}

/// Writes commands into a ring. Several may write into one.
#[derive(Clone, Debug)]
pub struct Producer {
    places: RingPlaces,
    log2: u32,
}

impl Producer {
    /// Of a ring of 2^`log2` slots in these places.
    pub fn new(places: RingPlaces, log2: u32) -> Producer {
        Producer { places, log2 }
    }

    /// Writes these commands one behind the other; the first one's ticket, or `None` if the ring has no room
    /// for them.
    pub fn post(&self, commands: &[Raw]) -> Option<u64> {
        let reserved = self.places.produced.word(word_of!(Produced.reserved));
        let consumed = self.places.status.word(word_of!(Status.consumed));
        let first = ring::reserve(reserved, consumed, commands.len() as u64, self.log2)?;
        for (ticket, command) in (first..).zip(commands) {
            let at = ring::slot(ticket, self.log2) * SLOT_WORDS;
            let words = command.pack(ring::lap(ticket, self.log2));
            ring::put(|i| self.places.slots.word(at + i), &words);
        }
        Some(first)
    }

    /// Stores the bell: commands below this ticket are written.
    pub fn notify(&self, below: u64) {
        self.places
            .produced
            .word(word_of!(Produced.bell))
            .fetch_max(below, std::sync::atomic::Ordering::Release);
    }

    /// Commands below this ticket are complete at the target, or have failed.
    pub fn done(&self) -> u64 {
        self.places.status.word(word_of!(Status.done)).load(Acquire)
    }

    /// The ring's error word.
    pub fn error(&self) -> u64 {
        self.places.status.word(word_of!(Status.error)).load(Acquire)
    }

    /// Commands that have failed.
    pub fn failed(&self) -> u64 {
        self.places.status.word(word_of!(Status.failed)).load(Acquire)
    }

    /// Grows while the drain runs.
    pub fn beat(&self) -> u64 {
        self.places.status.word(word_of!(Status.beat)).load(Relaxed)
    }

    /// Waits until the command is complete at the target. An error of the ring ends the wait, too.
    pub fn wait(&self, ticket: u64, most: Duration) -> Result<(), Ended> {
        let begin = Instant::now();
        loop {
            let done = self.done() > ticket;
            match self.error() {
                0 if done => return Ok(()),
                0 => {}
                error => return Err(Ended::Error(error)),
            }
            if begin.elapsed() > most {
                return Err(Ended::Timeout);
            }
            std::thread::yield_now();
        }
    }
}
