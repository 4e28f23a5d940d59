//! Page-locked host memory, between which and devices' memory devices copy: allocations of one size, used
//! again.
//!
//! Memory is page-locked once, by the runtime whose device copies, when that is first needed. The lock ends
//! with the context that it was made in (cuCtxDestroy, cudaDeviceReset): whether it still stands is asked
//! each time that a buffer is to be copied from or to, and where it does not the buffer is page-locked anew.
//! A lock that was refused may be had later, when others have let go of theirs (RLIMIT_MEMLOCK, a device's
//! memory): it is tried again after some needs, since each refusal is a call of the driver's.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::agent::{self, BOUNCE, Bounce};
use crate::kind::Kind;
use crate::memory::{Memory as Runtime, Pages};

/// What a buffer begins at a multiple of, so that locking it locks nothing else.
const PAGE: usize = 4096;
/// After how many needs in vain it is tried again to lock memory; of one buffer, or of a pool that keeps
/// locked ones alone.
const AGAIN: u32 = 256;

/// Why there is no buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoBuffer {
    /// All are taken.
    Taken,
    /// There is no memory, or none that is page-locked.
    Refused,
}

/// Buffers of one length. They are made when they are first needed, and go with the pool and the last of
/// them.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    len: usize,
    /// What each begins at a multiple of.
    align: usize,
    /// Most that are taken at a time.
    most: usize,
    /// Most that are kept while they are free.
    kept: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<Memory>,
    taken: usize,
    /// Needs since memory was not locked.
    vain: Option<u32>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    /// At most so many buffers of so many bytes.
    pub fn new(most: usize, len: usize) -> Pool {
        Pool(Arc::new(Shared { len, align: PAGE, most, kept: most, state: Mutex::default() }))
    }

    /// Any number of them, each of which begins at a multiple of `align`, a power of two. So many are kept
    /// while they are free.
    pub fn without_bound(kept: usize, len: usize, align: usize) -> Pool {
        let (align, most) = (align.max(PAGE), usize::MAX);
        Pool(Arc::new(Shared { len, align, most, kept, state: Mutex::default() }))
    }

    /// A buffer that may not be page-locked yet ([`Buffer::lock_for`]).
    pub fn take(&self) -> Result<Buffer, NoBuffer> {
        let mut state = self.0.state();
        if state.taken >= self.0.most {
            return Err(NoBuffer::Taken);
        }
        let memory =
            state.free.pop().or_else(|| Memory::new(self.0.len, self.0.align)).ok_or(NoBuffer::Refused)?;
        state.taken += 1;
        Ok(Buffer { memory: Some(memory), pool: self.0.clone() })
    }

    /// A buffer that is page-locked for the devices of a runtime. Where that was refused it is not tried with
    /// each need.
    pub(crate) fn take_locked(&self, runtime: &dyn Runtime) -> Result<Buffer, NoBuffer> {
        let mut state = self.0.state();
        if state.free.is_empty() && state.taken < self.0.most {
            if let Some(needs) = state.vain.as_mut().filter(|needs| **needs < AGAIN) {
                *needs += 1;
                return Err(NoBuffer::Refused);
            }
        }
        drop(state);
        let mut buffer = self.take()?;
        let is_locked = buffer.lock_for(runtime);
        self.0.state().vain = if is_locked { None } else { Some(0) };
        if is_locked {
            return Ok(buffer);
        }
        // A free one is one that was locked.
        buffer.give_up();
        Err(NoBuffer::Refused)
    }

    /// Buffers that are taken.
    pub fn taken(&self) -> usize {
        self.0.state().taken
    }

    /// Buffers that are kept for the next needs.
    pub fn free(&self) -> usize {
        self.0.state().free.len()
    }
}

/// What came of locking memory.
enum Lock {
    Held(#[allow(dead_code, reason = "goes with it")] Pages),
    /// It was refused, so many needs ago.
    Refused(u32),
}

/// The lock of some memory, and for which kind it is page-locked; it ends when this goes. To be kept for the
/// same memory always.
#[derive(Default)]
pub struct PageLock(Option<(Kind, Lock)>);

impl PageLock {
    /// Has this runtime's devices copy from and to the memory without a copy in between, as far as that can
    /// be had; whether they can. A lock that has ended with its context is made anew.
    ///
    /// # Safety
    /// `at..at+len` is mapped, and stays so for as long as this is there.
    pub unsafe fn lock_for(&mut self, runtime: &dyn Runtime, at: usize, len: usize) -> bool {
        let kind = runtime.kind();
        match &mut self.0 {
            Some((of, Lock::Refused(needs))) if *of == kind && *needs < AGAIN => {
                *needs += 1;
                return false;
            }
            Some((of, Lock::Held(_))) if *of == kind && runtime.is_host_locked(at) => return true,
            _ => {}
        }
        // The former goes first: memory is locked once.
        self.0 = None;
        // SAFETY: the caller's promise.
        let pages = unsafe { runtime.lock_host(at, len) };
        let is_locked = pages.is_some();
        self.0 = Some((kind, pages.map_or(Lock::Refused(0), Lock::Held)));
        is_locked
    }

    /// The kind that it is page-locked for, by the last [`PageLock::lock_for`].
    pub fn held_for(&self) -> Option<Kind> {
        self.0.as_ref().filter(|(_, lock)| matches!(lock, Lock::Held(_))).map(|(kind, _)| *kind)
    }
}

impl fmt::Debug for PageLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageLock").field(&self.held_for()).finish()
    }
}

/// An allocation.
struct Memory {
    /// Goes first.
    locked: PageLock,
    at: NonNull<u8>,
    layout: Layout,
    /// Where the agent copies: it is memory of its, and not of the heap's.
    bounce: Option<Bounce>,
}

// SAFETY: it owns the bytes, and is used as any owner of bytes.
unsafe impl Send for Memory {}

impl Memory {
    fn new(len: usize, align: usize) -> Option<Memory> {
        let layout = Layout::from_size_align(len.next_multiple_of(PAGE), align).ok()?;
        let fits = layout.size() <= BOUNCE && align == PAGE;
        let bounce = fits.then(agent::active).flatten().and_then(|agent| agent.bounce());
        if let Some(bounce) = bounce {
            let at = NonNull::new(bounce.at())?;
            return Some(Memory { locked: PageLock::default(), at, layout, bounce: Some(bounce) });
        }
        // SAFETY: the size is not 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Memory { locked: PageLock::default(), at, layout, bounce: None })
    }

    fn lock_for(&mut self, runtime: &dyn Runtime) -> bool {
        if self.bounce.is_some() {
            return true;
        }
        // SAFETY: this allocation, which is freed after what is remembered of it here.
        unsafe { self.locked.lock_for(runtime, self.at.as_ptr().expose_provenance(), self.layout.size()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.locked = PageLock::default();
        if self.bounce.is_some() {
            return;
        }
        // SAFETY: allocated so, and used by nothing any more: not locked, and no flight is without its
        // buffer.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("at", &self.at).field("size", &self.layout.size()).finish()
    }
}

/// Host memory of a pool's, which goes back to it.
#[derive(Debug)]
pub struct Buffer {
    /// There until it is dropped, or given up ([`Buffer::give_up`]).
    memory: Option<Memory>,
    pool: Arc<Shared>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut memory = self.memory.take();
        {
            let mut state = self.pool.state();
            state.taken -= 1;
            if state.free.len() < self.pool.kept {
                state.free.extend(memory.take());
            }
        }
        // What is not kept goes without the pool's lock: to unlock it calls the runtime, and other threads
        // wait for the pool.
        drop(memory);
    }
}

impl Buffer {
    /// Its first byte; the pool says how many there are, which are zeroed when they are made. Devices and the
    /// agent access them only in flights that the buffer's owner has started.
    pub fn at(&self) -> *mut u8 {
        self.memory.as_ref().map_or(std::ptr::null_mut(), |memory| memory.at.as_ptr())
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.pool.len
    }

    /// Has this runtime's devices copy from and to here without a copy in between, as far as that can be had;
    /// whether it can.
    pub fn lock_for(&mut self, runtime: &dyn Runtime) -> bool {
        self.memory.as_mut().is_some_and(|memory| memory.lock_for(runtime))
    }

    /// Whether it is page-locked, by the last [`Buffer::lock_for`].
    pub fn is_locked(&self) -> bool {
        self.memory.as_ref().is_some_and(|m| m.bounce.is_some() || m.locked.held_for().is_some())
    }

    /// Frees its memory, which does not go back to the pool.
    pub fn give_up(mut self) {
        let memory = self.memory.take();
        // Counted as not taken before the runtime is called.
        drop(self);
        drop(memory);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::error::Error;
    use crate::memory::{Allocate, Copies, Handles};

    /// Page-locks host memory once it has been asked so often.
    #[derive(Default)]
    struct Reluctant {
        refuses: usize,
        asked: AtomicUsize,
    }

    impl Runtime for Reluctant {
        fn kind(&self) -> Kind {
            Kind::Cuda
        }
        fn find(&self) -> bool {
            true
        }
        fn describe(&self) -> Result<String, String> {
            Ok(String::new())
        }
        fn acquire(&self, _: usize, _: usize) -> bool {
            false
        }
    }

    impl Handles for Reluctant {}
    impl Allocate for Reluctant {}

    impl Copies for Reluctant {
        fn copy_now(&self, _: usize, _: usize, _: usize) -> Result<(), Error> {
            Err(Error::UNSUPPORTED)
        }
        unsafe fn lock_host(&self, _: usize, _: usize) -> Option<Pages> {
            (self.asked.fetch_add(1, Relaxed) >= self.refuses).then(|| -> Pages { Box::new(()) })
        }
    }

    #[test]
    fn a_pool_without_bound_keeps_some_and_aligns_all() {
        let pool = Pool::without_bound(2, 10, 1 << 16);
        let all: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert!(all.iter().all(|buffer| buffer.at().addr() % (1 << 16) == 0));
        assert_eq!((pool.taken(), pool.free()), (3, 0));
        drop(all);
        assert_eq!((pool.taken(), pool.free()), (0, 2));
    }

    #[test]
    fn memory_that_was_not_locked_is_asked_for_anew_once_it_was_given_up() {
        let (pool, runtime) = (Pool::new(1, 10), Reluctant { refuses: 1, ..Reluctant::default() });
        let mut buffer = pool.take().unwrap();
        assert!(!buffer.lock_for(&runtime) && !buffer.is_locked());
        buffer.give_up();
        assert_eq!((pool.taken(), pool.free()), (0, 0));
        let mut buffer = pool.take().unwrap();
        assert!(buffer.lock_for(&runtime) && buffer.is_locked());
    }

    #[test]
    fn a_lock_that_was_refused_is_tried_again_after_a_while_and_then_kept() {
        let runtime = Reluctant { refuses: 2, ..Reluctant::default() };
        let pool = Pool::new(1, PAGE);
        let mut needs = Vec::new();
        // The buffer is the same one each time.
        for need in 0..3 * AGAIN {
            if pool.take().unwrap().lock_for(&runtime) {
                needs.push(need);
            }
        }
        // One in so many needs asks, and none once it is locked.
        let first = 2 * (AGAIN + 1);
        assert_eq!((needs.first(), needs.len() as u32), (Some(&first), 3 * AGAIN - first));
        assert_eq!(runtime.asked.load(Relaxed), 3);
    }

    #[test]
    fn a_pool_of_locked_buffers_asks_as_seldom() {
        let runtime = Reluctant { refuses: 2, ..Reluctant::default() };
        let pool = Pool::new(1, PAGE);
        let locked = (0..3 * AGAIN).filter(|_| pool.take_locked(&runtime).is_ok()).count() as u32;
        assert_eq!((locked, runtime.asked.load(Relaxed)), (3 * AGAIN - 2 * (AGAIN + 1), 3));
    }
}
