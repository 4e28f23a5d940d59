//! A queue in order of arrival that is also found by tag without walking it.

use std::collections::VecDeque;

use crate::hash::Map;

/// Up to this many entries are walked; only longer queues are worth an index, and only once a message
/// came that was not for the oldest.
const SHORT: usize = 16;
/// Most ignore masks one index keeps apart; programs use two or three.
const CLASSES: usize = 8;

/// Place of an entry. It finds nothing once the entry has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    slot: u32,
    /// Grows with every entry: order of arrival, and what tells an entry from the slot's next one.
    seq: u64,
}

#[derive(Debug)]
struct Node<T> {
    seq: u64,
    prev: u32,
    next: u32,
    value: Option<T>,
}

const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Queue<T> {
    nodes: Vec<Node<T>>,
    /// The first of those that hold nothing; `next` is the one after it.
    free: u32,
    first: u32,
    last: u32,
    seq: u64,
    len: usize,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Queue { nodes: Vec::new(), free: NONE, first: NONE, last: NONE, seq: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, make: impl FnOnce() -> T) -> At {
        self.seq += 1;
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
        At { slot, seq: self.seq }
    }

    #[cold]
    fn grow(&mut self) {
        self.free = self.nodes.len() as u32;
        self.nodes.push(Node { seq: 0, prev: NONE, next: NONE, value: None });
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

    /// Removes an entry that was found just now and owns nothing: it is forgotten, not moved or dropped.
    #[inline(always)]
    pub(crate) fn forget(&mut self, at: At) {
        debug_assert!(self.node(at).is_some());
        self.forget_slot(at.slot);
    }

    #[inline(always)]
    fn forget_slot(&mut self, slot: u32) {
        if let Some(node) = self.nodes.get_mut(slot as usize) {
            std::mem::forget(node.value.take());
            let (prev, next) = (node.prev, node.next);
            node.next = std::mem::replace(&mut self.free, slot);
            self.pass(prev, next);
        }
    }

    #[inline(always)]
    fn unlink(&mut self, at: At) -> Option<()> {
        let (prev, next) = self.node(at).map(|n| (n.prev, n.next))?;
        self.pass(prev, next);
        self.nodes[at.slot as usize].next = std::mem::replace(&mut self.free, at.slot);
        Some(())
    }

    /// Links these two, between which an entry goes.
    #[inline(always)]
    fn pass(&mut self, prev: u32, next: u32) {
        match prev {
            NONE => self.first = next,
            p => self.nodes[p as usize].next = next,
        }
        match next {
            NONE => self.last = prev,
            n => self.nodes[n as usize].prev = prev,
        }
        self.len -= 1;
    }

    /// The oldest entry.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<(At, &T)> {
        let node = self.nodes.get(self.first as usize)?;
        Some((At { slot: self.first, seq: node.seq }, node.value.as_ref()?))
    }

    /// Removes the oldest entry, which owns nothing: it is forgotten, not moved or dropped.
    #[inline(always)]
    pub(crate) fn forget_first(&mut self) {
        self.forget_slot(self.first);
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

/// Entries with one ignore mask, by the tag's other bits, oldest first in each bucket. Entries that
/// have left the queue stay here until they are met.
#[derive(Debug)]
struct Class {
    ignore: u64,
    buckets: Map<u64, VecDeque<At>>,
    held: usize,
}

impl Class {
    fn new(ignore: u64) -> Self {
        Class { ignore, buckets: Map::default(), held: 0 }
    }

    fn push(&mut self, tag: u64, at: At) {
        self.buckets.entry(tag & !self.ignore).or_default().push_back(at);
        self.held += 1;
    }

    /// The oldest entry for `tag` that is still in `queue` and that `fits`.
    fn find<T>(&mut self, tag: u64, queue: &Queue<T>, fits: impl Fn(&T) -> bool) -> Option<At> {
        let bucket = self.buckets.get_mut(&(tag & !self.ignore))?;
        let mut i = 0;
        while let Some(&at) = bucket.get(i) {
            match queue.get(at) {
                Some(v) if fits(v) => return Some(at),
                Some(_) => i += 1,
                None => {
                    bucket.remove(i);
                    self.held -= 1;
                }
            }
        }
        if bucket.is_empty() {
            self.buckets.remove(&(tag & !self.ignore));
        }
        None
    }

    /// Whether more of what it holds has gone than is there.
    fn is_stale(&self, live: usize) -> bool {
        self.held > 2 * live + 64
    }
}

/// Posted receives: each is looked for by the tags of messages, under its own mask.
#[derive(Debug, Default)]
pub(crate) struct ByOwnMask {
    classes: Vec<Class>,
    /// Whether there are more masks than classes: then everything is walked.
    crowded: bool,
    on: bool,
}

impl ByOwnMask {
    /// To be called after each push.
    #[inline]
    pub(crate) fn pushed<T>(&mut self, queue: &Queue<T>, at: At, key: impl Fn(&T) -> (u64, u64)) {
        if self.on {
            self.index(queue, at, key);
        }
    }

    #[inline(never)]
    fn index<T>(&mut self, queue: &Queue<T>, at: At, key: impl Fn(&T) -> (u64, u64)) {
        if queue.len() == 1 {
            *self = Self::default();
        } else if let Some(v) = queue.get(at) {
            self.add(key(v), at);
            if self.classes.iter().any(|c| c.is_stale(queue.len())) {
                self.build(queue, key);
            }
        }
    }

    fn build<T>(&mut self, queue: &Queue<T>, key: impl Fn(&T) -> (u64, u64)) {
        *self = ByOwnMask { on: true, ..Self::default() };
        for (at, v) in queue.iter() {
            self.add(key(v), at);
        }
    }

    fn add(&mut self, (tag, ignore): (u64, u64), at: At) {
        let class = match self.classes.iter().position(|c| c.ignore == ignore) {
            Some(i) => i,
            None if self.classes.len() < CLASSES => {
                self.classes.push(Class::new(ignore));
                self.classes.len() - 1
            }
            None => {
                self.crowded = true;
                return;
            }
        };
        self.classes[class].push(tag, at);
    }

    /// The oldest entry for a message with this tag. `fits` decides in full.
    #[inline]
    pub(crate) fn find<T>(
        &mut self,
        queue: &Queue<T>,
        tag: u64,
        key: impl Fn(&T) -> (u64, u64),
        fits: impl Fn(&T) -> bool,
    ) -> Option<At> {
        let (at, first) = queue.first()?;
        if fits(first) {
            return Some(at);
        }
        if queue.len() <= SHORT {
            return queue.iter().find(|(_, v)| fits(v)).map(|(at, _)| at);
        }
        self.look_up(queue, tag, key, fits)
    }

    #[inline(never)]
    fn look_up<T>(
        &mut self,
        queue: &Queue<T>,
        tag: u64,
        key: impl Fn(&T) -> (u64, u64),
        fits: impl Fn(&T) -> bool,
    ) -> Option<At> {
        if !self.on {
            self.build(queue, key);
        }
        if self.crowded {
            return queue.iter().find(|(_, v)| fits(v)).map(|(at, _)| at);
        }
        self.classes.iter_mut().filter_map(|c| c.find(tag, queue, &fits)).min_by_key(|at| at.seq)
    }
}

/// Unexpected messages: each may be looked for under any mask, so each mask that is used
/// gets an index of all of them.
#[derive(Debug, Default)]
pub(crate) struct ByAnyMask {
    classes: Vec<Class>,
}

impl ByAnyMask {
    /// To be called after each push.
    pub(crate) fn pushed<T>(&mut self, queue: &Queue<T>, at: At, tag: u64) {
        if queue.len() == 1 {
            self.classes.clear();
        }
        for c in &mut self.classes {
            c.push(tag, at);
        }
        if self.classes.iter().any(|c| c.is_stale(queue.len())) {
            self.classes.clear();
        }
    }

    /// The oldest entry for a receive with this tag and mask. `fits` decides in full.
    pub(crate) fn find<T>(
        &mut self,
        queue: &Queue<T>,
        (tag, ignore): (u64, u64),
        key: impl Fn(&T) -> u64,
        fits: impl Fn(&T) -> bool,
    ) -> Option<At> {
        let (at, first) = queue.first()?;
        if fits(first) {
            return Some(at);
        }
        if queue.len() <= SHORT {
            return queue.iter().find(|(_, v)| fits(v)).map(|(at, _)| at);
        }
        let class = match self.classes.iter().position(|c| c.ignore == ignore) {
            Some(i) => i,
            None if self.classes.len() < CLASSES => {
                let mut class = Class::new(ignore);
                for (at, v) in queue.iter() {
                    class.push(key(v), at);
                }
                self.classes.push(class);
                self.classes.len() - 1
            }
            None => return queue.iter().find(|(_, v)| fits(v)).map(|(at, _)| at),
        };
        self.classes[class].find(tag, queue, fits)
    }
}
