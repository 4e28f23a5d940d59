//! Pipes by the pointers and the addresses that a program has. What a pointer leads to is never freed, so
//! that one of a closed pipe is an error.

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

use ipc::fence::Barrier;
use libc::{c_char, c_int, c_void};

use super::types::{raddr_t, rpipe_t};
use crate::core::Visit;
use crate::core::forked;
use crate::lock::Biased;
use crate::many::several::Several;
use crate::{Address, Context, Error, Patience, Pipe};

/// Pipes there may be at a time.
const PIPES: usize = 1 << 15;

pub(super) struct Handle {
    /// From 1.
    id: u16,
    pipe: Biased<Option<Pipe>>,
    /// It is one of many (`rpipe_many_open`), which are closed as one.
    is_member: AtomicBool,
    /// By the handler's number.
    handlers: Mutex<HashMap<u16, Handler>>,
}

/// A function of the program's, and what it is called with.
#[derive(Clone, Copy)]
pub(super) struct Handler {
    pub(super) call: unsafe extern "C" fn(*mut c_void, rpipe_t, *mut c_void, usize),
    pub(super) arg: *mut c_void,
}

// SAFETY: the program's pointer is only handed back to its function.
unsafe impl Send for Handler {}

static TABLE: [AtomicPtr<Handle>; PIPES] = [const { AtomicPtr::new(ptr::null_mut()) }; PIPES];

/// Those that were made, and those of them that are closed, the longest closed first.
struct Made {
    last: u16,
    closed: VecDeque<&'static Handle>,
}

static MADE: Mutex<Made> = Mutex::new(Made { last: 0, closed: VecDeque::new() });
static JOB: Mutex<Option<Arc<Context>>> = Mutex::new(None);

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The job that this process has joined.
pub(super) fn job() -> Result<Arc<Context>, Error> {
    here()?;
    held(&JOB).clone().ok_or_else(|| Error::Invalid("this process is in no job: call rinit first".into()))
}

/// A forked child gets at none of what follows: a thread that is not there may hold any of these locks.
pub(super) fn here() -> Result<(), Error> {
    forked::check()
}

pub(super) fn job_place() -> MutexGuard<'static, Option<Arc<Context>>> {
    held(&JOB)
}

/// Stores alone, which a forked child may do.
extern "C" fn end_in_child() {
    for place in &TABLE[1..] {
        // SAFETY: handles are never freed.
        let Some(handle) = (unsafe { place.load(Acquire).as_ref() }) else { break };
        handle.pipe.end_in_child();
    }
}

/// Keeps a pipe; the pointer for the program.
pub(super) fn keep(pipe: Pipe, barrier: Barrier) -> Result<rpipe_t, Error> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which libc forgets when it is unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(end_in_child)) };
    });
    let mut made = held(&MADE);
    let handle = if usize::from(made.last) + 1 < PIPES {
        made.last += 1;
        let pipe = Biased::new(None, barrier);
        let (is_member, handlers) = (AtomicBool::new(false), Mutex::default());
        let handle = Box::leak(Box::new(Handle { id: made.last, pipe, is_member, handlers }));
        TABLE[usize::from(handle.id)].store(handle, Release);
        &*handle
    } else {
        made.closed.pop_front().ok_or_else(|| Error::Exhausted("there are 32767 pipes: close some".into()))?
    };
    // Places are taken in order: a child's look at them ends with the first that is empty.
    match handle.pipe.lock() {
        Ok(mut place) => *place = Some(pipe),
        Err(e) => {
            made.closed.push_back(handle);
            return Err(e);
        }
    }
    Ok(ptr::from_ref(handle).cast_mut().cast())
}

/// Keeps a pipe that is one of many.
pub(super) fn keep_member(pipe: Pipe, barrier: Barrier) -> Result<rpipe_t, Error> {
    let rp = keep(pipe, barrier)?;
    handle(rp)?.is_member.store(true, Relaxed);
    Ok(rp)
}

/// Closes a pipe that is one of many.
pub(super) fn close_member(rp: rpipe_t) -> Result<(), Error> {
    handle(rp)?.is_member.store(false, Relaxed);
    close(rp)
}

/// Closes a pipe.
pub(super) fn close(rp: rpipe_t) -> Result<(), Error> {
    let handle = handle(rp)?;
    if handle.is_member.load(Relaxed) {
        return Err(Error::Invalid("this pipe is one of many: rpipe_many_close closes them".into()));
    }
    let pipe = handle.pipe.lock()?.take();
    let mut pipe = pipe.ok_or_else(no_pipe)?;
    held(&handle.handlers).clear();
    held(&MADE).closed.push_back(handle);
    pipe.close()
}

/// All pipes that nothing is in are closed.
/// Closes all that are open, until then.
pub(super) fn close_all(until: Instant) -> Result<(), Error> {
    let mut outcome = Ok(());
    for place in &TABLE {
        // SAFETY: handles are never freed.
        let Some(handle) = (unsafe { place.load(Acquire).as_ref() }) else { continue };
        let pipe = handle.pipe.try_lock().and_then(|mut pipe| pipe.take());
        if let Some(mut pipe) = pipe {
            handle.is_member.store(false, Relaxed);
            outcome = outcome.and(pipe.close_by(until));
            held(&MADE).closed.push_back(handle);
        }
    }
    outcome
}

fn no_pipe() -> Error {
    Error::Invalid("this is no open pipe: it was closed, or rpipe has not made it".into())
}

#[inline]
fn handle(rp: rpipe_t) -> Result<&'static Handle, Error> {
    // SAFETY: NULL, or from `keep` (the program's promise); what that gives is never freed.
    unsafe { rp.cast::<Handle>().as_ref() }.ok_or_else(no_pipe)
}

/// Does something with a pipe.
#[inline]
pub(super) fn with<T>(
    rp: rpipe_t,
    body: impl FnOnce(&mut Pipe, u16) -> Result<T, Error>,
) -> Result<T, Error> {
    let handle = handle(rp)?;
    body(handle.pipe.lock()?.as_mut().ok_or_else(no_pipe)?, handle.id)
}

/// Does something with a pipe that may wait: other threads that wait for the pipe meanwhile have their turns,
/// since what this one waits for may come of what they do.
pub(super) fn in_turns<T>(
    rp: rpipe_t,
    time: Patience,
    mut body: impl FnMut(&mut Pipe, u16, Patience) -> Result<T, Error>,
) -> Result<T, Error> {
    let handle = handle(rp)?;
    let others = handle.pipe.others();
    let patience = time.in_turns(others);
    for rounds in 0.. {
        let done = body(handle.pipe.lock()?.as_mut().ok_or_else(no_pipe)?, handle.id, patience);
        match done {
            Err(Error::Again) if time != Patience::Poll && !time.is_over() => others.let_in(rounds),
            done => return done,
        }
    }
    Err(Error::Again)
}

/// Does something with a pipe, if this thread owns its lock. What is done panics nowhere, and has changed
/// nothing where it says `None`.
#[inline(always)]
pub(super) fn quickly<T>(rp: rpipe_t, body: impl FnOnce(&mut Pipe, u16) -> Option<T>) -> Option<T> {
    // SAFETY: as in `handle`.
    let handle = unsafe { rp.cast::<Handle>().as_ref() }?;
    body(handle.pipe.lock_as_owner()?.as_mut()?, handle.id)
}

/// The same, with the pipe of an address.
#[inline(always)]
pub(super) fn quickly_with_address<T>(
    address: raddr_t,
    body: impl FnOnce(&mut Pipe, Address) -> Option<T>,
) -> Option<T> {
    // SAFETY: as in `with_address`.
    let handle = unsafe { TABLE[(address >> 49) as usize].load(Acquire).as_ref() }?;
    body(handle.pipe.lock_as_owner()?.as_mut()?, unpacked(address))
}

/// A pipe by its pointer, which may be used in any thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member(pub(super) rpipe_t);

// SAFETY: what it leads to is never freed, and is for all threads.
unsafe impl Send for Member {}

impl Several for [Member] {
    #[inline]
    fn visit(&mut self, at: usize, visit: Visit) -> Result<bool, Error> {
        with(self[at].0, |pipe, _| Ok(pipe.visit(visit)))
    }
}

/// The handlers of a pipe.
pub(super) fn handlers(rp: rpipe_t) -> Result<MutexGuard<'static, HashMap<u16, Handler>>, Error> {
    here()?;
    Ok(held(&handle(rp)?.handlers))
}

/// Does something with the pipe of an address.
#[inline]
pub(super) fn with_address<T>(
    address: raddr_t,
    body: impl FnOnce(&mut Pipe, Address) -> Result<T, Error>,
) -> Result<T, Error> {
    let id = (address >> 49) as usize;
    // SAFETY: handles are never freed.
    let handle = unsafe { TABLE[id].load(Acquire).as_ref() };
    let handle = handle.ok_or_else(|| Error::Stale("this is no address: no such pipe was made".into()))?;
    body(handle.pipe.lock()?.as_mut().ok_or_else(no_pipe)?, unpacked(address))
}

#[inline]
pub(super) fn packed(id: u16, address: Address) -> raddr_t {
    u64::from(id) << 49
        | u64::from(address.read) << 48
        | u64::from(address.generation) << 32
        | u64::from(address.granule)
}

#[inline]
fn unpacked(address: raddr_t) -> Address {
    Address { read: address >> 48 & 1 != 0, generation: (address >> 32) as u16, granule: address as u32 }
}

/// The block of an address of this pipe, if it is one.
#[inline(always)]
pub(super) fn is_of_pipe(id: u16, address: raddr_t) -> Option<Address> {
    (address >> 49 == u64::from(id)).then(|| unpacked(address))
}

/// The block of an address of this pipe.
#[inline]
pub(super) fn of_pipe(id: u16, address: raddr_t) -> Result<Address, Error> {
    is_of_pipe(id, address).ok_or_else(|| Error::Stale("the address is of another pipe, or none".into()))
}

#[cold]
fn fail(error: &Error) -> c_int {
    c_abi::keep_error(error);
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = error.errno() };
    -error.errno()
}

/// A call's boundary: no panic leaves it. The value, or a negative errno.
#[inline]
pub(super) fn guard<T>(body: impl FnOnce() -> Result<T, Error>) -> Result<T, c_int> {
    let panicked = || Err(Error::System("an internal failure: this pipe cannot be used any more".into()));
    c_abi::caught(body).unwrap_or_else(panicked).map_err(|error| fail(&error))
}

/// 0, or a negative errno.
#[inline]
pub(super) fn status(body: impl FnOnce() -> Result<(), Error>) -> c_int {
    guard(body).map_or_else(|code| code, |()| 0)
}

/// Text for an array of C's, cut to fit.
pub(super) fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut to = [0; N];
    for (to, byte) in to[..N - 1].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    to
}

/// Text of C's; `None` for NULL.
///
/// # Safety
/// NULL, or a C string that lives as long as the answer.
pub(super) unsafe fn words<'a>(text: *const c_char) -> Result<Option<&'a str>, Error> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Error::Invalid("a text that is not UTF-8".into()))
}
