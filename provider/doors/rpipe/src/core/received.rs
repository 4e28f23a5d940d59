//! Blocks that the reader has: read, and not freed. The writer's word is checked before it gets here.

use crate::core::memory::zeroed;
use crate::core::tags::Range;
use crate::{Block, Error};

/// For each granule: the length in granules of the block that begins there, with `LIVE` if the reader has it;
/// its length in bytes; its generation.
type Entry = [u32; 3];
const LIVE: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct Received {
    entries: Box<[Entry]>,
    shift: u32,
    blocks: u64,
    bytes: u64,
}

impl Received {
    pub(crate) fn new(granules: usize, granule: usize) -> Result<Received, Error> {
        Ok(Received { entries: zeroed(granules)?, shift: granule.trailing_zeros(), blocks: 0, bytes: 0 })
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// As [`Received::take`], with nothing said of what is wrong, which has changed nothing.
    #[inline(always)]
    pub(crate) fn take_quickly(&mut self, block: Block, len: u32, granules: u32) -> Option<usize> {
        let room = self.entries.len().checked_sub(block.granule as usize)?;
        let entry = self.entries.get_mut(block.granule as usize)?;
        let fits =
            granules != 0 && granules as usize <= room && u64::from(len) <= u64::from(granules) << self.shift;
        if !fits || entry[0] & LIVE != 0 {
            return None;
        }
        *entry = [granules | LIVE, len, u32::from(block.generation)];
        self.blocks += 1;
        self.bytes += u64::from(len);
        Some((block.granule as usize) << self.shift)
    }

    /// Takes a block over from the writer, which may say anything. Its offset in the heap.
    #[inline]
    pub(crate) fn take(&mut self, block: Block, len: u32, granules: u32) -> Result<usize, Error> {
        if let Some(offset) = self.take_quickly(block, len, granules) {
            return Ok(offset);
        }
        let entry = self.entries.get(block.granule as usize);
        Err(Error::Broken(match entry {
            Some([state, ..]) if state & LIVE != 0 => "the writer has sent a block twice".into(),
            _ => format!("the writer has sent {len} bytes at granule {}, outside of the heap", block.granule),
        }))
    }

    /// The offset of a block in the heap, and its length in bytes.
    #[inline(always)]
    pub(crate) fn held(&self, block: Block) -> Option<(usize, usize)> {
        let [state, len, generation] = self.entries.get(block.granule as usize)?;
        let is_it = state & LIVE != 0 && *generation == u32::from(block.generation);
        is_it.then_some(((block.granule as usize) << self.shift, *len as usize))
    }

    /// The same, or what is wrong.
    #[inline]
    pub(crate) fn find(&self, block: Block) -> Result<(usize, usize), Error> {
        self.held(block).ok_or_else(|| stale(block))
    }

    /// Gives a block up, if it is one.
    #[inline(always)]
    pub(crate) fn free_held(&mut self, block: Block) -> Option<Range> {
        let (_, len) = self.held(block)?;
        let entry = self.entries.get_mut(block.granule as usize)?;
        entry[0] &= !LIVE;
        self.blocks -= 1;
        self.bytes -= len as u64;
        Some(Range { from: block.granule, len: entry[0] })
    }

    /// The same, or what is wrong.
    #[inline]
    pub(crate) fn free(&mut self, block: Block) -> Result<Range, Error> {
        self.free_held(block).ok_or_else(|| stale(block))
    }
}

#[cold]
fn stale(block: Block) -> Error {
    Error::Stale(format!(
        "the reader has no block of generation {} at granule {}: it was freed before, or the address is of another heap",
        block.generation, block.granule
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_writer_says_is_checked_and_a_block_is_freed_once() {
        let mut received = Received::new(10, 64).unwrap();
        let block = Block { granule: 8, generation: 7 };
        assert_eq!(received.take(block, 100, 2).unwrap(), 512);
        assert!(matches!(received.take(block, 1, 1), Err(Error::Broken(_))), "twice");
        assert_eq!(received.find(block).unwrap(), (512, 100));
        let lies = [
            (8, 129, 2),
            (9, 65, 2),
            (10, 0, 1),
            (u32::MAX, 1, 1),
            (0, u32::MAX, 10),
            (0, 641, 11),
            (0, 0, 0),
            (1, 1, u32::MAX),
        ];
        for (granule, len, granules) in lies {
            let lie = Block { granule, generation: 0 };
            let taken = Received::new(10, 64).unwrap().take(lie, len, granules);
            assert!(matches!(taken, Err(Error::Broken(_))), "{granule} {len} {granules}");
        }
        assert!(matches!(received.free(Block { generation: 6, ..block }), Err(Error::Stale(_))));
        assert_eq!(received.free(block).unwrap(), Range { from: 8, len: 2 });
        assert!(matches!(received.free(block), Err(Error::Stale(_))), "freed twice");
        assert_eq!((received.blocks, received.bytes), (0, 0));
        // A length of 0 has a block all the same, and one that is longer than its message comes back as a
        // whole.
        received.take(Block { granule: 9, generation: 1 }, 0, 1).unwrap();
        received.take(Block { granule: 0, generation: 1 }, 1, 5).unwrap();
        assert_eq!(received.free(Block { granule: 0, generation: 1 }).unwrap(), Range { from: 0, len: 5 });
    }
}
