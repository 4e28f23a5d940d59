//! Receive buffers.
//!
//! A frame is copied out of the ring before UCP sees it: the ring is memory that a peer can write.
//! UCP may keep a buffer and give it back later (UCT_CB_PARAM_FLAG_DESC), so that a message that no receive
//! waits for is not copied again.
//!
//! ```text
//! | head of the slab's | BufferHead | ... | *RecvDesc | headroom of UCP's | data
//! ```
//!
//! What UCP keeps is as long as the message, and its memory is handed back once it was not needed for a while
//! ([`Buffers::settle`]).

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::rc::Rc;

use link::MemoryLimit;
use ucx_sys::RecvDesc;

use crate::frame::{HEAD, MAX_FRAME};
use crate::iface::slabs::Slabs;

const ALIGN: usize = 64;

/// Largest alignment of data.
const MAX_ALIGN: usize = 1 << 20;

/// Buffers for so many bytes of data, or more: each is UCP's for as long as a message waits, and most
/// messages are short. Multiples of [`ALIGN`]; with room for UCP's header beside data of a power of two.
const ROOMS: [usize; 6] = [192, 576, 1088, 2112, 4160, MOST];

/// Bytes of slabs that stay although they are not needed: where some messages come unexpected between one
/// wait and the next, a fault for each of their pages costs several times what they do.
const SPARE: usize = 512 << 10;

/// Bytes that any buffer has room for.
pub(crate) const SHORT: usize = ROOMS[0];

/// Data of the longest message.
const MOST: usize = (MAX_FRAME - HEAD).next_multiple_of(ALIGN);

/// Indexes of [`ROOMS`] by the data's length, in units of [`ALIGN`] rounded up.
const SORTS: [u8; MOST / ALIGN + 1] = {
    let mut sorts = [0; MOST / ALIGN + 1];
    let (mut units, mut sort) = (0, 0);
    while units < sorts.len() {
        if units * ALIGN > ROOMS[sort as usize] {
            sort += 1;
        }
        sorts[units] = sort;
        units += 1;
    }
    sorts
};

/// The head of a buffer, behind that of its block. UCX holds a pointer to its first field.
#[repr(C)]
#[derive(Debug)]
struct BufferHead {
    recv: RecvDesc,
    /// The pool that it came from, while UCP has it.
    pool: Option<Rc<Shape>>,
    sort: usize,
}

#[derive(Debug)]
struct Shape {
    headroom: usize,
    /// For buffers of each sort.
    slabs: [Slabs; ROOMS.len()],
    /// Of each sort the one that was given back last, unless it is in use.
    at_hand: [Cell<*mut u8>; ROOMS.len()],
}

impl Shape {
    #[inline]
    fn take(&self, sort: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.at_hand[sort].replace(null_mut())).or_else(|| self.take_of_slabs(sort))
    }

    #[inline]
    fn take_of_slabs(&self, sort: usize) -> Option<NonNull<u8>> {
        NonNull::new(self.slabs[sort].take()).or_else(|| self.make_room(sort))
    }

    /// The kernel has no memory, or the process is at a limit: what no buffer needs now may be enough.
    #[cold]
    fn make_room(&self, sort: usize) -> Option<NonNull<u8>> {
        self.settle_at_hand();
        let others = self.slabs.iter().filter(|slabs| slabs.hand_back()).count();
        if others > 0 { NonNull::new(self.slabs[sort].take()) } else { None }
    }

    fn settle_at_hand(&self) {
        for (slabs, at_hand) in self.slabs.iter().zip(&self.at_hand) {
            let block = at_hand.replace(null_mut());
            if !block.is_null() {
                // SAFETY: taken from there, and not lent.
                unsafe { slabs.keep(block) };
            }
        }
    }

    /// # Safety
    /// The block was taken here as one of that sort, and is in no other use.
    #[inline]
    unsafe fn give(&self, block: *mut u8, sort: usize) {
        if self.at_hand[sort].get().is_null() {
            self.at_hand[sort].set(block);
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.slabs[sort].keep(block) };
        }
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        self.settle_at_hand();
    }
}

/// UCP gives a buffer back that it kept.
unsafe extern "C" fn release(recv: *mut RecvDesc, _desc: *mut c_void) {
    let lent = recv.cast::<BufferHead>();
    // SAFETY: the first field of what `lend` wrote, in a block of the pool that it names.
    unsafe {
        let sort = (*lent).sort;
        if let Some(shape) = (*lent).pool.take() {
            shape.give(lent.cast::<u8>().sub(Slabs::OWN), sort);
        }
    }
}

/// The receive buffers of an interface.
#[derive(Debug)]
pub(crate) struct Buffers {
    shape: Rc<Shape>,
    /// Where data begins.
    data: usize,
    /// A buffer of the first sort, which is not lent, unless it is in use. Not that of `at_hand`: that one is
    /// behind a pointer, since UCP gives buffers back when this may be gone, and nearly all messages are
    /// short.
    short: *mut u8,
    /// Slabs mapped at the time of the last report that there is no memory.
    reported: Option<usize>,
}

/// A buffer in use.
#[derive(Debug)]
pub(crate) struct Buffer {
    block: NonNull<u8>,
    sort: usize,
    room: usize,
}

impl Buffer {
    /// How much data it may have.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.room
    }
}

impl Buffers {
    /// Buffers with so much headroom of UCP's. Byte `offset` of the data is aligned to `align`.
    /// `None` if that is no alignment, or too large a one.
    pub(crate) fn new(headroom: usize, (align, offset): (usize, usize)) -> Option<Buffers> {
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return None;
        }
        let own = Slabs::OWN + size_of::<BufferHead>() + size_of::<*mut RecvDesc>();
        // Without a larger alignment data begins with a cache line.
        let offset = offset % align;
        let align = align.max(ALIGN);
        let data = own.checked_add(headroom)?.checked_add(offset)?.checked_next_multiple_of(align)? - offset;
        let mut slabs = [const { None }; ROOMS.len()];
        for (slabs, room) in slabs.iter_mut().zip(ROOMS) {
            *slabs = Some(Slabs::new(data.checked_add(room)?, align)?);
        }
        let slabs = slabs.map(|slabs| slabs.expect("made above"));
        let at_hand = [const { Cell::new(null_mut()) }; ROOMS.len()];
        let shape = Rc::new(Shape { headroom, slabs, at_hand });
        Some(Buffers { shape, data, short: null_mut(), reported: None })
    }

    /// A buffer for a frame of so many bytes, or the longest; most times the one of that sort that was given
    /// back last. `None`: there is no memory.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<Buffer> {
        let sort = match len <= HEAD + SHORT {
            true => 0,
            false => usize::from(SORTS[(len - HEAD).min(MOST).div_ceil(ALIGN)]),
        };
        Some(Buffer { block: self.shape.take(sort)?, sort, room: ROOMS[sort] })
    }

    /// A buffer for up to [`SHORT`] bytes, to be given back by [`Buffers::give_short`]. `None`: there is no
    /// memory.
    #[inline]
    pub(crate) fn take_short(&mut self) -> Option<Buffer> {
        let block = std::mem::replace(&mut self.short, null_mut());
        let block = NonNull::new(block).or_else(|| self.first_short())?;
        Some(Buffer { block, sort: 0, room: SHORT })
    }

    #[cold]
    fn first_short(&self) -> Option<NonNull<u8>> {
        self.shape.take(0)
    }

    /// The limit that leaves no buffer for a frame of `len` bytes; `None` if it was reported before, and no
    /// slab was mapped since.
    #[cold]
    pub(crate) fn cure(&mut self, len: usize) -> Option<MemoryLimit> {
        let maps = self.shape.slabs.iter().map(Slabs::maps).sum();
        if self.reported.replace(maps) == Some(maps) {
            return None;
        }
        let sort = SORTS[len.saturating_sub(HEAD).min(MOST).div_ceil(ALIGN)];
        Some(MemoryLimit(self.shape.slabs[usize::from(sort)].len()))
    }

    /// Where a buffer's data is.
    #[inline]
    pub(crate) fn data(&self, buffer: &Buffer) -> *mut u8 {
        // SAFETY: inside the block.
        unsafe { buffer.block.as_ptr().add(self.data) }
    }

    /// A buffer is free again.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        // SAFETY: taken from there, and not lent.
        unsafe { self.shape.give(buffer.block.as_ptr(), buffer.sort) };
    }

    /// A buffer of [`Buffers::take_short`] is free again.
    #[inline]
    pub(crate) fn give_short(&mut self, buffer: Buffer) {
        if self.short.is_null() {
            self.short = buffer.block.as_ptr();
        } else {
            self.give(buffer);
        }
    }

    /// UCP keeps a buffer: it will come back by way of `release`.
    pub(crate) fn lend(&mut self, buffer: Buffer) {
        let desc = self.data(&buffer).wrapping_sub(self.shape.headroom + size_of::<*mut RecvDesc>());
        // SAFETY: inside the block, which has room for what is written first, this pointer and the headroom;
        // the latter may have any length, hence unaligned.
        unsafe {
            let lent = buffer.block.as_ptr().add(Slabs::OWN).cast::<BufferHead>();
            let pool = Some(Rc::clone(&self.shape));
            lent.write(BufferHead { recv: RecvDesc { cb: release }, pool, sort: buffer.sort });
            desc.cast::<*mut RecvDesc>().write_unaligned(lent.cast());
        }
    }

    /// Hands back a part of the memory that was not needed since the last call, but for [`SPARE`].
    #[cold]
    pub(crate) fn settle(&self) {
        let slabs = &self.shape.slabs;
        let mut spare = slabs.iter().map(Slabs::idle).sum::<usize>().saturating_sub(SPARE);
        // The long ones first: there are fewest messages to so many bytes.
        for slabs in slabs.iter().rev() {
            spare -= slabs.settle(spare);
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if !self.short.is_null() {
            // SAFETY: taken from there, and not lent.
            unsafe { self.shape.give(self.short, 0) };
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
            assert!(Buffers::new(headroom, (bad, 0)).is_none(), "{bad}");
        }
        let unasked = Buffers::new(24, (1, 0)).unwrap();
        assert_eq!(unasked.data % 64, 0);
    }

    /// As UCX does it: by the pointer before the headroom.
    ///
    /// # Safety
    /// UCP has the buffer with this data.
    unsafe fn come_back(data: *mut u8, headroom: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let desc = data.sub(headroom);
            let recv = desc.sub(8).cast::<*mut RecvDesc>().read_unaligned();
            ((*recv).cb)(recv, desc.cast());
        }
    }

    #[test]
    fn a_buffer_that_ucp_keeps_comes_back() {
        for (headroom, align) in
            [(0, (1, 0)), (3, (8, 4)), (40, (64, 0)), (200, (4096, 33)), (24, (4, 8)), (16, (1 << 20, 5))]
        {
            for len in [HEAD, HEAD + 300, MAX_FRAME] {
                let mut buffers = Buffers::new(headroom, align).unwrap();
                let b = buffers.take(len).unwrap();
                let data = buffers.data(&b);
                assert_eq!((data as usize + align.1) % align.0, 0);
                // SAFETY: what a buffer has room for, before and behind.
                unsafe {
                    data.sub(headroom).write_bytes(1, headroom);
                    data.write_bytes(2, b.room());
                }
                let block = b.block;
                buffers.lend(b);
                let other = buffers.take(len).unwrap();
                assert_ne!(other.block, block);
                buffers.give(other);
                // The interface may be closed by then.
                drop(buffers);
                // SAFETY: lent above.
                unsafe { come_back(data, headroom) };
            }
        }
    }

    #[test]
    fn a_buffer_has_the_room_that_a_frame_needs_and_little_more() {
        let mut buffers = Buffers::new(64, (1, 0)).unwrap();
        for len in 0..MAX_FRAME + 100 {
            let b = buffers.take(len).unwrap();
            let data = len.saturating_sub(HEAD);
            assert!(b.room() >= data.min(MOST), "{len}");
            assert!(b.room() <= SHORT.max(3 * data), "{len}");
            buffers.give(b);
        }
        let b = buffers.take_short().unwrap();
        assert_eq!(b.room(), SHORT);
        buffers.give_short(b);
    }

    /// Bytes that the process has for buffers, besides slabs that are all in use.
    fn mapped(buffers: &Buffers) -> usize {
        buffers.shape.slabs.iter().map(Slabs::mapped).sum()
    }

    #[test]
    fn buffers_that_are_not_needed_any_more_are_handed_back() {
        for (len, many) in [(200, 20_000), (MAX_FRAME, 1000)] {
            let mut buffers = Buffers::new(64, (1, 0)).unwrap();
            let kept = |buffers: &mut Buffers| {
                let b = buffers.take(len).unwrap();
                let data = buffers.data(&b);
                buffers.lend(b);
                data
            };
            let mut kept: Vec<_> = (0..many).map(|_| kept(&mut buffers)).collect();
            // A message that waits longer than all others.
            let long = kept.swap_remove(many / 2);
            // SAFETY: lent above.
            kept.into_iter().for_each(|data| unsafe { come_back(data, 64) });
            let most = mapped(&buffers);
            assert!(most >= many * (len - HEAD), "{len}: {most}");
            // They may be needed again at once.
            buffers.settle();
            assert_eq!(mapped(&buffers), most, "{len}");
            (0..60).for_each(|_| buffers.settle());
            // And the slabs of the buffer at hand and of that message, and a part of one more.
            assert!(mapped(&buffers) <= SPARE + (450 << 10), "{len}: {} of {most}", mapped(&buffers));
            // SAFETY: lent above.
            unsafe { come_back(long, 64) };
            (0..10).for_each(|_| buffers.settle());
            assert!(mapped(&buffers) <= SPARE + (300 << 10), "{len}: {}", mapped(&buffers));
        }
    }

    #[test]
    fn some_buffers_that_are_needed_after_a_long_wait_are_there() {
        let mut buffers = Buffers::new(64, (1, 0)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..10 {
            let many: Vec<_> = (0..64).map(|_| buffers.take(HEAD + 4104).unwrap()).collect();
            seen.extend(many.iter().map(|b| b.block));
            many.into_iter().for_each(|b| buffers.give(b));
            let before = mapped(&buffers);
            (0..100).for_each(|_| buffers.settle());
            assert_eq!(mapped(&buffers), before);
        }
        assert_eq!(seen.len(), 64);
    }
}
