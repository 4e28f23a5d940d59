//! Blocks that the reader has: read, and not freed. The writer's word is checked before it gets here.

use crate::tags::Range;
use crate::{Block, Error};

/// For each granule: the length in granules of the block that begins there, with `LIVE` if the reader has it; its length in bytes; its
/// generation.
type Entry = [u32; 3];
const LIVE: u32 = 1 << 31;

#[derive(Debug)]
pub(crate) struct Received {
    entries: Vec<Entry>,
    shift: u32,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl Received {
    pub(crate) fn new(granules: usize, granule: usize) -> Received {
        Received { entries: vec![[0; 3]; granules], shift: granule.trailing_zeros(), blocks: 0, bytes: 0 }
    }

    /// Takes a block over from the writer, which may say anything. Its offset in the heap.
    #[inline]
    pub(crate) fn take(&mut self, block: Block, len: u32, granules: u32) -> Result<usize, Error> {
        let room = (self.entries.len() as u64).saturating_sub(u64::from(block.granule));
        let long = u64::from(granules) << self.shift;
        if granules == 0 || u64::from(granules) > room || u64::from(len) > long {
            let at = block.granule;
            return Err(Error::Broken(format!(
                "the writer has sent {len} bytes at granule {at}, outside of the heap"
            )));
        }
        let entry = &mut self.entries[block.granule as usize];
        if entry[0] & LIVE != 0 {
            return Err(Error::Broken("the writer has sent a block twice".into()));
        }
        *entry = [granules | LIVE, len, u32::from(block.generation)];
        self.blocks += 1;
        self.bytes += u64::from(len);
        Ok((block.granule as usize) << self.shift)
    }

    /// The offset of a block in the heap, and its length in bytes.
    #[inline]
    pub(crate) fn find(&self, block: Block) -> Result<(usize, usize), Error> {
        match self.entries.get(block.granule as usize) {
            Some([state, len, generation])
                if state & LIVE != 0 && *generation == u32::from(block.generation) =>
            {
                Ok(((block.granule as usize) << self.shift, *len as usize))
            }
            _ => Err(Error::Stale(format!(
                "the reader has no block of generation {} at granule {}: it was freed before, or the address is not of this \
                 pipe",
                block.generation, block.granule
            ))),
        }
    }

    /// Gives a block up.
    #[inline]
    pub(crate) fn free(&mut self, block: Block) -> Result<Range, Error> {
        let (_, len) = self.find(block)?;
        let entry = &mut self.entries[block.granule as usize];
        entry[0] &= !LIVE;
        self.blocks -= 1;
        self.bytes -= len as u64;
        Ok(Range { from: block.granule, len: entry[0] })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_writer_says_is_checked_and_a_block_is_freed_once() {
        let mut received = Received::new(10, 64);
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
            let taken = Received::new(10, 64).take(lie, len, granules);
            assert!(matches!(taken, Err(Error::Broken(_))), "{granule} {len} {granules}");
        }
        assert!(matches!(received.free(Block { generation: 6, ..block }), Err(Error::Stale(_))));
        assert_eq!(received.free(block).unwrap(), Range { from: 8, len: 2 });
        assert!(matches!(received.free(block), Err(Error::Stale(_))), "freed twice");
        assert_eq!((received.blocks, received.bytes), (0, 0));
        // A length of 0 has a block all the same, and one that is longer than its message comes back as a whole.
        received.take(Block { granule: 9, generation: 1 }, 0, 1).unwrap();
        received.take(Block { granule: 0, generation: 1 }, 1, 5).unwrap();
        assert_eq!(received.free(Block { granule: 0, generation: 1 }).unwrap(), Range { from: 0, len: 5 });
    }
}
