//! Host memory between a file and a device's memory. Several workers each have a buffer: while one of them waits for the disk
//! another one copies.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

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

    /// Where it is, for a device that copies by itself.
    pub fn address(&self) -> usize {
        self.at.as_ptr().expose_provenance()
    }

    /// Whether it is page-locked, so that what is queued for the device is not waited for.
    pub fn is_locked(&self) -> bool {
        matches!(self.locked, Some((_, Some(_))))
    }

    fn lock_for(&mut self, kind: Kind) {
        // The CPU copies from and to any host memory, and locks belong to no thread that may not call their runtime.
        if kind == Kind::System {
            return;
        }
        let runtime = hmem::registry::of(kind);
        // A lock ends with the context that it was made in.
        let stands = |pages: &Option<Locked>| pages.is_none() || runtime.is_host_locked(self.address());
        if !self.locked.as_ref().is_some_and(|(of, pages)| *of == kind && stands(pages)) {
            self.locked = None;
            // SAFETY: this allocation, which is freed after what is remembered of it here.
            let pages = unsafe { runtime.lock_host(self.address(), CHUNK) };
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

/// Buffers that are not in use. Page-locked ones are apart from the others: to lock and unlock calls a device's runtime,
/// and a thread that a stream waits for may not. Such a thread takes and gives those of [`Kind::System`] alone.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Free>);

#[derive(Default)]
struct Free {
    locked: Vec<Buffer>,
    plain: Vec<Buffer>,
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Buffers")
    }
}

impl Buffers {
    /// One, for copies from and to memory of that kind.
    pub fn take(&self, kind: Kind) -> Option<Buffer> {
        let free = {
            let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let of = if kind == Kind::System { &mut free.plain } else { &mut free.locked };
            of.pop()
        };
        let mut buffer = free.or_else(Buffer::new)?;
        buffer.lock_for(kind);
        Some(buffer)
    }

    pub fn give(&self, buffer: Buffer) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = if buffer.locked.is_none() { &mut free.plain } else { &mut free.locked };
        if of.len() < WORKERS {
            of.push(buffer);
            return;
        }
        // Not under the lock: others wait for that, and a device's runtime for them.
        drop(free);
        drop(buffer);
    }
}

/// Which stream: its handle, its context, and the thread if the handle means another one in each.
pub(super) type Key = (usize, usize, Option<ThreadId>);

/// Buffers that what is queued on one stream uses one after the other. They are page-locked: a device copies when it comes to that.
#[derive(Default)]
pub(super) struct Set(Mutex<Vec<Buffer>>);

impl std::fmt::Debug for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Set")
    }
}

impl Set {
    /// Where `n` of them are; `None` if no more memory can be page-locked.
    pub fn addresses(&self, n: usize, from: &Buffers) -> Option<Vec<usize>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() < n {
            all.push(from.take(Kind::Cuda).filter(Buffer::is_locked)?);
        }
        Some(all.iter().take(n).map(Buffer::address).collect())
    }

    /// Makes them free, if no other request has them.
    pub fn give(self: Arc<Set>, to: &Buffers) {
        if let Some(set) = Arc::into_inner(self) {
            set.0.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().for_each(|b| to.give(b));
        }
    }
}

/// Those of a file's streams.
#[derive(Debug, Default)]
pub(super) struct Sets(Mutex<Vec<(Key, Weak<Set>)>>);

/// Nothing else is queued while this is held: what one request queues on a stream is not mixed with another's.
#[derive(Debug)]
pub(super) struct Queueing<'a>(MutexGuard<'a, Vec<(Key, Weak<Set>)>>);

impl Sets {
    pub fn queue(&self) -> Queueing<'_> {
        Queueing(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Queueing<'_> {
    /// That of a stream, as long as a request has it.
    pub fn set(&mut self, key: Key) -> Arc<Set> {
        self.0.retain(|(_, set)| set.strong_count() > 0);
        if let Some(set) = self.0.iter().find(|(of, _)| *of == key).and_then(|(_, set)| set.upgrade()) {
            return set;
        }
        let set = Arc::new(Set::default());
        self.0.push((key, Arc::downgrade(&set)));
        set
    }
}

#[cfg(test)]
mod tests {
    use cuda_stand_in::driver::Driver;

    use super::*;

    /// A thread that a stream waits for copies windows through such buffers, and the stream would wait for ever if that
    /// called the driver: it neither takes nor displaces one that is page-locked.
    #[test]
    fn what_is_taken_for_host_memory_is_not_page_locked() {
        Driver::start();
        hmem::registry::look();
        let all = Buffers::default();
        let take = |kind| (0..WORKERS + 2).map(|_| all.take(kind).unwrap()).collect::<Vec<_>>();
        let free = || {
            let free = all.0.lock().unwrap();
            (free.locked.iter().map(Buffer::address).collect::<Vec<_>>(), free.plain.len())
        };
        take(Kind::Cuda).into_iter().for_each(|buffer| all.give(buffer));
        let (locked, plain) = free();
        assert_eq!((locked.len(), plain), (WORKERS, 0));
        let buffers = take(Kind::System);
        assert!(!buffers.iter().any(Buffer::is_locked));
        assert_eq!(free(), (locked.clone(), 0));
        buffers.into_iter().for_each(|buffer| all.give(buffer));
        assert_eq!(free(), (locked, WORKERS));
        assert!(take(Kind::Cuda).iter().all(Buffer::is_locked));
    }

    #[test]
    fn what_is_taken_for_devices_is_page_locked_although_the_context_of_the_lock_is_gone() {
        let cu = Driver::start();
        hmem::registry::look();
        let all = Buffers::default();
        let ctx = cu.make_context(0);
        all.give(all.take(Kind::Cuda).unwrap());
        cu.end_context(ctx);
        cu.enter(0);
        let buffer = all.take(Kind::Cuda).unwrap();
        assert!(hmem::registry::of(Kind::Cuda).is_host_locked(buffer.address()));
    }
}
