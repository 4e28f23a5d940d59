//! Who has what of a pipe's heap, by the writer's book: blocks are free, held by the writer, or sent to the reader. The heap's
//! bytes are elsewhere; the peer reaches none of this.
//!
//! Free blocks are always as long as can be: one that becomes free is joined with its neighbours at once. A block is named by
//! where it begins and by a generation, which changes each time a block begins there.

mod bits;
mod choose;
#[cfg(test)]
mod model_tests;
mod policy;

use std::collections::BTreeSet;

use bits::Bits;
pub use policy::Policy;

use crate::Error;

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
    /// Tells it from those that began there before.
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

/// What is known where a granule begins a block.
///
/// `kind` has the state (2 bits, 0: no block begins here), the slack, which is how many bytes of the last granule were not
/// asked for (8 bits from bit 8), and the generation (16 bits from bit 16), which outlives the block.
type Entry = [u32; 3];
const LEN: usize = 0;
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
    entries: Vec<Entry>,
    /// Where free blocks begin.
    starts: Bits,
    /// Free blocks by length, and then by place, for the policies that choose by it.
    by_len: BTreeSet<(u32, u32)>,
    policy: Policy,
    /// Next-fit goes on from here.
    rover: u32,
    used: u32,
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
        let mut heap = Heap {
            shift: granule.trailing_zeros(),
            total,
            entries: vec![[0; 3]; total as usize],
            starts: Bits::new(total as usize),
            by_len: BTreeSet::new(),
            policy,
            rover: 0,
            used: 0,
            holes: 0,
            sent: 0,
        };
        heap.put_free(0, total);
        Ok(heap)
    }

    /// Bytes from the beginning of the heap.
    #[inline]
    pub fn offset(&self, granule: u32) -> usize {
        (granule as usize) << self.shift
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// From now on blocks are chosen by this policy.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
        self.by_len.clear();
        if policy.by_length() {
            let mut from = 0;
            while let Some(at) = self.starts.next(from) {
                self.by_len.insert((self.entries[at][LEN], at as u32));
                from = at + 1;
            }
        }
    }

    /// Allocates `len` bytes (0 is taken for 1) on a multiple of `align` bytes, a power of two of [`ALIGN_MOST`] at most. `None`:
    /// no free block is long enough.
    #[inline]
    pub fn alloc(&mut self, len: usize, align: usize) -> Option<Block> {
        let bytes = len.max(1);
        let want = u32::try_from(bytes.checked_add((1 << self.shift) - 1)? >> self.shift).ok()?;
        let align = (align >> self.shift).max(1) as u32;
        let (hole, at) = self.choose(want, align)?;
        let hole_len = self.entries[hole as usize][LEN];
        self.take_free(hole, hole_len);
        if at > hole {
            self.put_free(hole, at - hole);
        }
        let end = at + want;
        let behind = hole + hole_len - end;
        let slack = ((want as usize) << self.shift) - len;
        let entry = &mut self.entries[at as usize];
        let generation = (entry[KIND] >> 16).wrapping_add(1) as u16;
        entry[LEN] = want;
        entry[KIND] = u32::from(generation) << 16 | (slack.min(255) as u32) << 8 | HELD;
        if at > hole {
            entry[BEFORE] = at - hole;
        }
        self.tell_next(end, want);
        if behind > 0 {
            self.put_free(end, behind);
        }
        self.used += want;
        self.rover = if end == self.total { 0 } else { end };
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

    fn bytes(&self, entry: Entry) -> usize {
        ((entry[LEN] as usize) << self.shift) - (entry[KIND] >> 8 & 255) as usize
    }

    /// The writer sends a block that it holds; its length in bytes.
    #[inline]
    pub fn send(&mut self, block: Block) -> Result<usize, Error> {
        match self.find(block)? {
            (State::Held, len) => {
                self.entries[block.granule as usize][KIND] |= SENT;
                self.sent += 1;
                Ok(len)
            }
            _ => Err(Error::Stale(format!(
                "the block at granule {} was sent before; it is the reader's until that frees it",
                block.granule
            ))),
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
        match self.find(block)? {
            (State::Held, _) => {
                self.release(block.granule);
                Ok(())
            }
            _ => Err(Error::Stale(format!(
                "the block at granule {} was sent; the reader frees it, not the writer",
                block.granule
            ))),
        }
    }

    /// The reader has freed all blocks of this range: a run of blocks that were sent, from the beginning of one to
    /// the end of one; how many. If it is anything else the heap stays as it is, and the peer has broken the protocol.
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
            // Joining may make the entry another block's.
            let next = at + self.entries[at as usize][LEN];
            self.release(at);
            at = next;
            blocks += 1;
        }
        self.sent -= blocks as u32;
        Ok(blocks)
    }

    /// Granules of a block.
    pub fn granules(&self, block: Block) -> u32 {
        self.entries[block.granule as usize][LEN]
    }

    /// Blocks that the reader has, or will.
    pub fn has_sent(&self) -> bool {
        self.sent > 0
    }

    /// What is in the heap now.
    pub fn usage(&self) -> Usage {
        let (mut largest, mut from) = (0, 0);
        while let Some(at) = self.starts.next(from) {
            largest = largest.max(self.entries[at][LEN]);
            from = at + 1;
        }
        let (free, bytes) = (self.total - self.used, |granules: u32| u64::from(granules) << self.shift);
        let fragmentation = if free == 0 { 0.0 } else { 1.0 - f64::from(largest) / f64::from(free) };
        Usage {
            used: bytes(self.used),
            free: bytes(free),
            largest: bytes(largest),
            holes: u64::from(self.holes),
            fragmentation,
        }
    }

    /// A block becomes free, and one with its neighbours.
    fn release(&mut self, at: u32) {
        let entry = self.entries[at as usize];
        let (mut from, mut len) = (at, entry[LEN]);
        self.used -= len;
        let end = at + len;
        if end < self.total {
            let next = self.entries[end as usize];
            if next[KIND] & 3 == FREE {
                self.take_free(end, next[LEN]);
                len += next[LEN];
            }
        }
        if at > 0 {
            let before = at - entry[BEFORE];
            let previous = self.entries[before as usize];
            if previous[KIND] & 3 == FREE {
                self.take_free(before, previous[LEN]);
                from = before;
                len += previous[LEN];
            }
        }
        // Its generation stays.
        self.entries[at as usize][KIND] &= !0xffff;
        self.put_free(from, len);
        if self.rover > from && self.rover < from + len {
            self.rover = from;
        }
    }

    /// Enters a free block. Of the block before it the length is known already.
    #[inline]
    fn put_free(&mut self, at: u32, len: u32) {
        let entry = &mut self.entries[at as usize];
        entry[LEN] = len;
        entry[KIND] = entry[KIND] & !0xffff | FREE;
        self.starts.insert(at as usize);
        self.holes += 1;
        if self.policy.by_length() {
            self.by_len.insert((len, at));
        }
        self.tell_next(at + len, len);
    }

    /// Takes a free block out: no block begins there until one is entered.
    #[inline]
    fn take_free(&mut self, at: u32, len: u32) {
        self.entries[at as usize][KIND] &= !0xffff;
        self.starts.remove(at as usize);
        self.holes -= 1;
        if self.policy.by_length() {
            self.by_len.remove(&(len, at));
        }
    }

    /// The block that begins at `end` learns how long the one before it is.
    #[inline]
    fn tell_next(&mut self, end: u32, len: u32) {
        if let Some(next) = self.entries.get_mut(end as usize) {
            next[BEFORE] = len;
        }
    }
}

fn stale(block: Block) -> Error {
    Error::Stale(format!(
        "no block of generation {} begins at granule {}: it was freed before, or the address is not of this pipe",
        block.generation, block.granule
    ))
}
