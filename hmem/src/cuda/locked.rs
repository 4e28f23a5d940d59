//! Page-locked buffers, of which a process has few: each is made when it is first needed, and stays.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::api::Api;
use super::stream::Locked;
use crate::flight::PIECE;

/// Bytes of a buffer.
pub(super) const LEN: usize = PIECE;
/// Most buffers.
const MOST: usize = 8;
/// After how many needs in vain it is tried again to lock memory.
const AGAIN: u32 = 256;

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBuffer {
    /// All are taken.
    Taken,
    /// No memory is locked.
    Refused,
}

/// A buffer that is taken; it goes back to the pool when it is dropped.
#[derive(Debug)]
pub(super) struct Buffer(NonNull<u8>);

// SAFETY: it is its bytes' one owner, and is used as any owner of bytes.
unsafe impl Send for Buffer {}

struct Pool {
    free: Vec<Buffer>,
    made: usize,
    /// Needs since memory was not locked.
    vain: Option<u32>,
}

fn pool() -> MutexGuard<'static, Pool> {
    static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), made: 0, vain: None });
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Buffer {
    pub(super) fn take(api: &Api) -> Result<Buffer, NoBuffer> {
        let mut pool = pool();
        if let Some(free) = pool.free.pop() {
            return Ok(free);
        }
        if pool.made == MOST {
            return Err(NoBuffer::Taken);
        }
        if let Some(needs) = pool.vain.as_mut().filter(|needs| **needs < AGAIN) {
            *needs += 1;
            return Err(NoBuffer::Refused);
        }
        let made = make(api);
        pool.vain = if made.is_none() { Some(0) } else { None };
        pool.made += usize::from(made.is_some());
        made.ok_or(NoBuffer::Refused)
    }

    /// Its first byte, as a number.
    pub(super) fn addr(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }
}

fn make(api: &Api) -> Option<Buffer> {
    let layout = Layout::from_size_align(LEN, 4096).ok()?;
    // SAFETY: the size is not 0.
    let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    match Locked::new(api, at.as_ptr().expose_provenance(), LEN) {
        Ok(locked) => {
            std::mem::forget(locked);
            Some(Buffer(at))
        }
        Err(_) => {
            // SAFETY: allocated so, and used by nothing.
            unsafe { dealloc(at.as_ptr(), layout) };
            None
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        pool().free.push(Buffer(self.0));
    }
}
