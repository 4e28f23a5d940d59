//! Windows: the mirrors of origin buffers until their epoch ends, and windows on device memory.
//!
//! A window on device memory is one on host memory, its public copy, as the separate memory model of MPI-3
//! has it: the device's memory is the private copy. A snapshot says what both had last. At each
//! synchronisation what the process has changed on the device since (device and snapshot differ) goes to the
//! public copy, and what others have put there (public copy and snapshot differ) goes to the device: those
//! bytes, and no others.

mod merge;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use core::ffi::c_int;

use crate::abi::{Abi, Family, Handle};
use crate::args::Args;
use crate::buffer::{Failure, Mirror};
use crate::library::pmpi;
use crate::row::{On, Row};
pub(crate) use merge::Shadow;

/// One call's accesses of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    window: Handle,
    rank: c_int,
    number: usize,
}

/// What is kept for a window.
#[derive(Debug, Default)]
struct Window {
    /// Mirrors of origin buffers.
    origins: Vec<(Access, Mirror)>,
    shadow: Option<Shadow>,
}

static TABLE: Mutex<Option<HashMap<Handle, Window>>> = Mutex::new(None);
/// Windows with an entry, and those on device memory.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static SHADOWS: AtomicUsize = AtomicUsize::new(0);

fn table() -> MutexGuard<'static, Option<HashMap<Handle, Window>>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether no window has an entry.
#[inline]
pub(crate) fn is_empty() -> bool {
    COUNT.load(Relaxed) == 0
}

/// Whether there is no window on device memory.
#[inline]
pub(crate) fn is_all_host() -> bool {
    SHADOWS.load(Relaxed) == 0
}

fn with<T>(window: Handle, each: impl FnOnce(&mut Window) -> T) -> T {
    let mut table = table();
    each(table.get_or_insert_with(HashMap::new).entry(window).or_insert_with(|| {
        COUNT.fetch_add(1, Relaxed);
        Window::default()
    }))
}

/// A call has begun to access a target from or to these mirrors.
///
/// # Safety
/// The call was that of the row, and was successful.
pub(crate) unsafe fn add_origin(row: &Row, args: &Args<'_>, mirrors: Vec<Mirror>) -> Option<Access> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let On::Window(window, rank) = row.on else { return None };
    // SAFETY: by the table.
    let (window, rank) = unsafe { (args.window(window.into()), args.int(rank.into())) };
    let access = Access { window, rank, number: CALLS.fetch_add(1, Relaxed) };
    with(window, |entry| entry.origins.extend(mirrors.into_iter().map(|mirror| (access, mirror))));
    Some(access)
}

/// Whether a one-sided call may access its mirrors when its request has completed: MPICH 5.0.2 completes that
/// of MPI_Rget to a datatype with gaps before the data are there.
pub(crate) fn may_last(row: &Row, abi: &Abi, mirrors: &[Mirror]) -> bool {
    matches!(row.on, On::Window(..))
        && abi.family != Family::OpenMpi
        && !mirrors.iter().all(Mirror::is_in_order)
}

/// The request of such a call has completed. If its epoch goes on, which is one of a passive target, the data
/// are waited for.
///
/// # Safety
/// The program's buffers are valid.
pub(crate) unsafe fn complete(access: Access) -> Result<(), Failure> {
    let is_open = {
        let table = table();
        let window = table.as_ref().and_then(|table| table.get(&access.window));
        window.is_some_and(|window| window.origins.iter().any(|(of, _)| *of == access))
    };
    // SAFETY: the window is there, since its mirrors are. Where this fails they stay until the epoch ends.
    if !is_open || unsafe { pmpi!("Win_flush_local", access.rank, access.window) }.is_err() {
        return Ok(());
    }
    // SAFETY: the accesses are complete, and the caller's promise.
    unsafe { end_origins(access.window, Some(access.rank)) }
}

/// The accesses of this process to a rank, or to all, are complete.
///
/// # Safety
/// They are, and the program's buffers are valid.
pub(crate) unsafe fn end_origins(window: Handle, rank: Option<c_int>) -> Result<(), Failure> {
    let ended: Vec<(Access, Mirror)> = {
        let mut table = table();
        let Some(entry) = table.as_mut().and_then(|table| table.get_mut(&window)) else { return Ok(()) };
        entry.origins.extract_those(|(of, _)| rank.is_none_or(|rank| of.rank == rank))
    };
    // SAFETY: the caller's promise.
    ended.iter().try_for_each(|(_, mirror)| unsafe { mirror.copy_back() })
}

/// Vec::extract_if, which Rust 1.85 does not have.
trait Extract<T> {
    fn extract_those(&mut self, which: impl Fn(&T) -> bool) -> Vec<T>;
}

impl<T> Extract<T> for Vec<T> {
    fn extract_those(&mut self, which: impl Fn(&T) -> bool) -> Vec<T> {
        let (those, others) = std::mem::take(self).into_iter().partition(which);
        *self = others;
        those
    }
}

/// A window on device memory was made.
pub(crate) fn add_shadow(window: Handle, shadow: Shadow) {
    with(window, |entry| entry.shadow = Some(shadow));
    SHADOWS.fetch_add(1, Relaxed);
}

/// Calls `each` with the window on device memory, if it is one and that rank, or any, is this process's.
///
/// # Safety
/// The program's memory is valid.
pub(crate) unsafe fn with_shadow(
    window: Handle,
    rank: Option<c_int>,
    each: unsafe fn(&mut Shadow) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if is_all_host() {
        return Ok(());
    }
    let mut table = table();
    let shadow = table.as_mut().and_then(|table| table.get_mut(&window)?.shadow.as_mut());
    match shadow.filter(|shadow| rank.is_none_or(|rank| rank == shadow.rank())) {
        // SAFETY: the caller's promise.
        Some(shadow) => unsafe { each(shadow) },
        None => Ok(()),
    }
}

/// The same for all windows.
///
/// # Safety
/// As for [`with_shadow`].
pub(crate) unsafe fn with_all(each: unsafe fn(&mut Shadow) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut table = table();
    let shadows = table.iter_mut().flat_map(|table| table.values_mut()).filter_map(|w| w.shadow.as_mut());
    // SAFETY: the caller's promise.
    shadows.into_iter().try_for_each(|shadow| unsafe { each(shadow) })
}

/// The device memory of a window, and the rank of this process.
pub(crate) fn part(window: Handle) -> Option<(usize, c_int)> {
    let table = table();
    let shadow = table.as_ref()?.get(&window)?.shadow.as_ref()?;
    Some((shadow.device(), shadow.rank()))
}

/// The window is gone: its last bytes go to the device.
///
/// # Safety
/// The MPI accesses nothing of it any more, and the program's memory is valid.
pub(crate) unsafe fn remove(window: Handle) -> Result<(), Failure> {
    let Some(entry) = table().as_mut().and_then(|table| table.remove(&window)) else { return Ok(()) };
    COUNT.fetch_sub(1, Relaxed);
    let mut done = Ok(());
    // SAFETY: the caller's promise.
    unsafe {
        for (_, mirror) in &entry.origins {
            done = done.and(mirror.copy_back());
        }
        if let Some(mut shadow) = entry.shadow {
            SHADOWS.fetch_sub(1, Relaxed);
            done = done.and(shadow.pull());
        }
    }
    done
}
