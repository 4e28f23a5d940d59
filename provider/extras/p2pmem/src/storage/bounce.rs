//! Host memory between a file and a device's memory. Several workers each have a buffer: while one of them
//! waits for the disk another one copies.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use hmem::Kind;
use hmem::locked::{self, Pool};

/// Bytes of a buffer.
pub(super) const CHUNK: usize = 4 << 20;
/// Buffers that are kept, and workers of a transfer.
pub(super) const WORKERS: usize = 4;
/// What buffers begin at a multiple of: no disk's block is longer.
const ALIGN: usize = 1 << 16;

/// A buffer, page-locked for the devices of a kind.
pub(super) struct Buffer(locked::Buffer);

impl Buffer {
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes were allocated and zeroed, which this owns; nothing gives the memory of one
        // up that was handed out. The devices' copies that its owner had started are over.
        unsafe { std::slice::from_raw_parts_mut(self.0.at(), CHUNK) }
    }

    /// Where it is, for a device that copies by itself.
    pub fn address(&self) -> usize {
        self.0.at().expose_provenance()
    }
}

/// Buffers that are not in use. Page-locked ones are apart from the others: to lock and unlock calls a
/// device's runtime, and a thread that a stream waits for may not. Such a thread takes and gives those of
/// [`Kind::System`] alone.
#[derive(Debug)]
pub(super) struct Buffers {
    locked: Pool,
    plain: Pool,
}

impl Default for Buffers {
    fn default() -> Buffers {
        let pool = || Pool::without_bound(WORKERS, CHUNK, ALIGN);
        Buffers { locked: pool(), plain: pool() }
    }
}

/// Those of all open files, and the process that they are of.
static ALL: Mutex<(u32, Weak<Buffers>)> = Mutex::new((0, Weak::new()));

impl Buffers {
    /// Those that all open files of this process share: to page-lock memory takes as long as to read some of
    /// it, and a hundred files would hold a hundred times as much. They go with the last of the files.
    pub fn of_all() -> Arc<Buffers> {
        // A forked child has its own: what its parent's threads had taken does not come back there, and the
        // lock may be one of theirs.
        let process = std::process::id();
        let Ok(mut all) = ALL.try_lock() else { return Arc::default() };
        if let Some(buffers) = all.1.upgrade().filter(|_| all.0 == process) {
            return buffers;
        }
        let buffers = Arc::<Buffers>::default();
        *all = (process, Arc::downgrade(&buffers));
        buffers
    }

    /// One, for copies from and to memory of that kind. It goes back when it is dropped.
    pub fn take(&self, kind: Kind) -> Option<Buffer> {
        // The CPU copies from and to any host memory, and locks belong to no thread that may not call their
        // runtime.
        if kind == Kind::System {
            return self.plain.take().ok().map(Buffer);
        }
        let mut buffer = self.locked.take().ok()?;
        buffer.lock_for(hmem::registry::of(kind));
        Some(Buffer(buffer))
    }
}

/// Which stream: its handle, its context, and the thread if the handle means another one in each.
pub(super) type Key = (usize, usize, Option<ThreadId>);

/// Buffers that what is queued on one stream uses one after the other. They are page-locked: a device copies
/// when it comes to that.
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
            let buffer = from.take(Kind::Cuda)?;
            if !buffer.0.is_locked() {
                // The next request tries with new memory.
                buffer.0.give_up();
                return None;
            }
            all.push(buffer);
        }
        Some(all.iter().take(n).map(Buffer::address).collect())
    }
}

/// Those of a file's streams.
#[derive(Debug, Default)]
pub(super) struct Sets(Mutex<Vec<(Key, Weak<Set>)>>);

/// Nothing else is queued while this is held: what one request queues on a stream is not mixed with
/// another's.
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

    /// A thread that a stream waits for copies windows through such buffers, and the stream would wait for
    /// ever if that called the driver: it neither takes nor displaces one that is page-locked.
    #[test]
    fn what_is_taken_for_host_memory_is_not_page_locked() {
        Driver::start();
        hmem::registry::find_runtimes();
        let all = Buffers::default();
        let take = |kind| (0..WORKERS + 2).map(|_| all.take(kind).unwrap()).collect::<Vec<_>>();
        let free = || (all.locked.free(), all.plain.free());
        drop(take(Kind::Cuda));
        assert_eq!(free(), (WORKERS, 0));
        let buffers = take(Kind::System);
        assert!(!buffers.iter().any(|buffer| buffer.0.is_locked()));
        assert_eq!(free(), (WORKERS, 0));
        drop(buffers);
        assert_eq!(free(), (WORKERS, WORKERS));
        assert!(take(Kind::Cuda).iter().all(|buffer| buffer.0.is_locked()));
    }

    /// Buffers for devices are page-locked although the context of the lock is gone.
    #[test]
    fn buffers_for_devices_are_page_locked_after_the_context_is_gone() {
        let cu = Driver::start();
        hmem::registry::find_runtimes();
        let all = Buffers::default();
        let ctx = cu.make_context(0);
        drop(all.take(Kind::Cuda).unwrap());
        cu.end_context(ctx);
        cu.enter(0);
        let buffer = all.take(Kind::Cuda).unwrap();
        assert!(hmem::registry::of(Kind::Cuda).is_host_locked(buffer.address()));
    }
}
