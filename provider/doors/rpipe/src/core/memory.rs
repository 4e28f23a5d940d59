//! Memory that a peer may write at any time: bytes are copied in and out, words are atomics, and nothing is
//! borrowed.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::Error;

/// What private memory begins on a multiple of, as memory that is mapped does: the most that a block may ask
/// for.
pub(crate) const PRIVATE_ALIGN: usize = 4096;

/// A range of memory that another process, or an adapter, may read and write too.
#[derive(Clone)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    /// What the range stays mapped with.
    _keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the range belongs to the process, not to a thread; `_keep` may be dropped by any thread.
unsafe impl Send for Memory {}
// SAFETY: a shared reference copies bytes, and gives atomics and addresses; racing bytes are the contract
// (`copy_in`).
unsafe impl Sync for Memory {}

/// Eight words, which another process may write at any time.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Line(pub(crate) [AtomicU64; 8]);

impl Memory {
    /// A range that starts on a boundary of 64 bytes.
    ///
    /// # Safety
    /// `base` is aligned to 64, and `len` bytes from there are readable and writable as long as `keep` lives,
    /// and no Rust reference to any of them exists.
    pub unsafe fn new(base: NonNull<u8>, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Memory {
        debug_assert!(base.as_ptr().addr() % 64 == 0);
        let _ = base.as_ptr().expose_provenance();
        Memory { base, len, _keep: keep }
    }

    /// Zeros that no other process sees, on a multiple of the most that a block may ask for; pages that are
    /// not touched take no memory.
    pub(crate) fn private(len: usize) -> Result<Memory, Error> {
        struct Owned(NonNull<u8>, Layout);
        // SAFETY: it owns its memory, and gives no access to it.
        unsafe impl Send for Owned {}
        // SAFETY: it gives no access to its memory.
        unsafe impl Sync for Owned {}
        impl Drop for Owned {
            fn drop(&mut self) {
                // SAFETY: allocated below with this layout.
                unsafe { dealloc(self.0.as_ptr(), self.1) };
            }
        }
        let none = || Error::Exhausted(format!("no memory for {len} bytes of a heap; make heaps smaller"));
        // Zeros of a longer alignment than malloc's are stored one by one, which touches all pages: so it is
        // longer instead.
        let with_room = len.max(64).checked_add(PRIVATE_ALIGN).ok_or_else(none)?;
        let layout = Layout::from_size_align(with_room, 8).map_err(|_| none())?;
        // SAFETY: the layout is not empty.
        let all = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(none)?;
        let owned = Owned(all, layout);
        let before = all.as_ptr().addr().wrapping_neg() % PRIVATE_ALIGN;
        // SAFETY: less than `PRIVATE_ALIGN` bytes, which there are beside `len`.
        let base = unsafe { all.add(before) };
        // SAFETY: aligned, as long as required, and there until `Owned` goes; there is no reference to it.
        Ok(unsafe { Memory::new(base, len, Arc::new(owned)) })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The address of byte `at`, for a program, or for an adapter.
    ///
    /// # Panics
    /// If `at` is behind the end.
    #[inline]
    pub fn address(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len, "outside of the memory");
        self.base.as_ptr().wrapping_add(at)
    }

    /// The word at byte `at`.
    ///
    /// # Panics
    /// If it is not inside, or `at` is not a multiple of 8.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at % 8 == 0 && at < self.len && self.len - at >= 8, "no word of the memory");
        // SAFETY: inside and aligned (asserted; the base is aligned to 64), and mapped as long as `self`. An
        // `AtomicU64` may be changed by others at any time, and every value is one.
        unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() }
    }

    /// The word at byte `at`; `None`: it is not inside, or `at` is not a multiple of 8.
    #[inline]
    pub(crate) fn word_within(&self, at: usize) -> Option<&AtomicU64> {
        let is_inside = at % 8 == 0 && at < self.len && self.len - at >= 8;
        is_inside.then(|| self.word(at))
    }

    /// The word of 4 bytes at byte `at`; `None`: it is not inside, or `at` is not a multiple of 4.
    #[inline]
    pub(crate) fn half_within(&self, at: usize) -> Option<&AtomicU32> {
        let is_inside = at % 4 == 0 && at < self.len && self.len - at >= 4;
        // SAFETY: as in `word`, for half of one.
        is_inside.then(|| unsafe { self.base.add(at).cast::<AtomicU32>().as_ref() })
    }

    /// The line of 64 bytes at byte `at`; `None`: it is not inside, or `at` is not a multiple of 64.
    #[inline(always)]
    pub(crate) fn line(&self, at: usize) -> Option<&Line> {
        if at % 64 != 0 || at >= self.len || self.len - at < 64 {
            return None;
        }
        // SAFETY: as in `word`, for eight of them.
        Some(unsafe { self.base.add(at).cast::<Line>().as_ref() })
    }

    /// The address of byte `at`; `None`: it is behind the end.
    #[inline(always)]
    pub(crate) fn place(&self, at: usize) -> Option<*mut u8> {
        (at <= self.len).then(|| self.base.as_ptr().wrapping_add(at))
    }

    /// Copies bytes in. A peer that changes them at the same time gets a mixture, and so it deserves.
    ///
    /// # Panics
    /// If they are not inside.
    #[inline]
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "outside of the memory");
        // SAFETY: inside (asserted) and mapped; `bytes` is a borrow of other memory (the promise of `new`). A
        // process that races with this copy is outside of this program; a thread of this one is kept away by
        // the pipe's lock.
        unsafe { self.base.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes out: what a peer does afterwards does not change them.
    ///
    /// # Panics
    /// If they are not inside.
    #[inline]
    pub fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "outside of the memory");
        // SAFETY: as in `copy_in`.
        unsafe { self.base.as_ptr().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }
}

impl Memory {
    /// Copies bytes to other memory; whole words, where both places and the length are multiples of 8, are
    /// stored one by one, each at once.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn copy_to(&self, at: usize, to: &Memory, to_at: usize, len: usize) {
        assert!(at <= self.len && len <= self.len - at, "outside of the memory");
        assert!(to_at <= to.len && len <= to.len - to_at, "outside of the memory");
        if (at | to_at | len) % 8 == 0 && len <= 64 {
            for off in (0..len).step_by(8) {
                to.word(to_at + off).store(self.word(at + off).load(Relaxed), Relaxed);
            }
            return;
        }
        // SAFETY: both are inside (asserted) and mapped, and `copy_to` takes ranges that overlap; as for
        // races see `copy_in`.
        unsafe { self.base.as_ptr().add(at).copy_to(to.base.as_ptr().add(to_at), len) };
    }
}

/// What all bytes zero are a value of.
///
/// # Safety
/// They are.
pub(crate) unsafe trait Zeros {}

// SAFETY: numbers.
unsafe impl Zeros for u64 {}
// SAFETY: numbers.
unsafe impl Zeros for u32 {}
// SAFETY: numbers.
unsafe impl Zeros for [u32; 3] {}

/// So many of them, all zero. Pages that are not touched take no memory.
pub(crate) fn zeroed<T: Zeros>(n: usize) -> Result<Box<[T]>, Error> {
    let none =
        || Error::Exhausted(format!("no memory for the book of a heap, {n} entries; make heaps smaller"));
    let layout = Layout::array::<T>(n).map_err(|_| none())?;
    if layout.size() == 0 {
        return Ok(Box::default());
    }
    // SAFETY: the layout is not empty.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<T>()).ok_or_else(none)?;
    // SAFETY: allocated as a box of a slice of so many is, and all of them are values (`Zeros`).
    Ok(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(base.as_ptr(), n)) })
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Bytes of this process that are in memory.
    fn resident() -> usize {
        let line = std::fs::read_to_string("/proc/self/statm").unwrap();
        line.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    #[cfg_attr(tsan, ignore = "ThreadSanitizer's calloc(3) touches all pages")]
    fn private_memory_begins_where_blocks_of_every_alignment_may_and_takes_pages_once_they_are_touched() {
        for len in [0, 8, 4095, 4096, 1 << 20] {
            let memory = Memory::private(len).unwrap();
            assert_eq!((memory.address(0).addr() % PRIVATE_ALIGN, memory.len()), (0, len));
            (0..len / 8).for_each(|n| assert_eq!(memory.word(8 * n).load(Relaxed), 0));
        }
        // Other tests run meanwhile, which take less.
        let before = resident();
        let long = Memory::private(1 << 30).unwrap();
        long.word((1 << 30) - 8).store(1, Relaxed);
        assert!(resident() < before + (1 << 29), "all pages were touched");
        assert!(matches!(Memory::private(usize::MAX), Err(Error::Exhausted(_))));
    }

    #[test]
    fn a_book_that_no_memory_is_left_for_is_an_error() {
        let none = zeroed::<[u32; 3]>(1 << 45).unwrap_err();
        assert!(matches!(&none, Error::Exhausted(why) if why.contains("make heaps smaller")), "{none:?}");
        assert!(zeroed::<u64>(usize::MAX).is_err());
        assert_eq!((zeroed::<u64>(0).unwrap().len(), &*zeroed::<u64>(2).unwrap()), (0, &[0, 0][..]));
    }
}
