//! Which slots the parts of a message between two devices have, and where in them.

use crate::layout::{Layout, WORDS};

/// Most blocks of a kernel.
const BLOCKS: usize = 16;
/// What a message has in one part, and bytes of a part at least where there are several (H200: a launch of
/// several blocks takes 2 us more than one of one).
pub(crate) const ONE_PART: usize = 32 << 10;
pub(crate) const LEAST: usize = 8 << 10;
/// Most blocks of a long put, and from which length on.
const PUT_BLOCKS: usize = 32;
const LONG_PUT: usize = 2 << 20;

/// Where the parts of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots {
    pub(crate) at: usize,
    /// From one slot to the next.
    pub(crate) stride: usize,
    pub(crate) count: u32,
    /// That of the first part.
    pub(crate) first: u32,
    /// Bytes of each part but the last.
    pub(crate) part: usize,
    pub(crate) parts: u32,
    /// The logarithm of how many parts a slot has, and from one to the next there.
    pub(crate) shift: u32,
    pub(crate) cell: usize,
}

impl Slots {
    /// Those of a message: one for each `slot_bytes` at most, as by memory operations. Where that is fewer
    /// than parts a slot has several: in the end of the first word's bytes, and in those of the next words.
    pub(crate) fn of(layout: &Layout, at: usize, first: u32, len: usize) -> Slots {
        let (count, stride) = (layout.slots, layout.device_stride());
        let (most, cell) = (len.div_ceil(layout.slot_bytes as usize).max(1), layout.cell());
        let least = if len <= ONE_PART { ONE_PART } else { LEAST };
        let blocks = BLOCKS.min(count as usize);
        let part = len.div_ceil(blocks).next_multiple_of(1024).clamp(least, layout.device_slot());
        let parts = len.div_ceil(part).max(1);
        let all = Slots { at, stride, count, first, part, parts: parts as u32, shift: 0, cell: 0 };
        if parts <= most {
            return all;
        }
        let in_all = most * WORDS as usize;
        let part = part.max(len.div_ceil(in_all).next_multiple_of(1024)).min(cell);
        let parts = len.div_ceil(part);
        let shift = parts.div_ceil(most).next_power_of_two().ilog2();
        let at = at + layout.device_slot() - cell;
        Slots { at, part, parts: parts as u32, shift, cell, ..all }
    }

    /// The slots that it takes.
    pub(crate) fn taken(&self) -> u32 {
        self.parts.div_ceil(1 << self.shift)
    }

    /// The slot of a part, and which of its words.
    pub(crate) fn place(&self, part: u32) -> (u32, u32) {
        ((self.first + (part >> self.shift)) % self.count, part & ((1 << self.shift) - 1))
    }

    pub(crate) fn blocks(&self) -> u32 {
        let most = if self.is_joint() { self.parts } else { BLOCKS as u32 };
        self.parts.min(self.count << self.shift).min(most)
    }

    /// Of memory that is copied to one place.
    pub(crate) fn spread(at: usize, len: usize) -> Slots {
        if len <= ONE_PART {
            let part = len.max(1);
            return Slots { at, stride: 0, count: 1, first: 0, part, parts: 1, shift: 0, cell: 0 };
        }
        let blocks = if len < LONG_PUT { BLOCKS } else { PUT_BLOCKS };
        let part = len.div_ceil(blocks).next_multiple_of(1024).max(LEAST);
        let parts = len.div_ceil(part) as u32;
        Slots { at, stride: part, count: parts, first: 0, part, parts, shift: 0, cell: 0 }
    }

    /// Whether several parts are in one place, with one word to wait for and one to raise. From one slot to
    /// the next it is always further than a part.
    pub(crate) fn is_joint(&self) -> bool {
        self.stride == self.part
    }

    /// The same as one part.
    pub(crate) fn whole(&self, len: usize) -> Slots {
        if self.is_joint() { Slots { part: len, parts: 1, count: 1, stride: 0, ..*self } } else { *self }
    }
}
