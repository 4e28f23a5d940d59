//! An allocator of a test program that counts what is allocated and freed.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, which calls this for each allocation (1) and each end of one (-1).
#[derive(Debug)]
pub struct Counting(pub fn(Layout, isize));

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        (self.0)(layout, 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        (self.0)(layout, 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        (self.0)(layout, -1);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}
