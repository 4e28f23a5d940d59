//! What memory of this process its peers may name, and how that is taken back.
//!
//! A peer reaches registered memory by itself: through a mapping, or with CMA. So for memory that may
//! be invalidated (UCP asks for that when its peers may fail) the key names a slot on a board
//! ([`link::RevocationTable`]), and peers announce each access in a reader slot there
//! ([`crate::md::readers`]).

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use link::{RevocationTable, WindowId, Windows};

/// Longest wait for accesses under way where the wait has to end: of stopped processes, say.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks in a wait that lasts longer.
const PAUSE: Duration = Duration::from_millis(1);
/// Between two warnings of it.
const WARN_AGAIN: Duration = Duration::from_secs(30);

/// How long taking memory back waits for accesses of peers that are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until all are over: what the memory is used for next would be overwritten.
    Over,
    /// Not longer than `PATIENCE`.
    Bounded,
}

/// A registration's place on a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) board: u32,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Slot {
    /// A slot, or none, as frames have it.
    pub(crate) fn to_wire(slot: Option<Slot>) -> wire::ucx::Slot {
        let Some(Slot { board, index, generation }) = slot else { return wire::ucx::Slot::default() };
        wire::ucx::Slot { board: board.into(), index: index.into(), generation: generation.into() }
    }

    pub(crate) fn from_wire(slot: wire::ucx::Slot) -> Option<Slot> {
        let wire::ucx::Slot { board, index, generation } = slot;
        let slot = Slot { board: board.get(), index: index.get(), generation: generation.get() };
        (slot.board != 0).then_some(slot)
    }
}

#[derive(Debug, Default)]
struct Inner {
    board: Option<(WindowId, RevocationTable)>,
    used: u32,
    free: Vec<(u32, u32)>,
    /// Slots in use by index, and their generations: peers can write the board, but not this.
    current: HashMap<u32, u32>,
}

/// What a process has registered.
#[derive(Debug)]
pub(crate) struct Regions {
    pid: u32,
    pub(crate) windows: Arc<Windows>,
    inner: Mutex<Inner>,
    memory: RwLock<Memory>,
}

/// Registered memory.
#[derive(Debug, Default)]
struct Memory {
    /// By address and a number; its length.
    regions: BTreeMap<(usize, u64), usize>,
    next: u64,
}

/// The name of a registration, which no later one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region(usize, u64);

impl Memory {
    /// A registration that has all of this memory.
    fn find(&self, addr: usize, len: usize) -> Option<Region> {
        let end = addr.checked_add(len)?;
        let mut before = self.regions.range(..=(addr, u64::MAX)).rev();
        before
            .find(|((at, _), n)| end <= at.saturating_add(**n))
            .map(|((at, number), _)| Region(*at, *number))
    }
}

/// Those of this process; a forked child starts anew.
pub(crate) fn regions() -> io::Result<Arc<Regions>> {
    static ALL: Mutex<Option<Arc<Regions>>> = Mutex::new(None);
    let mut all = ALL.lock().unwrap_or_else(|e| e.into_inner());
    let pid = std::process::id();
    match &*all {
        Some(r) if r.pid == pid => Ok(Arc::clone(r)),
        _ => {
            let r = Arc::new(Regions::new(pid)?);
            *all = Some(Arc::clone(&r));
            Ok(r)
        }
    }
}

impl Regions {
    fn new(pid: u32) -> io::Result<Regions> {
        let windows = Arc::new(Windows::new()?);
        Ok(Regions { pid, windows, inner: Mutex::default(), memory: RwLock::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Registers memory; the answer is what `remove` wants.
    pub(crate) fn add(&self, addr: usize, len: usize) -> u64 {
        let mut memory = self.memory.write().unwrap_or_else(|e| e.into_inner());
        memory.next += 1;
        let number = memory.next;
        memory.regions.insert((addr, number), len);
        number
    }

    /// When this returns, no [`access`](Regions::access) to that registration is under way.
    pub(crate) fn remove(&self, addr: usize, number: u64) {
        let mut memory = self.memory.write().unwrap_or_else(|e| e.into_inner());
        memory.regions.remove(&(addr, number));
    }

    /// Accesses memory for a peer, if all of it is registered in one piece; with `only`, in that
    /// registration. Another thread that deregisters it waits meanwhile: `f` has to be short, and to register
    /// nothing.
    pub(crate) fn access<T>(
        &self,
        addr: usize,
        len: usize,
        only: Option<Region>,
        f: impl FnOnce(Region) -> T,
    ) -> Option<T> {
        let memory = self.memory.read().unwrap_or_else(|e| e.into_inner());
        let region = match only {
            Some(region) => memory.regions.contains_key(&(region.0, region.1)).then_some(region)?,
            None => memory.find(addr, len)?,
        };
        Some(f(region))
    }

    /// A slot on our board, making that if need be.
    pub(crate) fn protect(&self) -> Option<Slot> {
        let mut inner = self.lock();
        if inner.board.is_none() {
            let (id, window) =
                self.windows.create(RevocationTable::SIZE.next_multiple_of(4096), None).ok()?;
            inner.board = RevocationTable::new(window).map(|board| (id, board));
        }
        let (id, _) = inner.board.as_ref()?;
        let board = u32::try_from(id.number).ok()?;
        let (index, generation) = match inner.free.pop() {
            Some(free) => free,
            None if inner.used >= RevocationTable::SLOTS => return None,
            None => {
                inner.used += 1;
                (inner.used - 1, 0)
            }
        };
        inner.current.insert(index, generation);
        Some(Slot { board, index, generation })
    }

    /// Whether memory with this slot has not been taken back.
    pub(crate) fn is_current(&self, slot: Slot) -> bool {
        self.lock().current.get(&slot.index) == Some(&slot.generation)
    }

    /// Takes memory back that has this slot.
    ///
    /// An access is one copy without any wait in it, so that a process which runs leaves it by itself. Since
    /// 1.16 UCP's completion of an invalidation is on its stack, and has to be called before the call
    /// returns: so this cannot be left to progress, and the wait is here. It is bounded where it cannot be
    /// known whether the process still lives, which is of another pid namespace.
    pub(crate) fn invalidate(&self, slot: Slot, wait: Wait) {
        let board = {
            let mut inner = self.lock();
            inner.current.remove(&slot.index);
            inner.board.clone()
        };
        let Some((_, board)) = board else { return };
        if board.end(slot.index, slot.generation, PATIENCE) || wait == Wait::Over && left(&board, slot) {
            self.lock().free.push((slot.index, slot.generation.wrapping_add(1)));
        } else {
            // The slot stays out of use, or its next user would wait as well.
            log::warn!(
                "an access to memory that is deregistered did not end within {PATIENCE:?}: if it goes on later, it \
                 changes what the memory is used for by then"
            );
        }
    }
}

/// Waits until all processes have left a slot, or have ended; `false` if that cannot be known of one.
#[cold]
fn left(board: &RevocationTable, slot: Slot) -> bool {
    let mut warned: Option<Instant> = None;
    while let Some(pid) = board.inside_of(slot.index) {
        if pid == 0 {
            return false;
        }
        if warned.is_none_or(|when| when.elapsed() > WARN_AGAIN) {
            warned = Some(Instant::now());
            log::warn!(
                "memory that is deregistered is still accessed by process {pid}, which is waited for: if it is stopped, \
                 let it go on (SIGCONT), or end it"
            );
        }
        std::thread::sleep(PAUSE);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use crate::md::readers::Readers;

    use super::*;

    #[test]
    fn what_is_registered() {
        let r = Regions::new(0).unwrap();
        let contains = |addr, len| r.access(addr, len, None, |_| ()).is_some();
        let big = r.add(1000, 1000);
        let small = r.add(1100, 10);
        assert!(contains(1105, 5) && contains(1105, 500) && contains(1000, 1000));
        assert!(!contains(999, 2) && !contains(1999, 2) && !contains(usize::MAX, 1));
        let region = r.access(1000, 1, None, |region| region);
        r.remove(1000, big);
        assert!(!contains(1000, 1) && contains(1100, 10) && !contains(1105, 6));
        r.remove(1100, small);
        assert!(!contains(1100, 1));
        // Not for one of the registration before, at the same address.
        r.add(1000, 1000);
        assert!(contains(1000, 1) && r.access(1000, 1, region, |_| ()).is_none());
    }

    #[test]
    fn deregistration_waits_for_accesses_for_peers() {
        let r = Regions::new(0).unwrap();
        let number = r.add(1000, 1000);
        let (inside, over) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                r.access(1000, 1000, None, |_| {
                    inside.wait();
                    std::thread::sleep(Duration::from_millis(100));
                    over.store(true, Relaxed);
                })
                .unwrap();
            });
            inside.wait();
            r.remove(1000, number);
            assert!(over.load(Relaxed), "memory was deregistered while it was accessed");
        });
    }

    #[test]
    fn invalidated_memory_is_left_alone() {
        let r = Regions::new(0).unwrap();
        let slot = r.protect().unwrap();
        let board = r.lock().board.clone().unwrap().0;
        let mut readers = Readers::new();
        let reader = readers.shared(board, &r.windows, ()).unwrap().unwrap();
        assert!(readers.have(&reader) && !Readers::<()>::new().have(&reader));
        assert_eq!(reader.access(slot, || 7), Some(7));
        assert!(r.is_current(slot));
        r.invalidate(slot, Wait::Over);
        assert_eq!(reader.access(slot, || 7), None);
        assert!(!r.is_current(slot));
        // The next user of the slot has another generation.
        let next = r.protect().unwrap();
        assert_eq!((next.index, next.generation), (slot.index, slot.generation + 1));
        assert!(r.is_current(next) && !r.is_current(slot));
        for some in [None, Some(next)] {
            assert_eq!(Slot::from_wire(Slot::to_wire(some)), some);
        }
        // An access is under way: a bounded wait ends all the same, and the slot is not used again.
        reader.access(next, || r.invalidate(next, Wait::Bounded)).unwrap();
        assert_ne!(r.protect().unwrap().index, slot.index);
    }

    #[test]
    fn memory_is_taken_back_when_the_last_access_is_over() {
        let r = Regions::new(0).unwrap();
        let slot = r.protect().unwrap();
        let board = r.lock().board.clone().unwrap().0;
        let mut readers = Readers::new();
        let reader = readers.shared(board, &r.windows, ()).unwrap().unwrap();
        let (inside, over) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                reader
                    .access(slot, || {
                        inside.wait();
                        // Longer than a bounded wait.
                        std::thread::sleep(PATIENCE * 2);
                        over.store(true, Relaxed);
                    })
                    .unwrap();
            });
            inside.wait();
            r.invalidate(slot, Wait::Over);
            assert!(over.load(Relaxed), "memory was given back while it was accessed");
        });
        // The slot is used again.
        assert_eq!(r.protect().unwrap().index, slot.index);
    }
}
