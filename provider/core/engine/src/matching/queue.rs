//! A queue in order of arrival. Its entries stay in the same slots, which are used again.
//!
//! Once an entry of one source was looked for in a queue of several, each entry is in the list of its source
//! too ([`Queue::list_by_source`]), until the queue is empty: so the first entry of a source is found at
//! once, however many there are of others. Lists are found by the last bits of the source, which is an index
//! of an address vector; sources that have these in common share a list.

use std::num::NonZeroU64;

use crate::types::{ADDR_UNSPEC, FiAddr};

/// Lists of sources: so many at least, and at most.
const LISTS: usize = 64;
const MOST_LISTS: usize = 4096;

/// Place of an entry. It finds nothing once the entry has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    slot: u32,
    /// Grows with every entry: order of arrival, and what distinguishes an entry from the slot's next one.
    /// Not 0, so that the place of an entry that may be missing is returned in registers.
    pub(super) seq: NonZeroU64,
}

impl At {
    /// Its place in the order of arrival.
    pub(crate) fn number(self) -> u64 {
        self.seq.get()
    }
}

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Node<T> {
    seq: NonZeroU64,
    prev: u32,
    next: u32,
    /// Its neighbours in the list of its source, which is this one. Unless lists are kept these mean nothing.
    listed: Listed,
    value: Option<T>,
}

#[derive(Clone, Copy, Debug)]
struct Listed {
    list: u32,
    prev: u32,
    next: u32,
}

/// The entries of one source, or of several.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

const EMPTY: List = List { first: NONE, last: NONE };
const UNLISTED: Listed = Listed { list: 0, prev: NONE, next: NONE };

const NONE: u32 = u32::MAX;

/// What entries touch that come and go comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Queue<T> {
    nodes: Vec<Node<T>>,
    len: usize,
    seq: NonZeroU64,
    /// The first of those that hold nothing; `next` is the one after it.
    free: u32,
    first: u32,
    last: u32,
    /// Entries are in the lists of their sources.
    listed: bool,
    /// The list of entries without a source, then a power of two of others. All are empty unless `listed`.
    lists: Vec<List>,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Queue {
            nodes: Vec::new(),
            free: NONE,
            first: NONE,
            last: NONE,
            seq: NonZeroU64::MIN,
            len: 0,
            listed: false,
            lists: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, src: FiAddr, make: impl FnOnce() -> T) -> At {
        self.seq = self.seq.saturating_add(1);
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        // Built in its place: on its way from the stack it would be read before it is written.
        let node = &mut self.nodes[slot as usize];
        debug_assert!(node.value.is_none());
        self.free = node.next;
        std::mem::forget(node.value.replace(make()));
        (node.seq, node.prev, node.next) = (self.seq, self.last, NONE);
        match self.last {
            NONE => self.first = slot,
            last => self.nodes[last as usize].next = slot,
        }
        self.last = slot;
        self.len += 1;
        if self.listed {
            self.enlist(slot, src);
        }
        At { slot, seq: self.seq }
    }

    #[cold]
    fn grow(&mut self) {
        self.free = self.nodes.len() as u32;
        self.nodes.push(Node { seq: NonZeroU64::MIN, prev: NONE, next: NONE, listed: UNLISTED, value: None });
    }

    #[inline]
    fn node(&self, at: At) -> Option<&Node<T>> {
        self.nodes.get(at.slot as usize).filter(|n| n.seq == at.seq && n.value.is_some())
    }

    pub(crate) fn get(&self, at: At) -> Option<&T> {
        self.node(at)?.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: At) -> Option<&mut T> {
        self.node(at)?;
        self.nodes[at.slot as usize].value.as_mut()
    }

    pub(crate) fn remove(&mut self, at: At) -> Option<T> {
        self.unlink(at)?;
        self.nodes[at.slot as usize].value.take()
    }

    /// Like [`Queue::get`], of an entry that was found just now.
    #[inline(always)]
    pub(crate) fn found(&self, at: At) -> Option<&T> {
        debug_assert!(self.node(at).is_some());
        self.nodes.get(at.slot as usize)?.value.as_ref()
    }

    /// An entry that was found just now, to change it.
    #[inline(always)]
    pub(crate) fn found_mut(&mut self, at: At) -> Option<&mut T> {
        debug_assert!(self.node(at).is_some());
        self.nodes.get_mut(at.slot as usize)?.value.as_mut()
    }

    /// Removes an entry that was found just now and owns nothing: it is forgotten, not moved or dropped.
    #[inline(always)]
    pub(crate) fn forget(&mut self, at: At) {
        debug_assert!(self.node(at).is_some());
        if let Some(node) = self.nodes.get_mut(at.slot as usize) {
            std::mem::forget(node.value.take());
            let (prev, next) = (node.prev, node.next);
            node.next = std::mem::replace(&mut self.free, at.slot);
            self.pass(at.slot, prev, next);
        }
    }

    #[inline(always)]
    fn unlink(&mut self, at: At) -> Option<()> {
        let (prev, next) = self.node(at).map(|n| (n.prev, n.next))?;
        self.pass(at.slot, prev, next);
        self.nodes[at.slot as usize].next = std::mem::replace(&mut self.free, at.slot);
        Some(())
    }

    /// Links these two, between which an entry goes.
    #[inline(always)]
    fn pass(&mut self, slot: u32, prev: u32, next: u32) {
        match prev {
            NONE => self.first = next,
            p => self.nodes[p as usize].next = next,
        }
        match next {
            NONE => self.last = prev,
            n => self.nodes[n as usize].prev = prev,
        }
        self.len -= 1;
        if self.listed {
            self.delist(self.nodes[slot as usize].listed);
        }
    }

    /// The list of a source.
    #[inline(always)]
    fn list_of(&self, src: FiAddr) -> usize {
        if src == ADDR_UNSPEC { 0 } else { 1 + (src as usize & self.lists.len().wrapping_sub(2)) }
    }

    /// Adds an entry to the list of its source.
    #[inline(always)]
    fn enlist(&mut self, slot: u32, src: FiAddr) {
        let at = self.list_of(src);
        let Some(list) = self.lists.get_mut(at) else { return };
        let prev = std::mem::replace(&mut list.last, slot);
        match prev {
            NONE => list.first = slot,
            p => self.nodes[p as usize].listed.next = slot,
        }
        self.nodes[slot as usize].listed = Listed { list: at as u32, prev, next: NONE };
    }

    /// Takes an entry that goes out of its list.
    #[inline(always)]
    fn delist(&mut self, Listed { list, prev, next }: Listed) {
        let Some(list) = self.lists.get_mut(list as usize) else { return };
        match prev {
            NONE => list.first = next,
            p => self.nodes[p as usize].listed.next = next,
        }
        match next {
            NONE => list.last = prev,
            n => self.nodes[n as usize].listed.prev = prev,
        }
        self.listed = self.len > 0;
    }

    /// Whether lists of sources are kept.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    /// Keeps lists of sources from now on, and until the queue is empty; about as many as there are entries.
    #[inline]
    pub(crate) fn list_by_source(&mut self, source: impl Fn(&T) -> FiAddr) {
        let few = self.len > 4 * self.lists.len() && self.lists.len() < MOST_LISTS;
        if !self.listed || few {
            self.list_all(source);
        }
    }

    #[inline(never)]
    fn list_all(&mut self, source: impl Fn(&T) -> FiAddr) {
        let lists = 1 + self.len.next_power_of_two().clamp(LISTS, MOST_LISTS);
        if self.lists.len() < lists {
            self.lists.resize(lists, EMPTY);
        }
        self.unlist();
        self.listed = true;
        let mut slot = self.first;
        while let Some(node) = self.nodes.get(slot as usize) {
            let (next, src) = (node.next, node.value.as_ref().map_or(ADDR_UNSPEC, &source));
            self.enlist(slot, src);
            slot = next;
        }
    }

    /// Forgets the lists of sources: entries have changed.
    pub(crate) fn unlist(&mut self) {
        if std::mem::replace(&mut self.listed, false) {
            self.lists.fill(EMPTY);
        }
    }

    /// The oldest entry of a source that `fits`, which has the last word; `Err` if it is not among the first
    /// `most` of the list. Lists are kept.
    #[inline(always)]
    pub(crate) fn first_of(
        &self,
        src: FiAddr,
        most: usize,
        fits: impl Fn(&T) -> bool,
    ) -> Result<Option<At>, ()> {
        debug_assert!(self.listed || self.len == 0);
        let mut slot = self.lists.get(self.list_of(src)).map_or(NONE, |list| list.first);
        for _ in 0..most {
            let Some(node) = self.nodes.get(slot as usize) else { return Ok(None) };
            if node.value.as_ref().is_some_and(&fits) {
                return Ok(Some(At { slot, seq: node.seq }));
            }
            slot = node.listed.next;
        }
        if slot == NONE { Ok(None) } else { Err(()) }
    }

    /// The oldest entry.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<(At, &T)> {
        let node = self.nodes.get(self.first as usize)?;
        Some((At { slot: self.first, seq: node.seq }, node.value.as_ref()?))
    }

    /// All entries, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (At, &T)> {
        let mut slot = self.first;
        std::iter::from_fn(move || {
            let node = self.nodes.get(slot as usize)?;
            let at = At { slot, seq: node.seq };
            slot = node.next;
            Some((at, node.value.as_ref()?))
        })
    }

    /// The latest entry that `pick` picks.
    pub(crate) fn latest_mut(&mut self, pick: impl Fn(&T) -> bool) -> Option<&mut T> {
        let mut slot = self.last;
        while let Some(node) = self.nodes.get(slot as usize) {
            if node.value.as_ref().is_some_and(&pick) {
                return self.nodes[slot as usize].value.as_mut();
            }
            slot = node.prev;
        }
        None
    }

    /// The place of the oldest entry that `pick` picks.
    pub(crate) fn oldest(&self, pick: impl Fn(&T) -> bool) -> Option<At> {
        self.iter().find(|(_, v)| pick(v)).map(|(at, _)| at)
    }

    /// The places of all entries that `pick` picks, oldest first.
    pub(crate) fn places(&self, pick: impl Fn(&T) -> bool) -> Vec<At> {
        self.iter().filter(|(_, v)| pick(v)).map(|(at, _)| at).collect()
    }
}
