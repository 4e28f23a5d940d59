//! Memory of this process for regions.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::{Error, Memory};

/// Pages of this process.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Pages {}
// SAFETY: a shared reference only gives the address.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping that `pages` made; it is dropped when nothing uses the memory any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Fresh zeros.
pub fn pages(len: usize) -> Result<Memory, Error> {
    let failed = || Error::system("mmap", &std::io::Error::last_os_error());
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: an anonymous mapping at no particular address touches no memory of ours.
    let base = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(failed());
    }
    let base = NonNull::new(base.cast::<u8>()).ok_or_else(failed)?;
    let keep = Arc::new(Pages { base, len });
    // SAFETY: page-aligned, readable and writable as long as `keep`, and no reference to it is ever made.
    Ok(unsafe { Memory::new(base, len, keep) })
}
