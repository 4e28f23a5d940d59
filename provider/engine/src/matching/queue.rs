//! A queue in order of arrival. Its entries stay in the same slots, which are used again.

/// Place of an entry. It finds nothing once the entry has gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At {
    slot: u32,
    /// Grows with every entry: order of arrival, and what tells an entry from the slot's next one.
    pub(super) seq: u64,
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

    /// Likewise, to change it.
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
