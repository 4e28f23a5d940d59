//! The lanes of all communicators, and their progress: Open MPI calls a function of this library's from each
//! call of it that waits or tests.

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::lane::Lane;
use super::words;
use crate::library::{Library, library, pmpi};

type Callback = extern "C" fn() -> c_int;
type Register = unsafe extern "C" fn(Callback) -> c_int;

static LANES: Mutex<Vec<(u64, Lane)>> = Mutex::new(Vec::new());
/// Lanes whose communicator the program has freed.
static FREED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// Whether a lane has something under way.
static IS_BUSY: AtomicBool = AtomicBool::new(false);
/// Whether Open MPI calls.
static IS_CALLED: AtomicBool = AtomicBool::new(false);

/// A lane: it is gone when this is, and all that was under way has ended.
#[derive(Debug)]
pub(in crate::collective) struct Id(u64);

fn function(library: &Library, name: &core::ffi::CStr) -> Option<Register> {
    let at = library.address(name);
    // SAFETY: opal_progress_register and its counterpart, of Open MPI 2 to 5, take a function and answer an
    // int.
    (at != 0).then(|| unsafe { core::mem::transmute::<usize, Register>(at) })
}

/// Whether Open MPI has such calls.
pub(in crate::collective) fn is_possible(library: &Library) -> bool {
    let names = [c"opal_progress_register", c"opal_progress_unregister"];
    names.iter().all(|name| library.address(name) != 0) && library.address(c"PMPI_Grequest_start") != 0
}

fn lanes() -> MutexGuard<'static, Vec<(u64, Lane)>> {
    LANES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One more lane.
pub(super) fn add(lane: Lane) -> Id {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = NEXT.fetch_add(1, Relaxed);
    lanes().push((id, lane));
    Id(id)
}

impl Id {
    /// Does something with the lane. What is under way after it goes on in calls of the MPI's.
    pub(super) fn with<T>(&self, library: &Library, does: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        let done = self.with_locked(library, does);
        words::free_ended();
        done
    }

    fn with_locked<T>(&self, library: &Library, does: impl FnOnce(&mut Lane) -> T) -> Option<T> {
        let mut lanes = lanes();
        let (_, lane) = lanes.iter_mut().find(|(id, _)| *id == self.0)?;
        let done = does(lane);
        if !lane.is_idle() {
            IS_BUSY.store(true, Relaxed);
            if !IS_CALLED.swap(true, Relaxed) {
                if let Some(register) = function(library, c"opal_progress_register") {
                    // SAFETY: a function that stays; MPI_Finalize takes it back.
                    unsafe { register(progress) };
                }
            }
        }
        Some(done)
    }
}

impl Drop for Id {
    /// Called by Open MPI with the lock of its attributes, which a thread with `LANES` may wait for.
    fn drop(&mut self) {
        let mut freed = freed();
        freed.push(self.0);
        IS_BUSY.store(true, Relaxed);
        drop(freed);
        let taken = LANES.try_lock().map(|mut lanes| take_freed(&mut lanes));
        drop(taken);
    }
}

fn freed() -> MutexGuard<'static, Vec<u64>> {
    FREED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lanes of freed communicators that have nothing under way.
fn take_freed(lanes: &mut Vec<(u64, Lane)>) -> Vec<(u64, Lane)> {
    let (mut freed, mut taken, mut at) = (freed(), Vec::new(), 0);
    while let Some((id, lane)) = lanes.get(at) {
        match freed.iter().position(|one| one == id).filter(|_| lane.is_idle()) {
            Some(of) => {
                freed.swap_remove(of);
                taken.push(lanes.swap_remove(at));
            }
            None => at += 1,
        }
    }
    taken
}

/// Whether there is more to do: something is under way, or a communicator was freed since [`take_freed`].
fn set_busy(lanes: &[(u64, Lane)]) {
    // With the lock, so that what is freed later is seen.
    let freed = freed();
    IS_BUSY.store(!freed.is_empty() || lanes.iter().any(|(_, lane)| !lane.is_idle()), Relaxed);
}

/// Called by Open MPI, in any call of it: by this library's, too, and in several threads at once.
extern "C" fn progress() -> c_int {
    if !IS_BUSY.load(Relaxed) {
        return 0;
    }
    let mut events = 0;
    let _ = c_abi::caught(|| {
        let mut lanes = match LANES.try_lock() {
            Ok(lanes) => lanes,
            Err(TryLockError::Poisoned(lanes)) => lanes.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(library) = library() else { return };
        for (_, lane) in lanes.iter_mut().filter(|(_, lane)| !lane.is_idle()) {
            // SAFETY: MPI-4.1, 6.12: buffers are not accessed until the request completes. That the transport
            // takes device memory was seen before the lane was made.
            events += c_int::from(unsafe { lane.poll(library) });
        }
        let taken = take_freed(&mut lanes);
        set_busy(&lanes);
        // The MPI may call functions of the program's.
        drop(lanes);
        drop(taken);
        words::free_ended();
    });
    events
}

/// MPI_Finalize has begun: waits until nothing is under way. What waits for a rank that calls no more
/// collectives ends with an error.
///
/// # Safety
/// The MPI is there.
pub(in crate::collective) unsafe fn drain(library: &Library) {
    lanes().iter_mut().for_each(|(_, lane)| lane.leave());
    while lanes().iter().any(|(_, lane)| !lane.is_idle()) {
        let (world, mut flag): (_, c_int) = (library.abi.handles.world, 0);
        // SAFETY: valid places; what is found stays.
        let _ = unsafe { pmpi!("Iprobe", 0, 0, world, &raw mut flag, library.abi.status_ignore) };
        std::thread::yield_now();
    }
}

/// Nothing is called any more.
pub(in crate::collective) fn finish(library: &Library) {
    if IS_CALLED.swap(false, Relaxed) {
        if let Some(unregister) = function(library, c"opal_progress_unregister") {
            // SAFETY: the function was registered.
            unsafe { unregister(progress) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_communicator_that_is_freed_while_all_is_polled_is_seen_by_the_next_poll() {
        let mut lanes = lanes();
        assert!(take_freed(&mut lanes).is_empty());
        std::thread::spawn(|| drop(Id(u64::MAX))).join().unwrap();
        set_busy(&lanes);
        assert!(IS_BUSY.load(Relaxed));
        freed().clear();
        set_busy(&lanes);
        assert!(!IS_BUSY.load(Relaxed));
    }
}
