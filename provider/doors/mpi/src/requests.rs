//! Requests whose buffers have mirrors: what is to be done when they complete; and persistent ones of device
//! memory: what is to be done when they are started.
//!
//! A request is the MPI's own. While a call that may complete it is under way its entry is out of the table,
//! since the MPI may give the same handle to another thread's operation as soon as the request has
//! completed.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{Abi, Handle};
use crate::args::{Args, Statuses, bytes_of};
use crate::buffer::{Failure, Mirrors};
use crate::library::{library, pmpi};
use crate::narrow::Arrays;
use crate::row::{Ends, On, Row};
use crate::windows::{self, Access};

/// What is kept for a request.
#[derive(Debug)]
pub(crate) struct Entry {
    mirrors: Mirrors,
    /// Of one-sided calls whose mirrors their window keeps.
    accesses: Vec<Access>,
    /// Held until the operation has completed.
    _arrays: Arrays,
    /// Of a persistent request: addresses of device memory that the MPI's transport accesses, for which each
    /// start waits.
    persistent: Option<Vec<usize>>,
    /// Whether an operation is under way.
    active: bool,
}

static TABLE: Mutex<Option<HashMap<Handle, Entry>>> = Mutex::new(None);
/// Requests that the program has freed while their operation was under way.
static FREED: Mutex<Vec<(Handle, Entry)>> = Mutex::new(Vec::new());
/// Entries of both, and of the second.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FREED_COUNT: AtomicUsize = AtomicUsize::new(0);

fn table() -> MutexGuard<'static, Option<HashMap<Handle, Entry>>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether no request has an entry.
#[inline]
pub(crate) fn is_empty() -> bool {
    COUNT.load(Relaxed) == 0
}

/// A call has made a request, whose handle is at that argument: with its mirrors, the arrays that it reads,
/// and of a persistent one device memory that the MPI's transport accesses.
///
/// # Safety
/// The call was that of the row, and was successful.
pub(crate) unsafe fn add(
    row: &Row,
    args: &Args<'_>,
    at: usize,
    (mut mirrors, arrays, direct): (Mirrors, Arrays, Vec<usize>),
) -> Option<Failure> {
    // SAFETY: the caller's promise; so below.
    let request = unsafe { args.request(at, 0) };
    let persistent = matches!(row.ends, Ends::Persistent(_)).then_some(direct);
    let is_persistent = persistent.is_some();
    let mut accesses = Vec::new();
    if windows::may_last(row, args.abi, &mirrors.all) {
        let all = std::mem::take(&mut mirrors.all);
        // SAFETY: as above.
        accesses.extend(unsafe { windows::add_origin(row, args, all) });
    }
    // MPICH's request of a file is lost once MPI_Request_get_status has said that it has completed.
    let is_asked = !is_persistent && accesses.is_empty() && !matches!(row.on, On::File(_));
    let mut entry = Entry { mirrors, accesses, _arrays: arrays, persistent, active: !is_persistent };
    // Operations that completed at once may share one handle, and need no entry.
    let is_null = request == args.abi.handles.request_null;
    // SAFETY: a valid request.
    let done = if !is_asked || is_null { None } else { unsafe { done(args.abi, request) } };
    if let Some(bytes) = done.or((is_null && !is_persistent).then_some(0)) {
        // SAFETY: the operation is over, and the program's buffers are valid.
        return unsafe { entry.end(bytes) }.err();
    }
    put(request, entry);
    None
}

/// Whether the operation of a request has completed, and then how many bytes it has received; the request
/// stays.
///
/// # Safety
/// A valid request.
pub(crate) unsafe fn done(abi: &Abi, request: Handle) -> Option<usize> {
    let (mut flag, mut status): (c_int, _) = (0, Statuses::new(abi, 1));
    // SAFETY: the caller's promise, and valid places.
    unsafe {
        let asked = pmpi!("Request_get_status", request, &raw mut flag, status.at());
        (asked.is_ok() && flag != 0).then(|| bytes_of(abi, status.at()))
    }
}

impl Entry {
    /// The operation has completed, and has received so many bytes: what it has written goes to the device.
    ///
    /// # Safety
    /// The program's buffers are valid.
    unsafe fn end(&mut self, bytes: usize) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.active, false) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            self.mirrors.copy_back(bytes)?;
            self.accesses.drain(..).try_for_each(|access| windows::complete(access))
        }
    }

    /// The operation begins again: whether it was not under way.
    unsafe fn begin(&mut self) -> Result<bool, Failure> {
        self.persistent.iter().flatten().for_each(|address| crate::buffer::sync::wait_for(*address));
        // SAFETY: the caller's promise.
        self.mirrors.all.iter().try_for_each(|mirror| unsafe {
            crate::buffer::sync::wait_for(mirror.first());
            mirror.copy_in()
        })?;
        Ok(!std::mem::replace(&mut self.active, true))
    }

    /// Whether it has to be known how many bytes were received.
    pub(crate) fn needs_length(&self) -> bool {
        self.mirrors.received.is_some()
    }

    /// Whether the request stays when its operation has completed.
    pub(crate) fn is_persistent(&self) -> bool {
        self.persistent.is_some()
    }
}

/// Takes the entry of a request out of the table.
pub(crate) fn take(request: Handle) -> Option<Entry> {
    if is_empty() {
        return None;
    }
    let entry = table().as_mut()?.remove(&request)?;
    COUNT.fetch_sub(1, Relaxed);
    Some(entry)
}

/// Puts an entry into the table, again or anew.
pub(crate) fn put(request: Handle, mut entry: Entry) {
    let mut table = table();
    let all = table.get_or_insert_with(HashMap::new);
    match all.remove(&request) {
        // MPICH's one-sided calls that have completed at once may share one handle.
        Some(other) => entry.accesses.extend(other.accesses),
        None => drop(COUNT.fetch_add(1, Relaxed)),
    }
    all.insert(request, entry);
}

/// The operation of a request has completed, and has received so many bytes: that of a persistent one may be
/// started again if the request stays. Open MPI 4 frees it where the operation has failed.
///
/// # Safety
/// It has, and the program's buffers are valid.
pub(crate) unsafe fn complete(
    request: Handle,
    mut entry: Entry,
    bytes: usize,
    stays: bool,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let ended = unsafe { entry.end(bytes) };
    if entry.persistent.is_some() && stays {
        put(request, entry);
    }
    ended
}

/// A persistent request is about to be started: its memory is waited for, and what it reads is copied.
/// Whether it has mirrors, and was not under way.
///
/// # Safety
/// The program's buffers are valid.
pub(crate) unsafe fn start(request: Handle) -> Result<bool, Failure> {
    if is_empty() {
        return Ok(false);
    }
    let Some(mut entry) = take(request) else { return Ok(false) };
    // SAFETY: the caller's promise.
    let begun = unsafe { entry.begin() };
    put(request, entry);
    begun
}

/// A request was not started after all: nothing of it goes to the device.
pub(crate) fn not_started(request: Handle) {
    if let Some(entry) = table().as_mut().and_then(|all| all.get_mut(&request)) {
        entry.active = false;
    }
}

/// The program frees a request: true if the MPI is to free it now. One whose operation is under way is freed
/// when that has completed, since until then the MPI accesses the mirrors.
pub(crate) fn free(request: Handle) -> bool {
    let Some(entry) = take(request) else { return true };
    if !entry.active {
        return true;
    }
    COUNT.fetch_add(1, Relaxed);
    FREED_COUNT.fetch_add(1, Relaxed);
    FREED.lock().unwrap_or_else(PoisonError::into_inner).push((request, entry));
    false
}

/// Whether a request that the program has freed has an entry.
#[inline(always)]
pub(crate) fn any_freed() -> bool {
    FREED_COUNT.load(Relaxed) != 0
}

/// The end of a call: what is freed and complete goes to the device before the program goes on.
#[cold]
pub(crate) fn end_freed() {
    if let Some(library) = library() {
        let _ = c_abi::caught(|| poll_freed(&library.abi, false));
    }
}

/// Ends what was freed and has completed since. Behind the `last` poll, that of MPI_Finalize, the MPI has the
/// others, of which a receive may never complete: their mirrors stay until the process ends.
pub(crate) fn poll_freed(abi: &Abi, last: bool) {
    if !any_freed() {
        return;
    }
    let all = std::mem::take(&mut *FREED.lock().unwrap_or_else(PoisonError::into_inner));
    let mut left = Vec::new();
    for (request, mut entry) in all {
        let mut handle = [0usize; 1];
        let at = handle.as_mut_ptr() as usize;
        let (mut flag, mut status): (c_int, _) = (0, Statuses::new(abi, 1));
        // SAFETY: a request of the MPI's, which the program has given up; valid places.
        let done = unsafe {
            abi.set_handle(at, 0, request);
            pmpi!("Test", at, &raw mut flag, status.at())
        };
        if done.is_ok() && flag == 0 {
            if last {
                // SAFETY: as above.
                let _ = unsafe { pmpi!("Request_free", at) };
                std::mem::forget(entry);
                COUNT.fetch_sub(1, Relaxed);
                FREED_COUNT.fetch_sub(1, Relaxed);
            } else {
                left.push((request, entry));
            }
            continue;
        }
        COUNT.fetch_sub(1, Relaxed);
        FREED_COUNT.fetch_sub(1, Relaxed);
        // SAFETY: the operation is over. The program has promised that its buffers stay until then.
        let _ = unsafe { entry.end(bytes_of(abi, status.at())) };
        // SAFETY: a place of this function's. Open MPI 4 has freed a request that has failed.
        let stays = unsafe { abi.handle_at(at, 0) } != abi.handles.request_null;
        if entry.persistent.is_some() && stays {
            // SAFETY: as above.
            let _ = unsafe { pmpi!("Request_free", at) };
        }
    }
    FREED.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
}

/// A part of what a partitioned request receives has arrived.
///
/// # Safety
/// The program's buffer is valid.
pub(crate) unsafe fn copy_arrived(request: Handle) -> Result<(), Failure> {
    let table = table();
    let Some(entry) = table.as_ref().and_then(|table| table.get(&request)) else { return Ok(()) };
    // SAFETY: the caller's promise.
    entry.mirrors.all.iter().try_for_each(|mirror| unsafe { mirror.copy_back() })
}
