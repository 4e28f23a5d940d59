//! How much memory the process has from its heap, and the most that it had.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Heap;

// SAFETY: all is done by the system's allocator, as it was asked for.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's memory, from `alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

/// Begins to measure: the bytes in use.
pub fn begin() -> usize {
    let now = NOW.load(Relaxed);
    MOST.store(now, Relaxed);
    now
}

/// The most bytes that were in use since.
pub fn most() -> usize {
    MOST.load(Relaxed)
}
