//! Memory of this process for regions.
//!
//! A peer may write a word of a pipe that this side has closed, until it learns of that. Other backends
//! refuse it; an MPI stores it at the address (MPICH 5.0.2 does without a look whether that is
//! attached). So addresses are not given to other memory: the pages go back to the system, and a late
//! word is in a page of zeros.

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
        // SAFETY: the mapping that `pages` made; it is dropped when this process uses the memory no more.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Whether a peer's late word is stored, by a system call that refuses where no memory is.
    fn takes_a_word(at: usize) -> bool {
        let word = 7u64;
        let to = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: 8 };
        let from = libc::iovec { iov_base: (&raw const word).cast_mut().cast(), iov_len: 8 };
        // SAFETY: the calling process's own memory, of which nothing is used that is there.
        unsafe { libc::process_vm_writev(libc::getpid(), &from, 1, &to, 1, 0) == 8 }
    }

    #[test]
    fn addresses_that_a_peer_knows_are_given_to_no_other_memory() {
        let memory = pages(1 << 16).unwrap();
        let at = memory.address(0);
        // SAFETY: a word of the region.
        unsafe { at.cast::<u64>().write(5) };
        drop(memory);
        // SAFETY: the addresses stay mapped.
        assert_eq!(unsafe { at.cast::<u64>().read() }, 0, "the page is with the system");
        assert!(takes_a_word(at as usize));
        let other = pages(1 << 16).unwrap();
        assert!(other.address(0).addr().abs_diff(at.addr()) >= 1 << 16);
    }
}
