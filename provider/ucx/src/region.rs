//! What memory of this process its peers may name, and how that is taken back.
//!
//! A peer reaches registered memory by itself: through a mapping, or with CMA, which no kernel lets
//! us revoke for one address. So for memory that may be invalidated (UCP asks for that when its
//! peers may fail) the key names a slot on the *board*, a window all peers map: a generation and how
//! many accesses are under way. Whoever accesses counts itself in, looks at the generation, and
//! leaves the memory alone if it is another one. To invalidate is to change the generation and wait
//! until nobody is in.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use link::{Mapping, WindowId, Windows};

/// Bytes of the board, and of a slot on it.
const BOARD: usize = 64 << 10;
const SLOT: usize = 16;

/// Longest wait for accesses under way: somebody who died in one stays counted.
const PATIENCE: Duration = Duration::from_secs(1);

/// A registration's place on a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) board: u32,
    pub(crate) index: u32,
    pub(crate) generation: u64,
}

/// The words of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    generation: &'a AtomicU64,
    inside: &'a AtomicU64,
}

/// The words of this slot, if the board has it.
pub(crate) fn words(board: &Mapping, index: u32) -> Option<Words<'_>> {
    let at = index as usize * SLOT;
    if at + SLOT > board.len() {
        return None;
    }
    // SAFETY: inside the mapping, which is page aligned; peers may change the words at any time,
    // which is what atomics are for.
    unsafe {
        let word = board.base().add(at).cast::<AtomicU64>();
        Some(Words { generation: &*word, inside: &*word.add(1) })
    }
}

impl Words<'_> {
    /// Whether memory of this generation may be accessed, until `leave`.
    pub(crate) fn enter(self, generation: u64) -> bool {
        self.inside.fetch_add(1, SeqCst);
        let valid = self.generation.load(SeqCst) == generation;
        if !valid {
            self.leave();
        }
        valid
    }

    pub(crate) fn leave(self) {
        self.inside.fetch_sub(1, SeqCst);
    }

    /// Ends a generation, and waits until nobody is in; whether that came to pass.
    fn end(self, generation: u64) -> bool {
        self.generation.store(generation + 1, SeqCst);
        let begin = Instant::now();
        let mut turns = 0u32;
        while self.inside.load(SeqCst) != 0 {
            if begin.elapsed() > PATIENCE {
                return false;
            }
            turns += 1;
            if turns > 100 {
                std::thread::yield_now();
            }
        }
        true
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// Registered memory by address and a number; its length.
    regions: BTreeMap<(usize, u64), usize>,
    next: u64,
    board: Option<(WindowId, Arc<Mapping>)>,
    used: u32,
    free: Vec<(u32, u64)>,
}

/// What a process has registered.
#[derive(Debug)]
pub(crate) struct Regions {
    pid: u32,
    pub(crate) windows: Arc<Windows>,
    inner: Mutex<Inner>,
}

/// Those of this process; a forked child starts anew.
pub(crate) fn regions() -> io::Result<Arc<Regions>> {
    static ALL: Mutex<Option<Arc<Regions>>> = Mutex::new(None);
    let mut all = ALL.lock().unwrap_or_else(|e| e.into_inner());
    let pid = std::process::id();
    match &*all {
        Some(r) if r.pid == pid => Ok(Arc::clone(r)),
        _ => {
            let r = Arc::new(Regions { pid, windows: Arc::new(Windows::new()?), inner: Mutex::default() });
            *all = Some(Arc::clone(&r));
            Ok(r)
        }
    }
}

impl Regions {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Registers memory; the answer is what `remove` wants.
    pub(crate) fn add(&self, addr: usize, len: usize) -> u64 {
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        inner.regions.insert((addr, number), len);
        number
    }

    pub(crate) fn remove(&self, addr: usize, number: u64) {
        self.lock().regions.remove(&(addr, number));
    }

    /// Whether all of this memory is registered, in one piece.
    pub(crate) fn contains(&self, addr: usize, len: usize) -> bool {
        let Some(end) = addr.checked_add(len) else { return false };
        let inner = self.lock();
        inner.regions.range(..=(addr, u64::MAX)).rev().any(|((at, _), n)| end <= at.saturating_add(*n))
    }

    /// A slot on our board, making that if need be.
    pub(crate) fn protect(&self) -> Option<Slot> {
        let mut inner = self.lock();
        if inner.board.is_none() {
            inner.board = self.windows.create(BOARD, None).ok();
        }
        let (id, _) = inner.board.as_ref()?;
        let board = u32::try_from(id.number).ok()?;
        if let Some((index, generation)) = inner.free.pop() {
            return Some(Slot { board, index, generation });
        }
        let index = inner.used;
        if (index as usize + 1) * SLOT > BOARD {
            return None;
        }
        inner.used += 1;
        Some(Slot { board, index, generation: 0 })
    }

    /// Takes memory back that has this slot.
    pub(crate) fn invalidate(&self, slot: Slot) {
        let Some((_, board)) = self.lock().board.clone() else { return };
        let Some(words) = words(&board, slot.index) else { return };
        if words.end(slot.generation) {
            self.lock().free.push((slot.index, slot.generation + 1));
        } else {
            // The slot stays out of use, or its next user would wait as well.
            log::warn!("an access to invalidated memory did not end within {PATIENCE:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered() {
        let r = Regions { pid: 0, windows: Arc::new(Windows::new().unwrap()), inner: Mutex::default() };
        let big = r.add(1000, 1000);
        let small = r.add(1100, 10);
        assert!(r.contains(1105, 5) && r.contains(1105, 500) && r.contains(1000, 1000));
        assert!(!r.contains(999, 2) && !r.contains(1999, 2) && !r.contains(usize::MAX, 1));
        r.remove(1000, big);
        assert!(!r.contains(1000, 1) && r.contains(1100, 10) && !r.contains(1105, 6));
        r.remove(1100, small);
        assert!(!r.contains(1100, 1));
    }

    #[test]
    fn invalidated_memory_is_left_alone() {
        let r = Regions { pid: 0, windows: Arc::new(Windows::new().unwrap()), inner: Mutex::default() };
        let slot = r.protect().unwrap();
        let board = r.lock().board.clone().unwrap().1;
        let w = words(&board, slot.index).unwrap();
        assert!(w.enter(slot.generation));
        w.leave();
        r.invalidate(slot);
        assert!(!w.enter(slot.generation));
        // The next user of the slot has another generation.
        let next = r.protect().unwrap();
        assert_eq!((next.index, next.generation), (slot.index, slot.generation + 1));
        assert!(w.enter(next.generation));
        // Somebody is inside: the wait ends all the same, and the slot is not used again.
        r.invalidate(next);
        assert_ne!(r.protect().unwrap().index, slot.index);
        assert!(words(&board, u32::MAX).is_none());
    }
}
