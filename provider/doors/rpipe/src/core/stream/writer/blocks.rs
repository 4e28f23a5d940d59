//! The book of the heap and the slots: which blocks this end may have.

use crate::core::control::Shape;
use crate::core::tags::Range;
use crate::{ALIGN_MOST, Block, Error, Heap, Policy, Usage};

/// Blocks that are allocated between two polls of what the reader has freed, of `QUICK_BYTES` or less; of
/// longer ones fewer.
const QUICK: usize = 16;
const QUICK_BYTES: usize = 1024;

#[derive(Debug)]
pub(super) struct Blocks {
    heap: Heap,
    /// Messages that may be under way.
    slots: usize,
    /// Blocks that are held or sent.
    out: usize,
    /// Until 0 blocks are allocated without a poll of what the reader has freed; there are slots for as many.
    /// Tags are taken in early, so that the same few blocks, which both processors have at hand, are used
    /// again; and not each time, for the line that they are in is the reader's.
    quick: usize,
    /// A call has failed for a reason that may hold for all that follow.
    over: bool,
    /// The longest block.
    most: usize,
}

impl Blocks {
    pub(super) fn new(shape: Shape, policy: Policy) -> Result<Blocks, Error> {
        let heap = Heap::new(shape.heap, shape.granule(), policy)?;
        Ok(Blocks { heap, slots: shape.slots, out: 0, quick: 0, over: false, most: shape.most() })
    }

    /// Allocates a block, if that takes no poll of what the reader has freed.
    #[inline(always)]
    pub(super) fn alloc_quickly(&mut self, len: usize, align: usize) -> Option<Block> {
        let cost = 1 + len / QUICK_BYTES;
        if self.quick < cost || len > self.most || !align.is_power_of_two() || align > ALIGN_MOST {
            return None;
        }
        let block = self.heap.alloc(len, align)?;
        self.quick -= cost;
        self.out += 1;
        Some(block)
    }

    /// Allocates a block, if there is room by what is known. `quick`: so may some that follow.
    pub(super) fn alloc(&mut self, len: usize, align: usize, quick: bool) -> Option<Block> {
        let room = self.slots - self.out;
        if room == 0 {
            return None;
        }
        let block = self.heap.alloc(len, align)?;
        self.out += 1;
        self.quick = if quick { QUICK.min(room - 1) } else { 0 };
        Some(block)
    }

    /// Where a block begins in the heap.
    #[inline(always)]
    pub(super) fn offset(&self, block: Block) -> usize {
        self.heap.offset(block.granule)
    }

    /// The bytes and the granules of a block that this end holds.
    #[inline(always)]
    pub(super) fn held(&self, block: Block) -> Option<(usize, u32)> {
        self.heap.held(block)
    }

    /// The bytes of such a block; or what it is.
    pub(super) fn len(&self, block: Block) -> Result<usize, Error> {
        self.heap.find(block).map(|(_, len)| len)
    }

    /// What is wrong with a block that this end does not hold.
    pub(super) fn not_held(&self, block: Block) -> Error {
        match self.heap.find(block) {
            Ok((state, _)) => {
                Error::Stale(format!("the block is {state:?} by this end's book: it is the reader's now"))
            }
            Err(fault) => fault,
        }
    }

    /// Frees a block that was not sent.
    #[inline(always)]
    pub(super) fn free_quickly(&mut self, block: Block) -> Option<()> {
        self.heap.free_held(block)?;
        self.out -= 1;
        Some(())
    }

    /// The same, or what is wrong.
    pub(super) fn free(&mut self, block: Block) -> Result<(), Error> {
        self.heap.free(block)
    }

    /// A block that is held is the reader's from now on.
    #[inline(always)]
    pub(super) fn send_held(&mut self, block: Block) {
        self.heap.send_held(block);
    }

    /// The same of any block, with its bytes and granules; or what is wrong.
    pub(super) fn send(&mut self, block: Block) -> Result<(usize, u32), Error> {
        self.heap.send(block)
    }

    /// A block that was not sent after all.
    pub(super) fn unsend(&mut self, block: Block) {
        self.heap.unsend(block);
    }

    /// The reader has freed these granules.
    pub(super) fn take_back(&mut self, range: Range) -> Result<(), Error> {
        self.out -= self.heap.free_run(range.from, range.len)?;
        Ok(())
    }

    pub(super) fn has_sent(&self) -> bool {
        self.heap.has_sent()
    }

    pub(super) fn usage(&self) -> Usage {
        self.heap.usage()
    }

    pub(super) fn set_policy(&mut self, policy: Policy) -> Result<(), Error> {
        self.heap.set_policy(policy)
    }

    /// A call has failed for a reason that may hold for all that follow: each allocation asks from now on.
    pub(super) fn fail(&mut self) {
        (self.over, self.quick) = (true, 0);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.over
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn blocks(heap: usize, slots: usize) -> Blocks {
        Blocks::new(Shape::new(u64::MAX, heap, slots).unwrap(), Policy::NextFit).unwrap()
    }

    #[test]
    fn there_are_no_more_blocks_than_slots_and_each_that_comes_back_makes_room() {
        let mut blocks = blocks(4096, 2);
        let first = blocks.alloc(8, 1, true).unwrap();
        let second = blocks.alloc_quickly(8, 1).unwrap();
        assert!(blocks.alloc_quickly(8, 1).is_none() && blocks.alloc(8, 1, true).is_none());
        blocks.free_quickly(second).unwrap();
        assert!(blocks.free_quickly(second).is_none(), "freed twice");
        blocks.send(first).unwrap();
        assert!(blocks.has_sent() && blocks.held(first).is_none());
        assert!(matches!(blocks.not_held(first), Error::Stale(_)));
        blocks.take_back(Range { from: first.granule, len: 1 }).unwrap();
        assert!(!blocks.has_sent());
        assert!(blocks.alloc(8, 1, false).is_some() && blocks.alloc(8, 1, false).is_some());
    }

    #[test]
    fn longer_blocks_are_polled_for_sooner_and_all_once_a_call_has_failed() {
        let quick = |len: usize| {
            let mut blocks = blocks(1 << 20, 256);
            blocks.alloc(len, 1, true).unwrap();
            (0..).take_while(|_| blocks.alloc_quickly(len, 1).is_some()).count()
        };
        assert_eq!((quick(8), quick(QUICK_BYTES), quick(3 * QUICK_BYTES)), (QUICK, QUICK / 2, QUICK / 4));
        let mut blocks = blocks(4096, 8);
        blocks.alloc(8, 1, true).unwrap();
        blocks.fail();
        assert!(blocks.alloc_quickly(8, 1).is_none() && blocks.has_failed());
    }
}
