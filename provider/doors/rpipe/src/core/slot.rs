//! A slot: one message's notice, a cache line in memory of the reader. The writer stores what the message is,
//! and its bytes if they are few, and then the flag right behind; the reader looks at the flag, and at the
//! rest once it is there.
//!
//! The flag is the message's number, counted from 1, so neither zeros nor what an earlier message has left is
//! taken for it.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

use crate::Memory;
use crate::core::memory::Line;

/// Bytes of a slot.
pub(crate) const SLOT: usize = 64;
/// Bytes of a message that fit in.
pub(crate) const INLINE: usize = 40;
/// Where the place of the block is, how long message and block are, and the flag.
const PLACE: usize = 40;
const EXTENT: usize = 48;
pub(crate) const FLAG: usize = 56;

/// Numbers of handlers of active messages, from 1.
pub(crate) const HANDLERS: u16 = 1 << 15;

/// Words that two processes share.
pub(crate) trait Words {
    fn load(&self, at: usize, order: Ordering) -> u64;
    fn store(&self, at: usize, value: u64, order: Ordering);
}

impl Words for Memory {
    #[inline(always)]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    #[inline(always)]
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }
}

/// The line at 0 alone.
impl Words for Line {
    #[inline(always)]
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.0[(at / 8) & 7].load(order)
    }

    #[inline(always)]
    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.0[(at / 8) & 7].store(value, order);
    }
}

/// What a slot says of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Where its block begins in the heap, and the block's generation.
    pub(crate) granule: u32,
    pub(crate) generation: u16,
    /// Its bytes are in the slot.
    pub(crate) is_inline: bool,
    /// Active message: the handler's number, below `HANDLERS`; 0: a message to read.
    pub(crate) handler: u16,
    /// Bytes.
    pub(crate) len: u32,
    /// Granules of the block, which may be longer than the message.
    pub(crate) granules: u32,
}

impl Notice {
    #[inline(always)]
    fn place(self) -> u64 {
        u64::from(self.granule)
            | u64::from(self.generation) << 32
            | u64::from(self.is_inline) << 48
            | u64::from(self.handler) << 49
    }

    #[inline(always)]
    fn extent(self) -> u64 {
        u64::from(self.len) | u64::from(self.granules) << 32
    }

    #[inline(always)]
    fn new(place: u64, extent: u64) -> Notice {
        Notice {
            granule: place as u32,
            generation: (place >> 32) as u16,
            is_inline: place >> 48 & 1 != 0,
            handler: (place >> 49) as u16,
            len: extent as u32,
            granules: (extent >> 32) as u32,
        }
    }
}

/// Writer: fills the slot at `at` and raises its flag. `data`: the message's bytes as words, if they are in
/// the slot.
#[inline(always)]
pub(crate) fn publish<W: Words>(
    to: &W,
    at: usize,
    notice: Notice,
    data: impl Iterator<Item = u64>,
    flag: u64,
) {
    for (word, value) in data.take(INLINE / 8).enumerate() {
        to.store(at + 8 * word, value, Relaxed);
    }
    to.store(at + PLACE, notice.place(), Relaxed);
    to.store(at + EXTENT, notice.extent(), Relaxed);
    // Release: all of the above, and what the program has stored into the block, comes before.
    to.store(at + FLAG, flag, Release);
}

/// The slot as bytes, for a path that writes it.
pub(crate) fn encode(notice: Notice, data: &[u8], flag: u64) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..data.len().min(INLINE)].copy_from_slice(&data[..data.len().min(INLINE)]);
    slot[PLACE..EXTENT].copy_from_slice(&notice.place().to_ne_bytes());
    slot[EXTENT..FLAG].copy_from_slice(&notice.extent().to_ne_bytes());
    slot[FLAG..].copy_from_slice(&flag.to_ne_bytes());
    slot
}

/// Reader: whether the flag of the slot at `at` is this one.
#[inline(always)]
pub(crate) fn is_raised<W: Words>(from: &W, at: usize, flag: u64) -> bool {
    // Acquire: what was stored before the flag is there.
    from.load(at + FLAG, Acquire) == flag
}

/// Reader, once the flag is raised: what the slot says. Each word is loaded once.
#[inline(always)]
pub(crate) fn read<W: Words>(from: &W, at: usize) -> Notice {
    Notice::new(from.load(at + PLACE, Relaxed), from.load(at + EXTENT, Relaxed))
}

/// Reader: a word of the message's bytes in the slot.
#[inline(always)]
pub(crate) fn word<W: Words>(from: &W, at: usize, n: usize) -> u64 {
    from.load(at + 8 * n.min(INLINE / 8 - 1), Relaxed)
}

#[cfg(all(test, loom))]
#[path = "slot_loom.rs"]
mod model;
