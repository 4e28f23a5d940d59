//! Host memory between a file and a device's memory. Several workers each have a buffer: while one of them waits for the disk
//! another one copies.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use hmem::Kind;

/// What keeps memory page-locked.
type Locked = Box<dyn std::any::Any + Send + Sync>;

/// Bytes of a buffer.
pub(super) const CHUNK: usize = 4 << 20;
/// Most buffers of a file, and so workers of a transfer.
pub(super) const WORKERS: usize = 4;
/// What buffers begin at a multiple of: no disk's block is longer.
const ALIGN: usize = 1 << 16;

/// A buffer, page-locked for the devices of a kind.
pub(super) struct Buffer {
    at: NonNull<u8>,
    /// Goes first: see `drop`.
    locked: Option<(Kind, Option<Locked>)>,
}

// SAFETY: it owns its bytes.
unsafe impl Send for Buffer {}

const LAYOUT: Layout = match Layout::from_size_align(CHUNK, ALIGN) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

impl Buffer {
    fn new() -> Option<Buffer> {
        // SAFETY: the size is not 0.
        NonNull::new(unsafe { alloc_zeroed(LAYOUT) }).map(|at| Buffer { at, locked: None })
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the allocation, which this owns; it was zeroed.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), CHUNK) }
    }

    fn lock_for(&mut self, kind: Kind) {
        if self.locked.as_ref().is_none_or(|(of, _)| *of != kind) {
            self.locked = None;
            // SAFETY: this allocation, which is freed after what is remembered of it here.
            let pages =
                unsafe { hmem::registry::of(kind).lock_host(self.at.as_ptr().expose_provenance(), CHUNK) };
            self.locked = Some((kind, pages));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.locked = None;
        // SAFETY: allocated so, and no device has it locked any more.
        unsafe { dealloc(self.at.as_ptr(), LAYOUT) }
    }
}

/// Buffers that are not in use.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Buffer>>);

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Buffers")
    }
}

impl Buffers {
    /// One, for copies from and to memory of that kind.
    pub fn take(&self, kind: Kind) -> Option<Buffer> {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = free.or_else(Buffer::new)?;
        buffer.lock_for(kind);
        Some(buffer)
    }

    pub fn give(&self, buffer: Buffer) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < WORKERS {
            free.push(buffer);
        }
    }
}
