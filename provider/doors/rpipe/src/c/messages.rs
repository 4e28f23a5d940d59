//! Blocks and messages.

use std::time::Duration;

use libc::{c_int, c_void};

use super::active::handle;
use super::handles::{
    Member, guard, in_turns, is_of_pipe, job, of_pipe, packed, quickly, quickly_with_address, status, with,
    with_address,
};
use super::types::*;
use crate::core::SLOTS;
use crate::core::Visit;
use crate::many::several::Turns;
use crate::{Error, Patience, Pipe};

#[inline]
pub(super) fn patience(nanoseconds: i64) -> Patience {
    match u64::try_from(nanoseconds) {
        Ok(0) => Patience::Poll,
        Ok(time) => Patience::for_a(Duration::from_nanos(time)),
        Err(_) => Patience::Forever,
    }
}

/// Allocates a block of the pipe's heap. Waits until the reader has freed enough, if it has anything to free.
/// RADDR_NULL, with errno, if not: ENOBUFS: all is this end's; EMSGSIZE: it never fits; EPIPE: the peer is
/// gone.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmalloc(rp: rpipe_t, size: usize) -> raddr_t {
    match quickly(rp, |pipe, id| Some(packed(id, pipe.alloc_quickly(size)?))) {
        Some(addr) => addr,
        None => slow_malloc(rp, size, 1, RPIPE_FOREVER),
    }
}

// The slow ways are functions of their own, so that the quick ones need no place for what these keep.

#[cold]
#[inline(never)]
fn slow_malloc(rp: rpipe_t, size: usize, align: usize, nanoseconds: i64) -> raddr_t {
    let time = patience(nanoseconds);
    let alloc = |pipe: &mut Pipe, id, time| Ok(packed(id, pipe.alloc(size, align, time)?));
    guard(|| in_turns(rp, time, alloc)).unwrap_or(RADDR_NULL)
}

#[cold]
#[inline(never)]
fn slow_mem(rp: rpipe_t, addr: raddr_t) -> *mut c_void {
    let found = guard(|| with(rp, |pipe, id| pipe.address(of_pipe(id, addr)?)));
    found.map_or(std::ptr::null_mut(), <*mut u8>::cast)
}

/// `written`: it remains to see what else there is.
#[cold]
#[inline(never)]
fn slow_write(rp: rpipe_t, addr: raddr_t, written: bool) -> c_int {
    status(|| {
        with(rp, |pipe, id| if written { pipe.see_to_it() } else { pipe.write(of_pipe(id, addr)?, None) })
    })
}

#[cold]
#[inline(never)]
fn slow_read(rp: rpipe_t, addr: *mut raddr_t, size: usize, nanoseconds: i64) -> c_int {
    status(|| {
        if addr.is_null() {
            return Err(Error::Invalid("there is no place for the address".into()));
        }
        let time = patience(nanoseconds);
        let mut handled = 0;
        let read = loop {
            let (read, handler) = in_turns(rp, time, |pipe, id, time| {
                let (address, _, handler) = pipe.read_any(size, time)?;
                Ok((packed(id, address), handler))
            })?;
            if handler == 0 {
                break read;
            }
            handle(rp, read, handler)?;
            is_enough(time, &mut handled)?;
        };
        // SAFETY: the promise of the program, which the callers pass on.
        unsafe { addr.write(read) };
        Ok(())
    })
}

/// After an active message. `Again`: the time is over, and there may be more of them without end; a look
/// takes as many as there can be at once.
pub(super) fn is_enough(time: Patience, handled: &mut usize) -> Result<(), Error> {
    *handled += 1;
    let most = if time == Patience::Poll { *SLOTS.end() } else { 1 };
    if *handled >= most && time.is_over() { Err(Error::Again) } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn slow_free(addr: raddr_t) -> c_int {
    status(|| with_address(addr, |pipe, address| pipe.free(address)))
}

/// As rmalloc, on a multiple of `align`, a power of two of 4096 at most.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmalloc_aligned(rp: rpipe_t, size: usize, align: usize) -> raddr_t {
    slow_malloc(rp, size, align, RPIPE_FOREVER)
}

/// As rmalloc, and waits so long at most; 0: not at all; EAGAIN or ENOBUFS then.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmalloc_timed(rp: rpipe_t, size: usize, nanoseconds: i64) -> raddr_t {
    slow_malloc(rp, size, 1, nanoseconds)
}

/// The memory of a block: one that was allocated, until it is written or freed; one that was read, until it
/// is freed. NULL, with errno, if it is neither. A peer of ill will can write there at any time.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rmem(rp: rpipe_t, addr: raddr_t) -> *mut c_void {
    match quickly(rp, |pipe, id| pipe.address_quickly(is_of_pipe(id, addr)?)) {
        Some(at) => at.cast(),
        None => slow_mem(rp, addr),
    }
}

/// The bytes of a block: as many as were allocated, or as the message has. -1, with errno, if it is none.
#[unsafe(no_mangle)]
pub extern "C" fn rlength(addr: raddr_t) -> isize {
    guard(|| with_address(addr, |pipe, address| pipe.len(address))).map_or(-1, |len| len as isize)
}

/// Writes: the block is the reader's from now on, which finds it as its next message. Does not wait for the
/// reader.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(rp: rpipe_t, addr: raddr_t) -> c_int {
    match quickly(rp, |pipe, id| pipe.write_quickly(is_of_pipe(id, addr)?)) {
        Some(false) => 0,
        written => slow_write(rp, addr, written.is_some()),
    }
}

/// As rwrite, and waits so long at most for the path to take the message; 0: not at all. EAGAIN: it has not,
/// and the block is still this end's. Memory that both ends map takes it at once.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite_timed(rp: rpipe_t, addr: raddr_t, nanoseconds: i64) -> c_int {
    let time = patience(nanoseconds);
    status(|| with(rp, |pipe, id| pipe.write_timed(of_pipe(id, addr)?, None, time)))
}

/// As rwrite, of the first `size` bytes.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite_part(rp: rpipe_t, addr: raddr_t, size: usize) -> c_int {
    status(|| with(rp, |pipe, id| pipe.write(of_pipe(id, addr)?, Some(size))))
}

/// Waits until all that was written has left this process, so long at most.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rflush(rp: rpipe_t, nanoseconds: i64) -> c_int {
    status(|| with(rp, |pipe, _| pipe.flush(patience(nanoseconds))))
}

/// Waits for the next message, of `size` bytes at most, and gives its address; rlength has its length. A
/// longer one stays (EMSGSIZE). Active messages before it are handled. EPIPE: all was read, and the peer is
/// gone. Programs call it as rread, with the address by its name.
///
/// # Safety
/// `rp` is NULL or came from rpipe; `addr` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread_into(rp: rpipe_t, addr: *mut raddr_t, size: usize) -> c_int {
    let read = |pipe: &mut Pipe, id| Some(packed(id, pipe.read_quickly(size)?));
    if !addr.is_null() {
        if let Some(read) = quickly(rp, read) {
            // SAFETY: the program's promise.
            unsafe { addr.write(read) };
            return 0;
        }
    }
    slow_read(rp, addr, size, RPIPE_FOREVER)
}

/// As rread_into, and waits so long at most; 0: not at all; EAGAIN then, also while active messages come
/// without end.
///
/// # Safety
/// `rp` is NULL or came from rpipe; `addr` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread_timed(
    rp: rpipe_t,
    addr: *mut raddr_t,
    size: usize,
    nanoseconds: i64,
) -> c_int {
    slow_read(rp, addr, size, nanoseconds)
}

/// The length of the next message, without reading it, or EAGAIN below 0. Called again and again it finds
/// each message, and EPIPE once all was read and the peer is gone.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpeek(rp: rpipe_t) -> isize {
    let peeked = guard(|| with(rp, |pipe, _| pipe.peek()?.ok_or(Error::Again)));
    peeked.map_or_else(|code| code as isize, |len| len as isize)
}

/// Frees a block: one that was read, which becomes the writer's again, or one that was allocated and not
/// written. ESTALE: it is none of these, or was freed before.
#[unsafe(no_mangle)]
pub extern "C" fn rfree(addr: raddr_t) -> c_int {
    match quickly_with_address(addr, |pipe, address| pipe.free_quickly(address)) {
        Some(()) => 0,
        None => slow_free(addr),
    }
}

/// Waits until one of `count` pipes has a message, so long at most: its index, or EAGAIN below 0. A pipe
/// whose peer is gone counts as one that has a message: rread says so. After some polls the process sleeps
/// until a writer wakes it.
///
/// # Safety
/// `pipes` has so many pipes, each from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwait(pipes: *const rpipe_t, count: usize, nanoseconds: i64) -> c_int {
    guard(|| {
        if pipes.is_null() || count == 0 || c_int::try_from(count).is_err() {
            return Err(Error::Invalid("there are no pipes".into()));
        }
        // SAFETY: the program's promise.
        let pipes = unsafe { std::slice::from_raw_parts(pipes, count) };
        for (at, rp) in pipes.iter().enumerate() {
            if with(*rp, |pipe, _| Ok(pipe.visit(Visit::Flag)))? {
                return Ok(at as c_int);
            }
        }
        let mut pipes: Vec<Member> = pipes.iter().map(|rp| Member(*rp)).collect();
        let at = Turns::new(count, true).wait(&mut pipes[..], &*job()?, patience(nanoseconds))?;
        Ok(at as c_int)
    })
    .unwrap_or_else(|code| code)
}

/// A descriptor for poll(2): readable once something may have come for a pipe that rpipe_arm has said may be
/// slept for. An errno below 0 if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn rpipe_fd() -> c_int {
    let none = || Error::Unsupported("this backend has no descriptor: poll with rread_timed".into());
    guard(|| job()?.descriptor().ok_or_else(none)).unwrap_or_else(|code| code)
}

/// Prepares for sleeping on rpipe_fd until this pipe has a message. 0: sleep; EAGAIN below 0: there is
/// something to read, or to do, already.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_arm(rp: rpipe_t) -> c_int {
    status(|| {
        job()?.progress()?;
        let quiet = with(rp, |pipe, _| {
            pipe.arm()?;
            Ok(pipe.peek_now()?.is_none() && !pipe.is_over())
        })?;
        if quiet && job()?.arm() { Ok(()) } else { Err(Error::Again) }
    })
}
