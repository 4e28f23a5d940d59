//! What two endpoints have of each other's memory.

use std::collections::{HashMap, HashSet, VecDeque};

use hmem::{Caps, Span};
use wire::{Handle, Seg};

use crate::below::{Below, Dest, Lease, Usage};
use crate::channel::Sort;

/// What [`Handle::how`] is.
const HOW: u8 = 0x40;
/// What a peer has lent, at most: what came first is forgotten first.
pub(crate) const LEARNED: usize = 1024;
/// Endpoints by which a peer has lent, at most.
pub(crate) const LENDERS: usize = 4;
/// What is to be said to a peer, and what it has taken back, at most.
pub(crate) const NOTES: usize = 1 << 16;
/// In place of a request: all of them.
pub(crate) const ALL: u64 = 0;

/// Whether the provider below may access this memory. What may vanish is better copied, by what can bear
/// that.
pub(crate) fn is_for_below(below: &impl Below, span: &Span, usage: Usage) -> bool {
    let is_host = span.can(Caps::CPU) && !span.can(Caps::DEVICE);
    (is_host && span.stays() || span.can(Caps::DEVICE)) && below.reaches(span.kind(), usage)
}

/// Memory of ours that a peer may read.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) lease: Lease,
    pub(crate) span: Span,
    /// What requests have of it, each part once. It is lent until all of them are over.
    pub(crate) parts: Vec<Span>,
    pub(crate) exported: bool,
    /// How often what was lent had been ended before.
    pub(crate) generation: u64,
}

impl Lent {
    /// The handle that a peer gets; `lender` is where it reads.
    pub(crate) fn handle(&self, lender: &[u8]) -> Handle {
        let mut token = [0; 64];
        for (at, word) in [self.lease.key, self.lease.base, self.generation].into_iter().enumerate() {
            token[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        token[24] = lender.len() as u8;
        token[25..25 + lender.len()].copy_from_slice(lender);
        Handle {
            how: HOW,
            zero: [0; 3],
            fd: 0.into(),
            id: self.lease.number.into(),
            base: self.span.addr().into(),
            len: (self.span.len() as u64).into(),
            device: [0; 16],
            token,
        }
    }
}

/// Memory of a peer's: nothing of it is to be believed.
#[derive(Debug)]
pub(crate) struct Learned {
    first: u64,
    /// What is behind it.
    end: u64,
    key: u64,
    base: u64,
    generation: u64,
    from: Dest,
}

/// Where a segment of a peer's memory is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) from: Dest,
    pub(crate) generation: u64,
    pub(crate) key: u64,
    pub(crate) at: u64,
}

/// The address of the endpoint by which memory is lent that a handle is of.
pub(crate) fn lender_in(handle: &Handle) -> Option<&[u8]> {
    let len = handle.token[24] as usize;
    handle.token[25..].get(..len).filter(|_| handle.how == HOW && len > 0)
}

/// What two endpoints have of each other's memory.
#[derive(Debug, Default)]
pub(crate) struct Dealings {
    /// The peer can read, and be read from.
    pub(crate) may_read: bool,
    pub(crate) lent: Vec<Lent>,
    pub(crate) learned: VecDeque<Learned>,
    /// The peer lends nothing of generations before this one. A handle that was sent before may be taken
    /// later.
    lends_from: u64,
    /// Where the peer's memory is read, by address.
    pub(crate) lenders: Vec<(Vec<u8>, Dest)>,
    /// What is to be said.
    pub(crate) notes: VecDeque<(Sort, u64)>,
    /// Requests of ours that were taken back, and whether the peer has left them.
    pub(crate) taken_back: HashMap<u64, bool>,
    /// Requests of the peer's that it has taken back.
    pub(crate) revoked: HashSet<u64>,
}

impl Dealings {
    /// The peer has this handle.
    pub(crate) fn mark_exported(&mut self, handle: &Handle) {
        let lent = self.lent.iter_mut().find(|lent| lent.lease.number == handle.id.get());
        if let Some(lent) = lent {
            lent.exported = true;
        }
    }

    /// A handle of the peer's has arrived, in place of what it had there before.
    pub(crate) fn import(&mut self, handle: &Handle, from: Dest) {
        let (first, len) = (handle.base.get(), handle.len.get());
        let Some(end) = first.checked_add(len).filter(|_| handle.how == HOW && self.may_read) else { return };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| handle.token[at + i]));
        let (key, base, generation) = (word(0), word(8), word(16));
        self.learned.retain(|old| old.end <= first || end <= old.first);
        if generation < self.lends_from {
            return;
        }
        if self.learned.len() >= LEARNED {
            self.learned.pop_front();
        }
        self.learned.push_back(Learned { first, end, key, base, generation, from });
    }

    /// The peer lends nothing of a generation any more.
    pub(crate) fn unlearn(&mut self, generation: u64) {
        self.lends_from = self.lends_from.max(generation.saturating_add(1));
        self.learned.retain(|known| known.generation > generation);
    }

    /// Where a segment of the peer's memory is read.
    pub(crate) fn find(&self, seg: &Seg) -> Option<Found> {
        let (first, len) = (seg.addr.get(), seg.len.get());
        let end = first.checked_add(len)?;
        let found = self.learned.iter().rev().find(|l| l.first <= first && end <= l.end)?;
        let at = found.base.checked_add(first - found.first)?;
        Some(Found { from: found.from, generation: found.generation, key: found.key, at })
    }

    /// Whether the peer has taken a request back.
    pub(crate) fn is_revoked(&self, request: u64) -> bool {
        self.revoked.contains(&request) || self.revoked.contains(&ALL)
    }

    pub(crate) fn has_left(&self, request: u64) -> bool {
        self.taken_back.get(&request) == Some(&true)
    }
}
