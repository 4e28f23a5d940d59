//! Which side has which blocks of a pipe's heap, by the writer's count: they are free, held by the writer, or
//! sent to the reader. The heap's bytes are elsewhere; the peer reaches none of this.
//!
//! Free blocks are always as long as can be: one that becomes free is joined with its neighbours at once. A
//! block is named by where it begins and by a generation, which changes each time a block begins there.

mod bits;
mod choose;
mod hole;
mod index;
mod lengths;
#[cfg(test)]
mod model_tests;
mod places;
mod policy;

use hole::{Entry, Hole, LEN};
use index::Index;
pub use policy::Policy;

use crate::Error;
use crate::core::memory::zeroed;

/// The largest alignment, in bytes.
pub const ALIGN_MOST: usize = 4096;
/// Granules there may be: an address has 32 bits for one.
const GRANULES_MOST: usize = u32::MAX as usize;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Free,
    /// Allocated by the writer, and not sent.
    Held,
    /// The reader has it, or will.
    Sent,
}

/// A block that is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its first granule.
    pub granule: u32,
    /// Distinguishes it from those that began there before.
    pub generation: u16,
}

/// What is in the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Bytes of blocks that are not free.
    pub used: u64,
    /// Bytes that are free.
    pub free: u64,
    /// Bytes of the longest free block.
    pub largest: u64,
    /// Free blocks.
    pub holes: u64,
    /// The part of the free bytes that is not in the longest free block.
    pub fragmentation: f64,
}

/// The length of the block before.
const BEFORE: usize = 1;
const KIND: usize = 2;

const FREE: u32 = 1;
const HELD: u32 = 2;
const SENT: u32 = 3;

/// The book of one heap.
#[derive(Debug)]
pub struct Heap {
    shift: u32,
    /// Granules.
    total: u32,
    entries: Box<[Entry]>,
    index: Index,
    policy: Policy,
    /// Next-fit goes on from here, and then from the beginning of the heap. It may be the end of the heap.
    rover: u32,
    /// A free block that is in none of the above, or of no length: what was left of the last one that was
    /// taken from. Taking from its front, and giving back what was taken last, changes these numbers alone.
    /// With next-fit it begins at `rover`.
    aside: Hole,
    used: u32,
    /// Free blocks in the index.
    holes: u32,
    /// Blocks that were sent.
    sent: u32,
}

impl Heap {
    /// A heap of `len` bytes, all free, in granules of `granule` bytes, a power of two of 128 at most.
    pub fn new(len: usize, granule: usize, policy: Policy) -> Result<Heap, Error> {
        let ok = granule.is_power_of_two() && granule <= 128 && len >= granule && len % granule == 0;
        if !ok || len / granule > GRANULES_MOST {
            return Err(Error::Invalid(format!(
                "a heap of {len} bytes: take a multiple of {granule}, up to 32 GiB"
            )));
        }
        let total = (len / granule) as u32;
        Ok(Heap {
            shift: granule.trailing_zeros(),
            total,
            entries: zeroed(total as usize)?,
            index: Index::new(policy, total)?,
            policy,
            rover: 0,
            aside: Hole { at: 0, len: total },
            used: 0,
            holes: 0,
            sent: 0,
        })
    }

    /// Bytes from the beginning of the heap.
    #[inline]
    pub fn offset(&self, granule: u32) -> usize {
        (granule as usize) << self.shift
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// From now on blocks are chosen by this policy. It stays as it was if there is no memory for its index.
    pub fn set_policy(&mut self, policy: Policy) -> Result<(), Error> {
        let mut index = Index::new(policy, self.total)?;
        self.put_aside();
        let mut at = 0;
        while let Some(entry) = self.entries.get(at as usize) {
            if entry[KIND] & 3 == FREE {
                index.insert(Hole { at, len: entry[LEN] });
            }
            at += entry[LEN];
        }
        (self.index, self.policy) = (index, policy);
        Ok(())
    }

    /// Allocates `len` bytes (0 is taken for 1) on a multiple of `align` bytes, a power of two of
    /// [`ALIGN_MOST`] at most. `None`: no free block is long enough.
    #[inline(always)]
    pub fn alloc(&mut self, len: usize, align: usize) -> Option<Block> {
        let bytes = len.max(1);
        let want = u32::try_from(bytes.checked_add((1 << self.shift) - 1)? >> self.shift).ok()?;
        let align = (align >> self.shift).max(1) as u32;
        let Hole { at, len: room } = self.aside;
        // Others than next-fit may have to take another one.
        let is_only = self.policy == Policy::NextFit || self.holes == 0;
        if want > room || at & (align - 1) != 0 || !is_only {
            return self.alloc_elsewhere(len, want, align);
        }
        self.aside = Hole { at: at + want, len: room - want };
        self.hold(at, want, len)
    }

    #[inline(never)]
    fn alloc_elsewhere(&mut self, len: usize, want: u32, align: u32) -> Option<Block> {
        let (hole, at) = self.choose(want, align)?;
        if hole.at == self.aside.at && self.aside.len > 0 {
            self.aside.len = 0;
        } else {
            self.take_free(hole);
        }
        if at > hole.at {
            self.put_free(Hole { at: hole.at, len: at - hole.at });
        }
        let (end, hole_end) = (at + want, hole.at + hole.len);
        let block = self.hold(at, want, len);
        if end < hole_end || self.policy == Policy::NextFit {
            self.put_aside();
            self.aside = Hole { at: end, len: hole_end - end };
        }
        block
    }

    /// Granules that are in no free block become one that is held.
    #[inline(always)]
    fn hold(&mut self, at: u32, want: u32, len: usize) -> Option<Block> {
        let slack = ((want as usize) << self.shift).wrapping_sub(len);
        let entry = self.entries.get_mut(at as usize)?;
        let generation = (entry[KIND] >> 16).wrapping_add(1) as u16;
        entry[LEN] = want;
        entry[KIND] = u32::from(generation) << 16 | (slack.min(255) as u32) << 8 | HELD;
        self.used += want;
        let end = at + want;
        self.rover = end;
        self.set_length_before(end, want);
        Some(Block { granule: at, generation })
    }

    /// The block of this name: its state and length in bytes.
    #[inline]
    pub fn find(&self, block: Block) -> Result<(State, usize), Error> {
        let entry = self.entries.get(block.granule as usize).copied().unwrap_or_default();
        let state = match entry[KIND] & 3 {
            HELD => State::Held,
            SENT => State::Sent,
            _ => return Err(stale(block)),
        };
        if (entry[KIND] >> 16) as u16 != block.generation {
            return Err(stale(block));
        }
        Ok((state, self.bytes(entry)))
    }

    /// A block that the writer holds: its length in bytes, and in granules.
    #[inline(always)]
    pub(crate) fn held(&self, block: Block) -> Option<(usize, u32)> {
        let entry = self.entries.get(block.granule as usize)?;
        let named = u32::from(block.generation) << 16 | HELD;
        (entry[KIND] & 0xffff_0003 == named).then(|| (self.bytes(*entry), entry[LEN]))
    }

    /// The writer sends a block that it holds, as [`Heap::held`] has found.
    #[inline(always)]
    pub(crate) fn send_held(&mut self, block: Block) {
        if let Some(entry) = self.entries.get_mut(block.granule as usize) {
            entry[KIND] |= SENT;
            self.sent += 1;
        }
    }

    #[inline(always)]
    fn bytes(&self, entry: Entry) -> usize {
        ((entry[LEN] as usize) << self.shift) - (entry[KIND] >> 8 & 255) as usize
    }

    /// The writer sends a block that it holds; its length in bytes, and in granules.
    #[inline]
    pub fn send(&mut self, block: Block) -> Result<(usize, u32), Error> {
        match self.held(block) {
            Some(found) => {
                self.send_held(block);
                Ok(found)
            }
            None => Err(self.why_not_held(block, "it is the reader's until that frees it")),
        }
    }

    /// Takes a sending back that has not left.
    pub fn unsend(&mut self, block: Block) {
        if let Ok((State::Sent, _)) = self.find(block) {
            let kind = &mut self.entries[block.granule as usize][KIND];
            *kind = *kind & !3 | HELD;
            self.sent -= 1;
        }
    }

    /// The writer frees a block that it holds.
    #[inline]
    pub fn free(&mut self, block: Block) -> Result<(), Error> {
        self.free_held(block).ok_or_else(|| self.why_not_held(block, "the reader frees it, not the writer"))
    }

    /// As [`Heap::free`], with nothing said of what is no such block.
    #[inline(always)]
    pub(crate) fn free_held(&mut self, block: Block) -> Option<()> {
        let (_, granules) = self.held(block)?;
        let entry = self.entries.get_mut(block.granule as usize)?;
        // Its generation stays.
        entry[KIND] &= !0xffff;
        self.release(block.granule, granules);
        Some(())
    }

    #[cold]
    fn why_not_held(&self, block: Block, why: &str) -> Error {
        match self.find(block) {
            Ok(_) => Error::Stale(format!("the block at granule {} was sent: {why}", block.granule)),
            Err(stale) => stale,
        }
    }

    /// The reader has freed all blocks of this range: a run of blocks that were sent, from the beginning of
    /// one to the end of one; how many. If it is anything else the heap stays as it is, and the peer has
    /// broken the protocol.
    #[inline]
    pub fn free_run(&mut self, from: u32, len: u32) -> Result<usize, Error> {
        let wrong =
            || Error::Broken(format!("the reader has freed granules {from}+{len}, which it does not have"));
        let end = from.checked_add(len).filter(|end| *end <= self.total && len > 0).ok_or_else(wrong)?;
        let mut at = from;
        while at < end {
            let entry = self.entries[at as usize];
            if entry[KIND] & 3 != SENT {
                return Err(wrong());
            }
            at += entry[LEN];
        }
        if at != end {
            return Err(wrong());
        }
        let (mut at, mut blocks) = (from, 0);
        while at < end {
            let entry = &mut self.entries[at as usize];
            entry[KIND] &= !0xffff;
            at += entry[LEN];
            blocks += 1;
        }
        self.release(from, len);
        self.sent -= blocks as u32;
        Ok(blocks)
    }

    /// Blocks that the reader has, or will.
    pub fn has_sent(&self) -> bool {
        self.sent > 0
    }

    /// What is in the heap now.
    pub fn usage(&self) -> Usage {
        let largest = self.index.longest(&self.entries).max(self.aside.len);
        let (free, bytes) = (self.total - self.used, |granules: u32| u64::from(granules) << self.shift);
        let fragmentation = if free == 0 { 0.0 } else { 1.0 - f64::from(largest) / f64::from(free) };
        Usage {
            used: bytes(self.used),
            free: bytes(free),
            largest: bytes(largest),
            holes: u64::from(self.holes) + u64::from(self.aside.len > 0),
            fragmentation,
        }
    }

    /// Granules of blocks that are none any more become free, and one block with their neighbours.
    #[inline]
    fn release(&mut self, at: u32, len: u32) {
        self.used -= len;
        let Hole { at: aside, len: room } = self.aside;
        if room > 0 && at + len == aside {
            let from = self.take_before(at);
            self.aside = Hole { at: from, len: aside + room - from };
            if self.rover == aside {
                self.rover = from;
            } else {
                self.move_rover_back(from, aside);
            }
        } else if room > 0 && aside + room == at {
            self.aside.len = room + len + self.take_behind(at + len);
            self.move_rover_back(aside, aside + self.aside.len);
        } else {
            self.release_elsewhere(at, len);
        }
    }

    fn release_elsewhere(&mut self, at: u32, len: u32) {
        let end = at + len + self.take_behind(at + len);
        let from = self.take_before(at);
        let hole = Hole { at: from, len: end - from };
        if self.aside.len == 0 && (self.policy != Policy::NextFit || (from..end).contains(&self.rover)) {
            self.aside = hole;
        } else {
            self.put_free(hole);
        }
        self.move_rover_back(from, end);
    }

    /// Where next-fit goes on is not inside of a free block.
    #[inline]
    fn move_rover_back(&mut self, from: u32, end: u32) {
        if self.rover > from && self.rover < end {
            self.rover = from;
        }
    }

    /// Takes the free block out that begins here, if one does; its length.
    #[inline]
    fn take_behind(&mut self, at: u32) -> u32 {
        match self.entries.get(at as usize) {
            Some(entry) if entry[KIND] & 3 == FREE => {
                let len = entry[LEN];
                self.take_free(Hole { at, len });
                len
            }
            _ => 0,
        }
    }

    /// Takes the free block out that ends here, if one does; where it begins.
    #[inline]
    fn take_before(&mut self, at: u32) -> u32 {
        if at == 0 {
            return at;
        }
        let before = at - self.entries[at as usize][BEFORE];
        let previous = self.entries[before as usize];
        if previous[KIND] & 3 != FREE {
            return at;
        }
        self.take_free(Hole { at: before, len: previous[LEN] });
        before
    }

    /// The free block that is aside becomes one among others.
    #[inline]
    fn put_aside(&mut self) {
        let aside = std::mem::take(&mut self.aside);
        if aside.len > 0 {
            self.put_free(aside);
        }
    }

    /// Enters a free block. Of the block before it the length is known already.
    #[inline]
    fn put_free(&mut self, hole: Hole) {
        let Hole { at, len } = hole;
        let entry = &mut self.entries[at as usize];
        entry[LEN] = len;
        entry[KIND] = entry[KIND] & !0xffff | FREE;
        self.index.insert(hole);
        self.holes += 1;
        self.set_length_before(at + len, len);
    }

    /// Takes a free block out: no block begins there until one is entered.
    #[inline]
    fn take_free(&mut self, hole: Hole) {
        self.entries[hole.at as usize][KIND] &= !0xffff;
        self.index.remove(hole);
        self.holes -= 1;
    }

    /// The block that begins at `end` learns how long the one before it is.
    #[inline]
    fn set_length_before(&mut self, end: u32, len: u32) {
        if let Some(next) = self.entries.get_mut(end as usize) {
            next[BEFORE] = len;
        }
    }
}

#[cold]
fn stale(block: Block) -> Error {
    Error::Stale(format!(
        "no block of generation {} begins at granule {}: it was freed before, or the address is of another heap",
        block.generation, block.granule
    ))
}
