//! A ring in memory of the process itself, for Miri, which knows no memfd: it sees whether every access that
//! is not atomic is ordered with the other side's.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::{LINE, Mem};

#[derive(Debug)]
struct Block {
    lines: Box<[UnsafeCell<[u32; LINE / 4]>]>,
    head: AtomicU32,
    bell: AtomicU32,
    want: AtomicU32,
}

// SAFETY: the lines are reached by atomics, and by copies of which `Mem`'s contract says that the bytes are
// the caller's own.
unsafe impl Sync for Block {}

/// One side's hold on it.
#[derive(Clone, Debug)]
pub(in crate::shm) struct Heap(Arc<Block>);

impl Heap {
    pub(in crate::shm) fn new(bytes: usize) -> Heap {
        let lines = (0..bytes / LINE).map(|_| UnsafeCell::default()).collect();
        let [head, bell, want] = [0; 3].map(AtomicU32::new);
        Heap(Arc::new(Block { lines, head, bell, want }))
    }

    fn at(&self, byte: usize) -> *mut u8 {
        assert!(byte < self.0.lines.len() * LINE);
        UnsafeCell::raw_get(self.0.lines.as_ptr()).cast::<u8>().wrapping_add(byte)
    }
}

impl Mem for Heap {
    type Word = AtomicU32;

    fn lines(&self) -> u32 {
        self.0.lines.len() as u32
    }
    fn commit(&self, line: u32) -> &AtomicU32 {
        // SAFETY: the first word of a line, aligned; it lives as long as `self`. What is not atomic there is
        // ordered with it, by `Mem`'s contract.
        unsafe { AtomicU32::from_ptr(self.at(line as usize * LINE).cast()) }
    }
    fn head(&self) -> &AtomicU32 {
        &self.0.head
    }
    fn bell(&self) -> &AtomicU32 {
        &self.0.bell
    }
    fn want(&self) -> &AtomicU32 {
        &self.0.want
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
    fn will_read(&self, _: usize) {}
    fn will_write(&self, _: usize) {}
    fn hand_over(&self, _: usize) {}
    unsafe fn put(&self, at: usize, src: *const u8, len: usize) {
        if len > 0 {
            assert!(at + len <= self.0.lines.len() * LINE);
            // SAFETY: inside the ring, and the producer's own; the rest is the contract.
            unsafe { ptr::copy_nonoverlapping(src, self.at(at), len) }
        }
    }
    unsafe fn get(&self, at: usize, dst: *mut u8, len: usize) {
        if len > 0 {
            assert!(at + len <= self.0.lines.len() * LINE);
            // SAFETY: inside the ring, and the consumer's own; the rest is the contract.
            unsafe { ptr::copy_nonoverlapping(self.at(at), dst, len) }
        }
    }
}
