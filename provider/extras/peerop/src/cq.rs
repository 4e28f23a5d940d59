//! A completion queue that a device can wait for.
//!
//! A peek makes bytecode that ends when so many completions are there. Until that has run, or the peek is
//! aborted, the completion that it waits for is not consumed: an entry that were used again would show the
//! device another completion. The bytecode's last operation marks the peek as over.
//!
//! In memory: how many completions there were, then an owner word for each entry, then a word for each peek.
//! A device that can compare counts waits for the first; another one for the lowest bit of the entry's owner
//! word, which is 1 in every other round of the queue, beginning with the first.

use std::collections::VecDeque;

use crate::error::Error;
use crate::memory::Memory;
use crate::op::{List, Op, Until};
use crate::place::{Caps, Fence, Place};

/// From where the completions of a peek are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// From the opening of the queue.
    Absolute,
    /// From the last one that was consumed.
    Relative,
}

/// A peek of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekId {
    /// Its word; `None` where there was nothing to wait for.
    slot: Option<u32>,
    number: u32,
}

/// A peek that may be under way.
#[derive(Clone, Copy, Debug)]
struct Peek {
    /// The completion that it waits for, the first one being 0.
    entry: u64,
    number: u32,
}

/// Completions, in their order. Opened for peeks, as its endpoint is for commits.
#[derive(Debug)]
pub struct CompletionQueue<C, M> {
    memory: M,
    base: Place,
    size: u32,
    caps: Caps,
    entries: VecDeque<C>,
    consumed: u64,
    peeks: Vec<Option<Peek>>,
    number: u32,
}

impl<C, M: Memory> CompletionQueue<C, M> {
    /// Bytes of memory that a queue takes.
    pub fn bytes(size: u32, peeks: u32) -> u64 {
        4 * (1 + u64::from(size) + u64::from(peeks))
    }

    /// One of `size` entries, with so many peeks under way at most, for a peer with these capabilities. Its
    /// memory begins at `base`.
    pub fn open(
        memory: M,
        base: Place,
        size: u32,
        peeks: u32,
        caps: Caps,
    ) -> Result<CompletionQueue<C, M>, Error> {
        if !(1..=1 << 24).contains(&size) || !(1..=1 << 24).contains(&peeks) {
            return Err(Error::Setup(
                "a completion queue has 1 to 2^24 entries and peeks: choose among these",
            ));
        }
        let owner = Caps::POLL_AND_DWORD | Caps::POLL_NOR_DWORD;
        let polls = if caps.intersects(Caps::POLL_GEQ_DWORD) { Caps::POLL_GEQ_DWORD } else { owner };
        let needs = Caps::FENCE | Caps::STORE_DWORD | polls;
        if !caps.contains(needs) {
            return Err(Error::Lacks(needs.difference(caps)));
        }
        memory.check(base, Self::bytes(size, peeks), 4)?;
        for i in 0..1 + u64::from(size) + u64::from(peeks) {
            memory.store32(base.plus(4 * i), 0)?;
        }
        let peeks = vec![None; peeks as usize];
        Ok(CompletionQueue {
            memory,
            base,
            size,
            caps,
            entries: VecDeque::new(),
            consumed: 0,
            peeks,
            number: 0,
        })
    }

    /// Adds a completion, and shows it to devices. What completed is done before.
    pub fn complete(&mut self, completion: C) -> Result<(), Error> {
        if self.entries.len() == self.size as usize {
            return Err(Error::Overrun(self.entries.len()));
        }
        let entry = self.produced();
        self.memory.fence();
        self.memory.store32(self.owner(entry), self.owner_bit(entry))?;
        self.memory.store32(self.base, (entry + 1) as u32)?;
        self.entries.push_back(completion);
        Ok(())
    }

    /// Takes the first completion, if there is one; refused while a peek for it is under way.
    pub fn poll(&mut self) -> Result<Option<C>, Error> {
        if self.entries.is_empty() {
            return Ok(None);
        }
        for slot in 0..self.peeks.len() {
            if self.peeks[slot].is_some_and(|p| p.entry == self.consumed) && !self.is_over(slot)? {
                return Err(Error::Peeked);
            }
        }
        self.consumed += 1;
        Ok(self.entries.pop_front())
    }

    /// Adds the bytecode to `list` that waits until there were `count` completions: nothing, if they are
    /// consumed. If there is not room for it, no peek is under way.
    pub fn peek(&mut self, list: &mut List, whence: Whence, count: u64) -> Result<PeekId, Error> {
        let total = match whence {
            Whence::Absolute => Some(count),
            Whence::Relative => self.consumed.checked_add(count),
        };
        let ahead = total.map_or(u64::MAX, |total| total.saturating_sub(self.consumed));
        if count == 0 || ahead > u64::from(self.size) {
            return Err(Error::PeekRange { ahead: if count == 0 { 0 } else { ahead }, size: self.size });
        }
        if ahead == 0 {
            return Ok(PeekId { slot: None, number: 0 });
        }
        let slot = self.free_slot()?.ok_or(Error::Peeks(self.peeks.len()))?;
        let entry = self.consumed + ahead - 1;
        let number = self.number.wrapping_add(1);
        let over = Op::Store32 { to: self.slot(slot), value: number };
        list.append(&[self.wait(entry), Op::Fence(Fence::ACQUIRE), over])?;
        self.number = number;
        self.peeks[slot] = Some(Peek { entry, number });
        Ok(PeekId { slot: Some(slot as u32), number })
    }

    /// Ends a peek whose bytecode will not be executed, or not to its end.
    pub fn abort(&mut self, peek: PeekId) -> Result<(), Error> {
        let Some(slot) = peek.slot else { return Ok(()) };
        let slot = slot as usize;
        if self.peeks.get(slot).copied().flatten().is_none_or(|p| p.number != peek.number)
            || self.is_over(slot)?
        {
            return Err(Error::NoPeek);
        }
        self.peeks[slot] = None;
        Ok(())
    }

    /// Completions that were added in all.
    pub fn produced(&self) -> u64 {
        self.consumed + self.entries.len() as u64
    }

    fn wait(&self, entry: u64) -> Op {
        if self.caps.contains(Caps::POLL_GEQ_DWORD) {
            return Op::Poll { at: self.base, until: Until::Geq, value: (entry + 1) as u32 };
        }
        let at = self.owner(entry);
        match self.owner_bit(entry) {
            1 => Op::Poll { at, until: Until::And, value: 1 },
            _ => Op::Poll { at, until: Until::Nor, value: !1 },
        }
    }

    fn owner(&self, entry: u64) -> Place {
        self.base.plus(4 * (1 + entry % u64::from(self.size)))
    }

    fn owner_bit(&self, entry: u64) -> u32 {
        u32::from((entry / u64::from(self.size)) % 2 == 0)
    }

    fn slot(&self, slot: usize) -> Place {
        self.base.plus(4 * (1 + u64::from(self.size) + slot as u64))
    }

    fn free_slot(&mut self) -> Result<Option<usize>, Error> {
        for slot in 0..self.peeks.len() {
            if self.peeks[slot].is_none() || self.is_over(slot)? {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Whether the bytecode of a slot's peek has run. Bytecode of an earlier peek of the slot, that was
    /// aborted, stores another number.
    fn is_over(&mut self, slot: usize) -> Result<bool, Error> {
        let Some(peek) = self.peeks[slot] else { return Ok(true) };
        let over = self.memory.load32(self.slot(slot))? == peek.number;
        if over {
            self.memory.fence();
            self.peeks[slot] = None;
        }
        Ok(over)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "cq_tests.rs"]
mod tests;
