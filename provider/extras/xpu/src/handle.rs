//! A ring of a context: what a caller asks for, the memory that is made for it, and how a drain takes it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use crate::device::Producer;
use crate::drain::Drain;
use crate::error::Error;
use crate::layout;
use crate::queue::{Place, QueueSide};
use crate::side::{Near, RingOptions, RingPlaces};
use crate::words::Words;

/// Most slots of a ring, entries of a queue.
const LOG2_MOST: u32 = 20;

/// How a ring is made.
#[derive(Clone, Debug)]
pub struct RingRequest {
    /// It has 2^log2 slots, from 1 to 2^20.
    pub log2_slots: u32,
    /// Commands are taken up to its bell only.
    pub bell: bool,
    /// It has a queue of completions, of 2^n entries.
    pub log2_entries: Option<u32>,
    /// Its slots are in memory of the caller's.
    pub slots: Option<Arc<Words>>,
    /// It is for kernels of the device whose context the calling thread has, if it has one, and has no bell:
    /// what they alone write is in that device's memory. Else kernels of any device, and code of this
    /// process, post.
    pub near: bool,
}

impl RingRequest {
    /// One of 2^`log2_slots` slots, in host memory, without a queue.
    pub fn new(log2_slots: u32) -> RingRequest {
        RingRequest { log2_slots, bell: false, log2_entries: None, slots: None, near: false }
    }
}

/// A ring of a context.
#[derive(Clone, Debug)]
pub struct RingHandle {
    /// Its number.
    pub id: u32,
    places: RingPlaces,
    log2: u32,
    /// Entries of its queue.
    pub entries: Option<Place>,
    /// How far a device has read them: a [`layout::QueueRead`].
    pub read: Option<Place>,
}

impl RingHandle {
    /// Makes the memory of one, and zeroes what is the caller's.
    pub(crate) fn new(id: u32, request: &RingRequest) -> Result<RingHandle, Error> {
        let log2 = request.log2_slots;
        if log2 > LOG2_MOST || request.log2_entries.is_some_and(|n| n > LOG2_MOST) {
            return Err(Error::Invalid("a ring has at most 2^20 slots, a queue as many entries"));
        }
        let slots = match &request.slots {
            Some(words) if words.len() < layout::SLOT_WORDS << log2 => {
                return Err(Error::Invalid("the memory for the slots is too short: 64 bytes for each"));
            }
            Some(words) => {
                (0..layout::SLOT_WORDS << log2).for_each(|at| words.get(at).store(0, Release));
                words.clone()
            }
            None => Words::new(layout::SLOT_WORDS << log2)?,
        };
        // Each in lines of its own: the device's, the host's, the queue's two.
        let control = Words::new(64)?;
        let place = |at| Place { words: control.clone(), at };
        let near = (request.near && !request.bell).then(|| Near::new(None)).flatten();
        let slots = Place { words: slots, at: 0 };
        let places = RingPlaces { slots, produced: place(0), status: place(16), near };
        let entries = match request.log2_entries {
            Some(n) => Some(Place { words: Words::new(8 << n)?, at: 0 }),
            None => None,
        };
        let read = entries.is_some().then(|| place(32));
        Ok(RingHandle { id, places, log2, entries, read })
    }

    /// Has a drain take its commands; what a device reads of it.
    pub(crate) fn add_to(&self, drain: &mut Drain, request: &RingRequest, timeout_ns: u64) -> layout::Ring {
        let control = &self.places.produced.words;
        let queue = match (&self.entries, &self.read, request.log2_entries) {
            (Some(entries), Some(read), Some(log2)) => {
                let head = Place { words: control.clone(), at: 40 };
                Some(drain.add_queue(QueueSide::new(log2, entries.clone(), read.clone(), head, timeout_ns)))
            }
            _ => None,
        };
        let (id, log2_slots, bell) = (self.id, self.log2, request.bell);
        let options = RingOptions { id, log2_slots, bell, queue, receive_queue: queue };
        drain.add_ring(self.places.clone(), options, timeout_ns)
    }

    /// Its slots.
    pub fn slots(&self) -> &Place {
        &self.places.slots
    }

    /// What writes into it, for code of this process that plays a device.
    ///
    /// # Panics
    /// If what its producers write is in a device's memory ([`RingRequest::near`]).
    pub fn producer(&self) -> Producer {
        assert!(self.places.near.is_none(), "the ring is for kernels");
        Producer::new(self.places.clone(), self.log2)
    }
}
