//! Receive buffers.
//!
//! A frame is copied out of the ring before UCP sees it: the ring is memory that a peer can write.
//! UCP may keep a buffer and give it back later (UCT_CB_PARAM_FLAG_DESC), so that a message that no receive
//! waits for is not copied again.
//!
//! ```text
//! | Block | ... | *RecvDesc | headroom of UCP's | data
//! ```

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ffi::c_void;
use std::rc::Rc;

use ucx_sys::RecvDesc;

/// Buffers kept for later use: of 16 peers some messages each that no receive waited for, 2 MiB in all.
const SPARE: usize = 256;

const ALIGN: usize = 64;

/// Largest alignment of data.
const MAX_ALIGN: usize = 1 << 20;

/// The head of a buffer. UCX holds a pointer to its first field.
#[repr(C)]
#[derive(Debug)]
struct Block {
    recv: RecvDesc,
    /// The pool that it came from, while UCP has it.
    pool: Option<Rc<Shape>>,
}

#[derive(Debug)]
struct Shape {
    headroom: usize,
    /// Alignment of a block.
    align: usize,
    /// Where data begins, and how much there may be.
    data: usize,
    room: usize,
    spare: RefCell<Vec<*mut Block>>,
}

impl Shape {
    fn layout(&self) -> Layout {
        Layout::from_size_align(self.data + self.room, self.align).expect("a size in reason")
    }

    fn make(&self) -> *mut Block {
        let layout = self.layout();
        // SAFETY: the layout is not empty.
        let block = unsafe { alloc_zeroed(layout) }.cast::<Block>();
        if block.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: large and aligned enough.
        unsafe { block.write(Block { recv: RecvDesc { cb: release }, pool: None }) };
        block
    }

    fn keep(&self, block: *mut Block) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push(block);
        } else {
            // SAFETY: made by `make` with this layout, and not lent.
            unsafe { dealloc(block.cast(), self.layout()) };
        }
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        for block in self.spare.take() {
            // SAFETY: as in `keep`.
            unsafe { dealloc(block.cast(), self.layout()) };
        }
    }
}

/// UCP gives a buffer back that it kept.
unsafe extern "C" fn release(recv: *mut RecvDesc, _desc: *mut c_void) {
    let block = recv.cast::<Block>();
    // SAFETY: the first field of a block that UCP had.
    if let Some(shape) = unsafe { (*block).pool.take() } {
        shape.keep(block);
    }
}

/// The receive buffers of an interface.
#[derive(Debug)]
pub(crate) struct Buffers {
    shape: Rc<Shape>,
    at_hand: *mut Block,
}

/// A buffer in use.
#[derive(Debug)]
pub(crate) struct Buffer(*mut Block);

impl Buffers {
    /// Buffers for `room` bytes, with so much headroom of UCP's. Byte `offset` of the data is aligned to `align`.
    /// `None` if that is no alignment, or too large a one.
    pub(crate) fn new(headroom: usize, room: usize, (align, offset): (usize, usize)) -> Option<Buffers> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return None;
        }
        let before = (size_of::<Block>() + size_of::<*mut RecvDesc>()).checked_add(headroom)?;
        // Where no more is asked for data begins with a cache line.
        let offset = offset % align;
        let align = align.max(ALIGN);
        let shape = Shape {
            headroom,
            align,
            data: before.checked_add(offset)?.checked_next_multiple_of(align)? - offset,
            room: room.next_multiple_of(ALIGN),
            spare: RefCell::default(),
        };
        let fits = Layout::from_size_align(shape.data.checked_add(shape.room)?, align).is_ok();
        fits.then(|| Buffers { shape: Rc::new(shape), at_hand: std::ptr::null_mut() })
    }

    pub(crate) fn room(&self) -> usize {
        self.shape.room
    }

    /// A buffer, most times the one that was given back last.
    #[inline]
    pub(crate) fn take(&mut self) -> Buffer {
        let block = std::mem::replace(&mut self.at_hand, std::ptr::null_mut());
        if block.is_null() { self.take_slow() } else { Buffer(block) }
    }

    #[cold]
    fn take_slow(&mut self) -> Buffer {
        let spare = self.shape.spare.borrow_mut().pop();
        Buffer(spare.unwrap_or_else(|| self.shape.make()))
    }

    /// Where a buffer's data is.
    #[inline]
    pub(crate) fn data(&self, buffer: &Buffer) -> *mut u8 {
        // SAFETY: inside the block.
        unsafe { buffer.0.cast::<u8>().add(self.shape.data) }
    }

    /// A buffer is free again.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        if self.at_hand.is_null() {
            self.at_hand = buffer.0;
        } else {
            self.shape.keep(buffer.0);
        }
    }

    /// UCP keeps a buffer: it will come back by way of `release`.
    pub(crate) fn lend(&mut self, buffer: Buffer) {
        let desc = self.data(&buffer).wrapping_sub(self.shape.headroom + size_of::<*mut RecvDesc>());
        // SAFETY: inside the block, which has room for this pointer and the headroom; the latter
        // may have any length, hence unaligned.
        unsafe {
            (*buffer.0).pool = Some(Rc::clone(&self.shape));
            desc.cast::<*mut RecvDesc>().write_unaligned(buffer.0.cast());
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if !self.at_hand.is_null() {
            self.shape.keep(self.at_hand);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignments() {
        for (headroom, bad) in
            [(0, 0), (0, 3), (0, 48), (0, MAX_ALIGN * 2), (0, 1 << 63), (usize::MAX - 40, 8)]
        {
            assert!(Buffers::new(headroom, 100, (bad, 0)).is_none(), "{bad}");
        }
        let unasked = Buffers::new(24, 100, (1, 0)).unwrap();
        assert_eq!((unasked.shape.data % 64, unasked.shape.align), (0, 64));
    }

    #[test]
    fn a_buffer_that_ucp_keeps_comes_back() {
        for (headroom, align) in [(0, (1, 0)), (3, (8, 4)), (40, (64, 0)), (200, (4096, 33)), (24, (4, 8))] {
            let mut buffers = Buffers::new(headroom, 100, align).unwrap();
            let b = buffers.take();
            let data = buffers.data(&b);
            assert_eq!((data as usize + align.1) % align.0, 0);
            // SAFETY: what a buffer has room for, before and behind.
            unsafe {
                data.sub(headroom).write_bytes(1, headroom);
                data.write_bytes(2, buffers.room());
            }
            let block = b.0;
            buffers.lend(b);
            let other = buffers.take();
            assert_ne!(other.0, block);
            buffers.give(other);
            // SAFETY: as UCX does it: the pointer before the headroom.
            unsafe {
                let desc = data.sub(headroom);
                let recv = desc.sub(8).cast::<*mut RecvDesc>().read_unaligned();
                // The interface may be closed by then.
                drop(buffers);
                ((*recv).cb)(recv, desc.cast());
            }
        }
    }
}
