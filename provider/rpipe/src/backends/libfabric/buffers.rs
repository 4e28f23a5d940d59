//! Buffers of messages, and of few bytes.

use std::collections::VecDeque;

use super::super::message::MOST;
use super::open::Opened;
use super::post::{self, Slots, Work};
use super::region::Registered;
use crate::{Error, Rank};

/// Receives that are posted.
pub const RECEIVES: usize = 64;
/// Buffers for messages, and for few bytes.
pub const SENDS: usize = 64;
/// Bytes of a buffer.
pub const ROOM: usize = MOST.next_multiple_of(64);

/// Memory for messages.
#[derive(Debug)]
pub struct Buffers {
    all: Registered,
    free: Vec<usize>,
}

impl Buffers {
    /// All buffers; those of numbers below [`RECEIVES`] are for receives.
    pub fn new(with: &Opened) -> Result<Buffers, Error> {
        let len = (RECEIVES + SENDS) * ROOM;
        let all = Registered::new(with, len.next_multiple_of(4096), false, 0)?;
        Ok(Buffers { all, free: (RECEIVES..RECEIVES + SENDS).collect() })
    }

    /// As [`Registered::deregister`].
    pub fn deregister(&mut self) {
        self.all.deregister();
    }

    pub fn receive(&self, with: &Opened, slots: &mut Slots, buffer: usize) -> Result<(), Error> {
        let slot = slots.take(Work::Receive(buffer))?;
        let (at, context) = (self.all.memory.address(buffer * ROOM), slots.context(slot));
        let posted = post::receive(with, at, ROOM, self.all.desc, context);
        if posted.is_err() {
            slots.end(context);
        }
        posted
    }

    /// A buffer with these bytes, its address and descriptor.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(usize, *mut u8, *mut libc::c_void), Error> {
        if bytes.len() > ROOM {
            return Err(Error::TooLong(format!("{} bytes at once, of {ROOM}", bytes.len())));
        }
        let buffer = self.free.pop().ok_or(Error::Again)?;
        self.all.memory.copy_in(buffer * ROOM, bytes);
        Ok((buffer, self.all.memory.address(buffer * ROOM), self.all.desc))
    }

    pub fn give(&mut self, buffer: usize) {
        self.free.push(buffer);
    }

    pub fn bytes(&self, buffer: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(ROOM)];
        self.all.memory.copy_out(buffer * ROOM, &mut bytes);
        bytes
    }
}

/// Messages that could not leave yet.
#[derive(Debug, Default)]
pub struct Outgoing {
    pub queue: VecDeque<(Rank, Vec<u8>)>,
    /// Receives that could not be posted.
    pub receives: Vec<usize>,
}

impl Outgoing {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.receives.is_empty()
    }
}
