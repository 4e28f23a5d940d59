//! Blocks of memory of one size, of which many are needed for a while and few for long.
//!
//! They are cut from slabs, each mapped from the kernel on its own, so that one can be handed back whatever else the
//! process has allocated since; a page is there from when a block of it is first used. Blocks are taken from the slab that was
//! full last, so that others become empty, and those that were empty all the time between two calls of
//! [`Slabs::settle`] are handed back.

use std::alloc::{Layout, handle_alloc_error};
use std::cell::Cell;
use std::ptr::null_mut;

/// A slab has room for so many blocks, or as many as fit in so many bytes.
const BLOCKS: usize = 16;
const LEAST: usize = 16 << 10;

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
    /// Neighbours in the list of those that have free blocks.
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

#[derive(Debug)]
pub(crate) struct Slabs {
    /// Bytes from a block to the next, and its alignment.
    stride: usize,
    align: usize,
    /// How many a slab has, and its bytes.
    blocks: usize,
    len: usize,
    /// Slabs that have free blocks. Those that are empty are last.
    first: Cell<*mut Slab>,
    last: Cell<*mut Slab>,
    /// How many are empty, and how many were at least since the last call of [`Slabs::settle`].
    empty: Cell<usize>,
    least: Cell<usize>,
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
        let none = || Cell::new(null_mut());
        Some(Slabs {
            stride,
            align,
            blocks,
            len,
            first: none(),
            last: none(),
            empty: Cell::new(0),
            least: Cell::new(0),
        })
    }

    /// A block; zeroed, if it was not used before.
    pub(crate) fn take(&self) -> *mut u8 {
        let slab = match self.first.get() {
            slab if slab.is_null() => self.map(),
            slab => slab,
        };
        // SAFETY: a slab in the list is mapped and has a free block, or one that never was used.
        unsafe {
            if (*slab).used == 0 {
                self.empty.set(self.empty.get() - 1);
                self.least.set(self.least.get().min(self.empty.get()));
            }
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
                self.unlink(slab);
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
        // SAFETY: the caller's promise. A slab with a block in use is mapped, and in the list unless it is full.
        unsafe {
            let slab = (*block).slab;
            if (*slab).used == self.blocks {
                self.link_first(slab);
            }
            (*block).next = (*slab).free;
            (*slab).free = block;
            (*slab).used -= 1;
            if (*slab).used == 0 {
                self.empty.set(self.empty.get() + 1);
                self.unlink(slab);
                self.link_last(slab);
            }
        }
    }

    /// Hands back what was not needed since the last call.
    pub(crate) fn settle(&self) {
        for _ in 0..self.least.get() {
            // SAFETY: so many slabs at least are empty, and those are last.
            unsafe { self.unmap(self.last.get()) };
        }
        self.least.set(self.empty.get());
    }

    /// Bytes of the slabs that have a free block.
    #[cfg(test)]
    pub(crate) fn mapped(&self) -> usize {
        let mut slab = self.first.get();
        let mut bytes = 0;
        while !slab.is_null() {
            bytes += self.len;
            // SAFETY: what is in the list is mapped.
            slab = unsafe { (*slab).after };
        }
        bytes
    }

    /// Makes an empty slab.
    #[cold]
    fn map(&self) -> *mut Slab {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(null_mut(), self.len, prot, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            handle_alloc_error(Layout::from_size_align(self.len, 4096).expect("a size in reason"));
        }
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
            self.link_first(slab);
        }
        self.empty.set(self.empty.get() + 1);
        slab
    }

    /// # Safety
    /// The slab is in the list, and empty.
    unsafe fn unmap(&self, slab: *mut Slab) {
        // SAFETY: the caller's promise: nobody has a block of it.
        unsafe {
            debug_assert_eq!((*slab).used, 0);
            self.unlink(slab);
            libc::munmap(slab.cast(), self.len);
        }
        self.empty.set(self.empty.get() - 1);
    }

    /// # Safety
    /// The slab is mapped, and not in the list.
    unsafe fn link_first(&self, slab: *mut Slab) {
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
    /// As for `link_first`.
    unsafe fn link_last(&self, slab: *mut Slab) {
        // SAFETY: likewise.
        unsafe {
            let before = self.last.replace(slab);
            ((*slab).before, (*slab).after) = (before, null_mut());
            match before.is_null() {
                true => self.first.set(slab),
                false => (*before).after = slab,
            }
        }
    }

    /// # Safety
    /// The slab is in the list.
    unsafe fn unlink(&self, slab: *mut Slab) {
        // SAFETY: likewise.
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
    /// Nobody has a block any more.
    fn drop(&mut self) {
        while !self.first.get().is_null() {
            // SAFETY: all slabs are empty, hence in the list.
            unsafe { self.unmap(self.first.get()) };
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
                // SAFETY: likewise; taken above.
                unsafe {
                    assert_eq!((*block.add(Slabs::OWN), *block.add(1023)), (n as u8, n as u8));
                    slabs.keep(*block);
                }
            }
            slabs.mapped()
        };
        let most = use_many(400);
        slabs.settle();
        let fewer = use_many(100);
        assert_eq!(fewer, most);
        slabs.settle();
        assert!((most / 5..most / 3).contains(&slabs.mapped()), "{} of {most}", slabs.mapped());
        slabs.settle();
        assert_eq!(slabs.mapped(), 0);
        assert!(use_many(1) > 0);
    }
}
