//! What two endpoints have of each other's memory.

use std::collections::{HashMap, HashSet, VecDeque};

use hmem::Span;
use wire::{Handle, Seg};

use crate::below::Lease;
use crate::channel::Sort;

/// What [`Handle::how`] is.
const HOW: u8 = 0x40;
/// What a peer has lent, at most: what came first is forgotten first.
const LEARNED: usize = 1024;
/// What is to be said to a peer, and what it has taken back, at most.
pub(crate) const NOTES: usize = 1 << 16;
/// In place of a request: all of them.
pub(crate) const ALL: u64 = 0;

/// Memory of ours that a peer may read.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) lease: Lease,
    pub(crate) span: Span,
    pub(crate) told: bool,
}

impl Lent {
    pub(crate) fn handle(&self) -> Handle {
        let mut token = [0; 64];
        token[..8].copy_from_slice(&self.lease.key.to_le_bytes());
        token[8..16].copy_from_slice(&self.lease.base.to_le_bytes());
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
struct Learned {
    first: u64,
    /// What is behind it.
    end: u64,
    key: u64,
    base: u64,
}

/// What two endpoints have of each other's memory.
#[derive(Debug, Default)]
pub(crate) struct Dealings {
    /// The peer can read, and be read from.
    pub(crate) may_read: bool,
    pub(crate) lent: Vec<Lent>,
    learned: VecDeque<Learned>,
    /// What is to be said.
    pub(crate) notes: VecDeque<(Sort, u64)>,
    /// Requests of ours that were taken back, and whether the peer has left them.
    pub(crate) taken_back: HashMap<u64, bool>,
    /// Requests of the peer's that it has taken back.
    pub(crate) revoked: HashSet<u64>,
}

impl Dealings {
    /// The peer was told of it.
    pub(crate) fn told(&mut self, handle: &Handle) {
        let lent = self.lent.iter_mut().find(|lent| lent.lease.number == handle.id.get());
        if let Some(lent) = lent {
            lent.told = true;
        }
    }

    /// The peer has told of memory, in place of what it had there before.
    pub(crate) fn learn(&mut self, handle: &Handle) {
        let (first, len) = (handle.base.get(), handle.len.get());
        let Some(end) = first.checked_add(len).filter(|_| handle.how == HOW && self.may_read) else { return };
        self.learned.retain(|old| old.end <= first || end <= old.first);
        if self.learned.len() >= LEARNED {
            self.learned.pop_front();
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| handle.token[at + i]));
        self.learned.push_back(Learned { first, end, key: word(0), base: word(8) });
    }

    /// Key and address of a segment of the peer's memory.
    pub(crate) fn find(&self, seg: &Seg) -> Option<(u64, u64)> {
        let (first, len) = (seg.addr.get(), seg.len.get());
        let end = first.checked_add(len)?;
        let found = self.learned.iter().rev().find(|l| l.first <= first && end <= l.end)?;
        Some((found.key, found.base.checked_add(first - found.first)?))
    }

    /// Whether the peer has taken a request back.
    pub(crate) fn is_revoked(&self, request: u64) -> bool {
        self.revoked.contains(&request) || self.revoked.contains(&ALL)
    }

    pub(crate) fn has_left(&self, request: u64) -> bool {
        self.taken_back.get(&request) == Some(&true)
    }
}
