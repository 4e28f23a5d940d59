//! Memory of a descriptor, mapped.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Shared memory, unmapped on drop. Other processes may change it at any time.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this owns it.
unsafe impl Send for Mapping {}
// SAFETY: all that a shared reference gives is an address and atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, to be read and written; at the address `at` if that is given,
    /// where nothing may be mapped yet, else where the kernel likes.
    pub fn new(fd: impl AsFd, len: usize, at: Option<usize>) -> io::Result<Mapping> {
        let fixed = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
        // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
        unsafe { map(fd, 0, len, at, WRITABLE, fixed) }
    }

    /// Maps `len` bytes of a file from byte `from` on, a multiple of the page size, to be read and written.
    pub fn part(fd: impl AsFd, from: u64, len: usize) -> io::Result<Mapping> {
        // SAFETY: where the kernel likes, it replaces no mapping.
        unsafe { map(fd, from, len, None, WRITABLE, 0) }
    }

    /// Maps the first `len` bytes of a file, to be read: of words only loads are allowed.
    pub fn read_only(fd: impl AsFd, len: usize) -> io::Result<Mapping> {
        // SAFETY: where the kernel likes, it replaces no mapping.
        unsafe { map(fd, 0, len, None, libc::PROT_READ, 0) }
    }

    /// As [`Mapping::new`] at the address `at`, in place of what is mapped there.
    ///
    /// # Safety
    /// `at..at+len` must be the caller's memory, or unmapped, and no longer in use.
    pub unsafe fn over(fd: impl AsFd, len: usize, at: usize) -> io::Result<Mapping> {
        // SAFETY: the caller's promise.
        unsafe { map(fd, 0, len, Some(at), WRITABLE, libc::MAP_FIXED) }
    }

    /// Where it is here.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The word at byte `at`, which is inside and aligned to 4. Where only reading is allowed, so are
    /// only loads.
    ///
    /// # Safety
    /// `at + 4` is no more than [`Mapping::len`], and `at` is a multiple of 4.
    #[inline]
    pub unsafe fn word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at + 4 <= self.len && at % 4 == 0);
        // SAFETY: 1. the place is inside the mapping and aligned to 4 (the caller's promise; a mapping starts
        // on a page), and the mapping lives as long as `self`. 2. An `AtomicU32` may be changed by others at
        // any time, also from another process, and every value is one.
        unsafe { self.base.add(at).cast::<AtomicU32>().as_ref() }
    }

    /// The word of 64 bits at byte `at`; else as [`Mapping::word`].
    ///
    /// # Safety
    /// `at + 8` is no more than [`Mapping::len`], and `at` is a multiple of 8.
    #[inline]
    pub unsafe fn wide(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= self.len && at % 8 == 0);
        // SAFETY: as in `word`: inside the mapping, aligned, and any value is one.
        unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// Gives the memory of the whole pages in `bytes` back, but for the page of the byte at `kept`, which is
    /// in there: they read 0 here and wherever else they are mapped. Whether the kernel did that.
    ///
    /// # Safety
    /// Nothing may rely on what they hold, and `bytes` are inside the mapping.
    pub unsafe fn remove(&self, bytes: Range<usize>, kept: usize) -> bool {
        debug_assert!(bytes.end <= self.len && bytes.contains(&kept));
        // SAFETY: `sysconf` touches no memory.
        let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return false };
        let kept = kept - kept % page;
        let parts = [bytes.start..kept, kept + page..bytes.end];
        parts.into_iter().all(|part| {
            let (start, end) = (part.start.next_multiple_of(page), part.end - part.end % page);
            // SAFETY: whole pages of the mapping, with which the caller says that this may be done.
            start >= end
                || unsafe {
                    libc::madvise(self.base.as_ptr().add(start).cast(), end - start, libc::MADV_REMOVE)
                } == 0
        })
    }

    /// Bytes that take memory: for tests.
    pub fn resident(&self) -> io::Result<usize> {
        const PAGE: usize = 4096;
        let mut pages = vec![0u8; self.len.div_ceil(PAGE)];
        // SAFETY: the mapping is whole, and `pages` has a byte for each of its pages.
        crate::cvt(unsafe { libc::mincore(self.base.as_ptr().cast(), self.len, pages.as_mut_ptr()) })?;
        Ok(pages.iter().filter(|p| **p & 1 != 0).count() * PAGE)
    }
}

/// # Safety
/// With MAP_FIXED the memory at `at` must be the caller's, and no longer in use.
unsafe fn map(
    fd: impl AsFd,
    from: u64,
    len: usize,
    at: Option<usize>,
    prot: libc::c_int,
    fixed: libc::c_int,
) -> io::Result<Mapping> {
    let place = std::ptr::without_provenance_mut(at.unwrap_or(0));
    let (fd, flags) = (fd.as_fd().as_raw_fd(), libc::MAP_SHARED | fixed);
    let from = libc::off_t::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a new mapping; what it replaces is the caller's.
    let base = unsafe { libc::mmap(place, len, prot, flags, fd, from) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // Spans over it are made from numbers.
    let _ = base.expose_provenance();
    let mapping = Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len };
    // A kernel before 4.17 takes the address for a hint.
    if at.is_some_and(|at| at != base.addr()) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    Ok(mapping)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole; nothing borrows from it once `self` goes, and users of its
        // address keep `self` as long as they touch it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
