//! Which blocks of borrowed memory there are, as one borrower knows them. The only borrower, or the first of
//! several, has the heap's book; the others have the blocks whose addresses they were given.

use std::collections::BTreeMap;

use crate::core::granule;
use crate::{Block, Error, Heap, Policy, Rank, State, Usage};

#[derive(Debug)]
pub(super) enum Blocks {
    Book(Heap),
    Attached(Attached),
}

/// Blocks of memory whose book another borrower has.
#[derive(Debug)]
pub(super) struct Attached {
    keeper: Rank,
    /// Of the memory.
    len: usize,
    granule: usize,
    /// By their first granules: generation, and bytes. No two of them overlap.
    blocks: BTreeMap<u32, (u16, usize)>,
}

impl Attached {
    pub(super) fn new(keeper: Rank, len: usize) -> Attached {
        Attached { keeper, len, granule: granule(len), blocks: BTreeMap::new() }
    }

    /// Granules that a block has.
    fn extent(&self, len: usize) -> u32 {
        len.max(1).div_ceil(self.granule) as u32
    }

    fn attach(&mut self, block: Block, len: usize) -> Result<(), Error> {
        let at = u64::from(block.granule) * self.granule as u64;
        let room = (self.len as u64).saturating_sub(at);
        if room == 0 || len as u64 > room || u32::try_from(len).is_err() {
            return Err(Error::TooLong(format!(
                "a block of {len} bytes at {at} of {} that were lent: there is none",
                self.len
            )));
        }
        // What overlaps was freed by now, or is this block.
        let end = block.granule + self.extent(len);
        while let Some((from, (_, has))) = self.blocks.range(..end).next_back().map(|(a, b)| (*a, *b)) {
            if from + self.extent(has) <= block.granule {
                break;
            }
            self.blocks.remove(&from);
        }
        self.blocks.insert(block.granule, (block.generation, len));
        Ok(())
    }

    fn find(&self, block: Block) -> Result<usize, Error> {
        match self.blocks.get(&block.granule) {
            Some((generation, len)) if *generation == block.generation => Ok(*len),
            _ => Err(Error::Stale(
                "this block is not attached here (rborrow_attach), or was freed since: a later one is there"
                    .into(),
            )),
        }
    }

    fn denied(&self) -> Error {
        Error::Denied(format!(
            "rank {}, the first of the borrowers of this memory, allocates and frees its blocks: it passes their addresses, \
             which others attach (rborrow_attach)",
            self.keeper
        ))
    }
}

impl Blocks {
    /// `None`: no free block is long enough.
    pub(super) fn alloc(&mut self, len: usize, align: usize) -> Result<Option<Block>, Error> {
        match self {
            Blocks::Book(heap) => Ok(heap.alloc(len, align)),
            Blocks::Attached(others) => Err(others.denied()),
        }
    }

    pub(super) fn free(&mut self, block: Block) -> Result<(), Error> {
        match self {
            Blocks::Book(heap) => heap.free(block),
            Blocks::Attached(others) => Err(others.denied()),
        }
    }

    /// Makes a block usable here that has `len` bytes, or of which so many are used.
    pub(super) fn attach(&mut self, block: Block, len: usize) -> Result<(), Error> {
        match self {
            Blocks::Attached(others) => others.attach(block, len),
            Blocks::Book(_) => match self.len(block)? {
                has if len > has => Err(Error::TooLong(format!("{len} bytes of a block of {has}"))),
                _ => Ok(()),
            },
        }
    }

    /// Ends that.
    pub(super) fn detach(&mut self, block: Block) -> Result<(), Error> {
        self.len(block)?;
        if let Blocks::Attached(others) = self {
            others.blocks.remove(&block.granule);
        }
        Ok(())
    }

    /// The bytes of a block.
    #[inline]
    pub(super) fn len(&self, block: Block) -> Result<usize, Error> {
        match self {
            Blocks::Book(heap) => match heap.find(block)? {
                (State::Held, len) => Ok(len),
                _ => Err(Error::Stale("this block is not allocated".into())),
            },
            Blocks::Attached(others) => others.find(block),
        }
    }

    /// Where it is in the memory.
    #[inline]
    pub(super) fn offset(&self, block: Block) -> usize {
        match self {
            Blocks::Book(heap) => heap.offset(block.granule),
            Blocks::Attached(others) => block.granule as usize * others.granule,
        }
    }

    pub(super) fn usage(&self) -> Usage {
        match self {
            Blocks::Book(heap) => heap.usage(),
            Blocks::Attached(others) => {
                let used = others.blocks.values().map(|(_, len)| *len as u64).sum();
                Usage { used, ..Usage::default() }
            }
        }
    }

    /// `None`: another borrower chooses.
    pub(super) fn policy(&self) -> Option<Policy> {
        match self {
            Blocks::Book(heap) => Some(heap.policy()),
            Blocks::Attached(_) => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn block(granule: u32, generation: u16) -> Block {
        Block { granule, generation }
    }

    /// 64 granules of 64 bytes.
    fn some() -> Blocks {
        Blocks::Attached(Attached::new(3, 4096))
    }

    #[test]
    fn a_block_that_is_attached_ends_those_that_it_overlaps_and_no_other() {
        let mut blocks = some();
        for (granule, len) in [(0, 100), (2, 64), (3, 0), (4, 1), (5, 640)] {
            blocks.attach(block(granule, 1), len).unwrap();
        }
        blocks.attach(block(3, 2), 65).unwrap();
        let lens = [(0, 1), (2, 1), (3, 1), (3, 2), (4, 1), (5, 1)]
            .map(|(at, generation)| blocks.len(block(at, generation)).ok());
        assert_eq!(lens, [Some(100), Some(64), None, Some(65), None, Some(640)]);
        // Into the middle of one, and over several.
        blocks.attach(block(10, 1), 8).unwrap();
        assert!(blocks.len(block(5, 1)).is_err() && blocks.len(block(10, 1)).is_ok());
        blocks.attach(block(1, 9), 4096 - 64).unwrap();
        assert_eq!(blocks.usage().used, 4096 - 64);
        blocks.detach(block(1, 9)).unwrap();
        assert!(matches!(blocks.detach(block(1, 9)), Err(Error::Stale(_))));
        assert_eq!(blocks.usage(), Usage::default());
    }

    #[test]
    fn what_is_outside_of_the_memory_is_no_block_and_the_book_is_another_ones() {
        let mut blocks = some();
        for (granule, len) in [(0, 4097), (63, 65), (64, 0), (u32::MAX, 1), (0, usize::MAX), (0, 1 << 32)] {
            let refused = blocks.attach(block(granule, 0), len);
            assert!(matches!(refused, Err(Error::TooLong(_))), "{granule} {len}: {refused:?}");
        }
        blocks.attach(block(63, 7), 64).unwrap();
        assert_eq!((blocks.offset(block(63, 7)), blocks.policy()), (63 * 64, None));
        for fault in [blocks.alloc(1, 1).unwrap_err(), blocks.free(block(63, 7)).unwrap_err()] {
            assert!(matches!(&fault, Error::Denied(why) if why.contains("rank 3")), "{fault:?}");
        }
        let mut book = Blocks::Book(Heap::new(4096, 64, Policy::FirstFit).unwrap());
        let one = book.alloc(100, 1).unwrap().unwrap();
        book.attach(one, 100).unwrap();
        book.detach(one).unwrap();
        assert!(matches!(book.attach(one, 101), Err(Error::TooLong(_))));
        book.free(one).unwrap();
        assert!(matches!(book.attach(one, 1), Err(Error::Stale(_))));
    }
}
