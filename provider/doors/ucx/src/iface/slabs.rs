//! Blocks of memory of one size, of which many are needed for a while and few for long.
//!
//! They are cut from slabs, each mapped from the kernel on its own, so that one can be handed back whatever
//! else the process has allocated since; a page is there from when a block of it is first used. Blocks are
//! taken from the slab that was full last, so that others become empty, and of those the one that became so
//! last is used next: its lines are in the cache. Of those that were empty all the time between two calls of
//! [`Slabs::settle`] a part is handed back.

use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::null_mut;

/// A slab has room for so many blocks, or as many as fit in so many bytes.
const BLOCKS: usize = 16;
const LEAST: usize = 16 << 10;

/// One in so many of the slabs that were not needed is handed back at once: many may be needed again after
/// each wait, and a fault for each page costs more than a message.
const SHARE: usize = 2;

/// The head of a block. The rest is its user's.
#[repr(C)]
#[derive(Debug)]
struct Block {
    slab: *mut Slab,
    /// The next free one, while it is.
    next: *mut Block,
}

/// The head of a slab.
#[derive(Debug)]
struct Slab {
    /// Neighbours in its list.
    before: *mut Slab,
    after: *mut Slab,
    /// Blocks that are free again.
    free: *mut Block,
    /// How many were ever used, and how many are.
    begun: usize,
    used: usize,
    /// The first block.
    blocks: *mut u8,
}

/// The front is where slabs are added.
#[derive(Debug)]
struct List {
    first: Cell<*mut Slab>,
    last: Cell<*mut Slab>,
}

#[derive(Debug)]
pub(crate) struct Slabs {
    /// Bytes from a block to the next, and its alignment.
    stride: usize,
    align: usize,
    /// How many a slab has, and its bytes.
    blocks: usize,
    len: usize,
    /// Slabs that have blocks both free and in use.
    partial: List,
    /// Those that are empty.
    idle: List,
    /// How many are, and how many were at least since the last call of [`Slabs::settle`].
    empty: Cell<usize>,
    least: Cell<usize>,
    /// How many were mapped.
    maps: Cell<usize>,
}

impl Slabs {
    /// Bytes of a block that are not its user's, at its begin.
    pub(crate) const OWN: usize = size_of::<Block>();

    /// For blocks of `size` bytes with this alignment. `None` if that is too large.
    pub(crate) fn new(size: usize, align: usize) -> Option<Slabs> {
        let stride = size.checked_next_multiple_of(align)?;
        let blocks = BLOCKS.max(LEAST / stride);
        let len = stride.checked_mul(blocks)?.checked_add(size_of::<Slab>())?.checked_add(align)?;
        // Of what is too large there is no layout.
        let len = Layout::from_size_align(len, 4096).ok()?.pad_to_align().size();
        Some(Slabs {
            stride,
            align,
            blocks,
            len,
            partial: List::new(),
            idle: List::new(),
            empty: Cell::new(0),
            least: Cell::new(0),
            maps: Cell::new(0),
        })
    }

    /// A block; zeroed, if it was not used before. NULL: there is no memory for one.
    pub(crate) fn take(&self) -> *mut u8 {
        let mut slab = self.partial.first.get();
        if slab.is_null() {
            slab = self.fresh();
            if slab.is_null() {
                return null_mut();
            }
        }
        // SAFETY: a slab in that list is mapped and has a free block, or one that never was used.
        unsafe {
            (*slab).used += 1;
            let mut block = (*slab).free;
            if block.is_null() {
                block = (*slab).blocks.add((*slab).begun * self.stride).cast();
                (*slab).begun += 1;
                block.write(Block { slab, next: null_mut() });
            } else {
                (*slab).free = (*block).next;
            }
            if (*slab).used == self.blocks {
                self.partial.unlink(slab);
            }
            block.cast()
        }
    }

    /// A block is free again.
    ///
    /// # Safety
    /// It was taken here, and is in no other use.
    pub(crate) unsafe fn keep(&self, block: *mut u8) {
        let block = block.cast::<Block>();
        // SAFETY: the caller's promise. A slab with a block in use is mapped, and partial unless it is full.
        unsafe {
            let slab = (*block).slab;
            if (*slab).used == self.blocks {
                self.partial.link(slab);
            }
            (*block).next = (*slab).free;
            (*slab).free = block;
            (*slab).used -= 1;
            if (*slab).used == 0 {
                self.empty.set(self.empty.get() + 1);
                self.partial.unlink(slab);
                self.idle.link(slab);
            }
        }
    }

    /// Bytes of the slabs that are empty.
    pub(crate) fn idle(&self) -> usize {
        self.empty.get() * self.len
    }

    /// Hands back a part of what was not needed since the last call, at most so many bytes. Returns how many.
    pub(crate) fn settle(&self, most: usize) -> usize {
        let count = self.least.get().div_ceil(SHARE).min(most / self.len);
        for _ in 0..count {
            // SAFETY: so many slabs at least are empty; the last is the one that is for longest.
            unsafe { self.unmap(self.idle.last.get()) };
        }
        self.least.set(self.empty.get());
        count * self.len
    }

    /// Bytes of the slabs that have a free block.
    #[cfg(test)]
    pub(crate) fn mapped(&self) -> usize {
        let mut bytes = 0;
        for list in [&self.partial, &self.idle] {
            let mut slab = list.first.get();
            while !slab.is_null() {
                bytes += self.len;
                // SAFETY: what is in a list is mapped.
                slab = unsafe { (*slab).after };
            }
        }
        bytes
    }

    /// Hands back all slabs that are empty. Whether there were any.
    #[cold]
    pub(crate) fn hand_back(&self) -> bool {
        let any = self.empty.get() > 0;
        while self.empty.get() > 0 {
            // SAFETY: it is empty.
            unsafe { self.unmap(self.idle.last.get()) };
        }
        self.least.set(0);
        any
    }

    /// How many slabs were mapped, those that were handed back included.
    pub(crate) fn maps(&self) -> usize {
        self.maps.get()
    }

    /// Bytes of a slab.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A partial slab, where there was none: it has no block in use, but is to have one. NULL: there is no
    /// memory.
    fn fresh(&self) -> *mut Slab {
        let slab = self.idle.first.get();
        if slab.is_null() {
            return self.map();
        }
        // SAFETY: what is in a list is mapped.
        unsafe {
            self.idle.unlink(slab);
            self.partial.link(slab);
        }
        self.empty.set(self.empty.get() - 1);
        self.least.set(self.least.get().min(self.empty.get()));
        slab
    }

    /// Maps a new slab.
    #[cold]
    fn map(&self) -> *mut Slab {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(null_mut(), self.len, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return null_mut();
        }
        self.maps.set(self.maps.get() + 1);
        let slab = base.cast::<Slab>();
        let blocks = base.cast::<u8>().wrapping_add(size_of::<Slab>());
        let blocks = blocks.wrapping_add(blocks.align_offset(self.align));
        // SAFETY: in the mapping, which begins with a page.
        unsafe {
            slab.write(Slab {
                before: null_mut(),
                after: null_mut(),
                free: null_mut(),
                begun: 0,
                used: 0,
                blocks,
            });
            self.partial.link(slab);
        }
        slab
    }

    /// # Safety
    /// The slab is empty.
    unsafe fn unmap(&self, slab: *mut Slab) {
        // SAFETY: the caller's promise: none of its blocks is in use.
        unsafe {
            debug_assert_eq!((*slab).used, 0);
            self.idle.unlink(slab);
            libc::munmap(slab.cast(), self.len);
        }
        self.empty.set(self.empty.get() - 1);
    }
}

impl List {
    fn new() -> List {
        List { first: Cell::new(null_mut()), last: Cell::new(null_mut()) }
    }

    /// # Safety
    /// The slab is mapped, and in no list.
    unsafe fn link(&self, slab: *mut Slab) {
        // SAFETY: the caller's promise; what is in the list is mapped.
        unsafe {
            let after = self.first.replace(slab);
            ((*slab).before, (*slab).after) = (null_mut(), after);
            match after.is_null() {
                true => self.last.set(slab),
                false => (*after).before = slab,
            }
        }
    }

    /// # Safety
    /// The slab is in the list.
    unsafe fn unlink(&self, slab: *mut Slab) {
        // SAFETY: the caller's promise; what a slab of the list names is in the list.
        unsafe {
            let (before, after) = ((*slab).before, (*slab).after);
            match before.is_null() {
                true => self.first.set(after),
                false => (*before).after = after,
            }
            match after.is_null() {
                true => self.last.set(before),
                false => (*after).before = before,
            }
        }
    }
}

impl Drop for Slabs {
    /// No block is in use any more.
    fn drop(&mut self) {
        while !self.idle.first.get().is_null() {
            // SAFETY: all slabs are empty, hence in the list.
            unsafe { self.unmap(self.idle.first.get()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_needed_meanwhile_stays() {
        let slabs = Slabs::new(1024, 64).unwrap();
        let use_many = |count: usize| {
            let blocks: Vec<_> = (0..count).map(|_| slabs.take()).collect();
            for (n, block) in blocks.iter().enumerate() {
                // SAFETY: a block of 1024 bytes.
                unsafe { block.add(Slabs::OWN).write_bytes(n as u8, 1024 - Slabs::OWN) };
            }
            for (n, block) in blocks.iter().enumerate() {
                // SAFETY: a block of 1024 bytes, taken above.
                unsafe {
                    assert_eq!((*block.add(Slabs::OWN), *block.add(1023)), (n as u8, n as u8));
                    slabs.keep(*block);
                }
            }
            slabs.mapped()
        };
        let most = use_many(400);
        slabs.settle(usize::MAX);
        let fewer = use_many(100);
        assert_eq!(fewer, most);
        // What the 100 need is not handed back while they are.
        for _ in 0..30 {
            slabs.settle(usize::MAX);
            assert_eq!(use_many(100), slabs.mapped());
        }
        assert!((most / 5..most / 3).contains(&slabs.mapped()), "{} of {most}", slabs.mapped());
        let handed_back = |_| slabs.settle(usize::MAX);
        assert!((0..10).map(handed_back).sum::<usize>() > 0);
        assert_eq!((slabs.mapped(), slabs.idle()), (0, 0));
        assert!(use_many(1) > 0);
    }

    /// A few blocks at a time, when many were needed just before.
    #[test]
    fn what_was_used_last_is_used_next() {
        let slabs = Slabs::new(1024, 64).unwrap();
        let many: Vec<_> = (0..400).map(|_| slabs.take()).collect();
        // SAFETY: taken above.
        many.into_iter().for_each(|block| unsafe { slabs.keep(block) });
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let blocks = [slabs.take(), slabs.take()];
            seen.extend(blocks);
            // SAFETY: taken above.
            blocks.into_iter().for_each(|block| unsafe { slabs.keep(block) });
        }
        assert_eq!(seen.len(), 2);
    }

    /// Waits in between must not have all of them cost a fault for each page.
    #[test]
    fn many_that_are_needed_after_each_wait_stay_in_part() {
        let slabs = Slabs::new(1024, 64).unwrap();
        let mut most = 0;
        for _ in 0..10 {
            let many: Vec<_> = (0..1600).map(|_| slabs.take()).collect();
            // SAFETY: taken above.
            many.into_iter().for_each(|block| unsafe { slabs.keep(block) });
            most = slabs.mapped();
            slabs.settle(usize::MAX);
            slabs.settle(usize::MAX);
            assert!(slabs.mapped() >= most / 5 * 2 && slabs.mapped() < most, "{} of {most}", slabs.mapped());
        }
        assert_eq!(slabs.settle(most / 100 - 1), 0);
        (0..50).for_each(|_| _ = slabs.settle(usize::MAX));
        assert_eq!(slabs.mapped(), 0, "of {most}");
    }
}
