//! Memory that is lent, and borrowed.

use std::ptr::null_mut;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_uint, c_void};

use super::calls::options;
use super::handles::{guard, here, job, status, text};
use super::kept::{Kept, Place};
use super::messages::patience;
use super::types::*;
use crate::lend::Local;
use crate::{Block, Borrowed, Error, Lent, Policy, Rank};

static LENT: Kept<Lent> = Kept::new("this is no lent memory: it was taken back, or rlend has not made it");
static BORROWED: Kept<Mine> =
    Kept::new("this is no borrowed memory: it was given back, or rborrow has not made it");

/// Borrowed memory, with what its addresses have: an address of another is ESTALE.
struct Mine {
    number: u16,
    memory: Borrowed,
}

fn lent(at: rlent_t) -> *mut Place<Lent> {
    at.cast()
}

fn place(at: rborrowed_t) -> *mut Place<Mine> {
    at.cast()
}

/// All is given back, and taken back, that no thread is in.
pub(super) fn close_all() {
    drop(BORROWED.take_all());
    drop(LENT.take_all());
}

fn rank(rank: c_int) -> Result<Rank, Error> {
    Rank::try_from(rank).map_err(|_| Error::Invalid(format!("{rank} is no rank")))
}

fn check<T>(at: *const T, size: usize, what: &str) -> Result<(), Error> {
    if at.is_null() && size != 0 || isize::try_from(size).is_err() {
        return Err(Error::Invalid(format!("{what} of {size} bytes at {at:?}: there is no such memory")));
    }
    Ok(())
}

fn packed(number: u16, block: Block) -> rborrow_addr_t {
    u64::from(number) << 48 | u64::from(block.generation) << 32 | u64::from(block.granule)
}

impl Mine {
    fn block(&self, addr: rborrow_addr_t) -> Result<Block, Error> {
        if addr >> 48 != u64::from(self.number) {
            return Err(Error::Stale("the address is of other memory, or none".into()));
        }
        Ok(Block { granule: addr as u32, generation: (addr >> 32) as u16 })
    }
}

/// Does something with a block of borrowed memory.
fn with<T>(
    at: rborrowed_t,
    addr: rborrow_addr_t,
    body: impl FnOnce(&mut Borrowed, Block) -> Result<T, Error>,
) -> Result<T, Error> {
    BORROWED.with(place(at), |mine| {
        let block = mine.block(addr)?;
        body(&mut mine.memory, block)
    })
}

/// All parts of a list, one behind the other, within one time; `local` says which way. None is begun with
/// unless all could be done.
///
/// # Safety
/// `parts` is NULL or has `count` entries, whose memory is as of rborrow_write or rborrow_read.
unsafe fn all_parts(
    at: rborrowed_t,
    parts: *const rborrow_part,
    count: usize,
    local: impl Fn(*mut u8) -> Local,
    nanoseconds: i64,
) -> Result<(), Error> {
    here()?;
    check(parts, count.saturating_mul(size_of::<rborrow_part>()), "a list")?;
    if count > 0 && !parts.is_aligned() {
        return Err(Error::Invalid(format!("a list at {parts:?}, which is not aligned")));
    }
    // SAFETY: the caller's promise, and not longer than half of the address space.
    let parts = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(parts, count) } };
    let patience = patience(nanoseconds);
    BORROWED.with(place(at), |mine| {
        for part in parts {
            check(part.memory, part.size, "a part")?;
            mine.memory.check_part(mine.block(part.addr)?, part.offset, part.size)?;
        }
        for part in parts {
            let (block, local) = (mine.block(part.addr)?, local(part.memory.cast()));
            // SAFETY: the caller's promise.
            unsafe { mine.memory.transfer(block, part.offset, local, part.size, patience)? };
        }
        Ok(())
    })
}

/// Lends `size` bytes of memory, all zero, to the process of rank `borrower`, and returns when that process
/// has them, by whichever of its calls of this library. From then on this process has nothing to do: it may
/// compute, sleep, or make no call at all. Where the borrower's operations take progress here (frames, MPI)
/// a thread is started, which sleeps while nothing comes. EAGAIN: not within the time; nothing is lent
/// then. EPIPE: the borrower has ended. EOPNOTSUPP: the path takes a thread here, and the program's
/// MPI allows none.
///
/// # Safety
/// `lent` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlend(lent: *mut rlent_t, borrower: c_int, size: usize, nanoseconds: i64) -> c_int {
    status(|| {
        let job = job()?;
        if lent.is_null() {
            return Err(Error::Invalid("there is no place for what is lent".into()));
        }
        let made = Lent::open(&job, rank(borrower)?, size, patience(nanoseconds))?;
        // SAFETY: the program's promise.
        unsafe { lent.write(LENT.keep(made, job.barrier())?.cast()) };
        Ok(())
    })
}

/// Waits until the borrower has given the memory back, so long at most; EAGAIN then. EPIPE: it has ended. No
/// lender has to call it.
///
/// # Safety
/// `lent` is NULL or came from rlend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlend_wait(at: rlent_t, nanoseconds: i64) -> c_int {
    status(|| LENT.with(lent(at), |lent| lent.wait(patience(nanoseconds))))
}

/// Takes the memory back. Calls of the borrower fail with EPIPE, within 100 ms where the memory is mapped.
///
/// # Safety
/// `lent` is NULL or came from rlend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlend_close(at: rlent_t) -> c_int {
    status(|| LENT.take(lent(at)).map(drop))
}

/// Borrows: the oldest memory that the process of rank `lender` lends to this one and that is not borrowed
/// yet. Waits for it, so long at most; EAGAIN then. `policy` is RPIPE_NEXT_FIT and so on, or 0: as
/// STRAIT_RPIPE_POLICY says. EPIPE: the lender has ended. EOPNOTSUPP: the path does not promise that a read
/// finds what was written before it.
///
/// # Safety
/// `borrowed` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow(
    borrowed: *mut rborrowed_t,
    lender: c_int,
    policy: c_uint,
    nanoseconds: i64,
) -> c_int {
    static LAST: AtomicU16 = AtomicU16::new(0);
    status(|| {
        let job = job()?;
        if borrowed.is_null() {
            return Err(Error::Invalid("there is no place for what is borrowed".into()));
        }
        let memory = Borrowed::open(&job, rank(lender)?, chosen(policy)?, patience(nanoseconds))?;
        // 0 is no address; addresses of the last of 65535 are not those of the first.
        let number = loop {
            match LAST.fetch_sub(1, Relaxed).wrapping_sub(1) {
                0 => {}
                number => break number,
            }
        };
        // SAFETY: the program's promise.
        unsafe { borrowed.write(BORROWED.keep(Mine { number, memory }, job.barrier())?.cast()) };
        Ok(())
    })
}

fn chosen(policy: c_uint) -> Result<Option<Policy>, Error> {
    let attr = rpipe_attr { size: 0, iswriter: 1, flags: HD_PIPE | policy, width: 0, heap: 0, slots: 0 };
    match options(&attr)?.policy {
        None if policy != 0 => Err(Error::Invalid("this is no policy".into())),
        chosen => Ok(chosen),
    }
}

/// Allocates a block of borrowed memory. Nothing is sent, and nothing waited for. RADDR_NULL, with errno, if
/// not: ENOBUFS: there is no free block of that length; EMSGSIZE: there never is; EPIPE: the lender has
/// ended, or has taken the memory back.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_malloc(borrowed: rborrowed_t, size: usize) -> rborrow_addr_t {
    // SAFETY: the program's promise.
    unsafe { rborrow_malloc_aligned(borrowed, size, 1) }
}

/// As rborrow_malloc, on a multiple of `align`, a power of two of 4096 at most.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_malloc_aligned(
    borrowed: rborrowed_t,
    size: usize,
    align: usize,
) -> rborrow_addr_t {
    let block =
        || BORROWED.with(place(borrowed), |mine| Ok(packed(mine.number, mine.memory.alloc(size, align)?)));
    guard(block).unwrap_or(RADDR_NULL)
}

/// The bytes of a block, as many as were allocated. -1, with errno, if it is none.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_length(borrowed: rborrowed_t, addr: rborrow_addr_t) -> isize {
    guard(|| with(borrowed, addr, |memory, block| Ok(memory.len(block)? as isize))).unwrap_or(-1)
}

/// The memory of a block, where it is mapped here, for loads and stores: until the block is freed or the
/// memory is given back; also when the lender has ended. NULL, with errno, if it is not mapped (EOPNOTSUPP)
/// or no block (ESTALE).
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_mem(borrowed: rborrowed_t, addr: rborrow_addr_t) -> *mut c_void {
    guard(|| with(borrowed, addr, |memory, block| Ok(memory.address(block)?.cast()))).unwrap_or(null_mut())
}

/// Writes `size` bytes to a block, from its byte `offset` on, without any call of the lender. They are in its
/// memory when the call returns. Waits so long at most; EAGAIN: not all of them are known to be there; write
/// them again. EMSGSIZE: the block has fewer bytes. ESTALE: there is no such block. EPIPE: the lender has
/// ended, or has taken the memory back.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow; `from` has so many bytes, which nothing changes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_write(
    borrowed: rborrowed_t,
    addr: rborrow_addr_t,
    offset: usize,
    from: *const c_void,
    size: usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        here()?;
        check(from, size, "a source")?;
        with(borrowed, addr, |memory, block| {
            // SAFETY: the program's promise.
            unsafe { memory.transfer(block, offset, Local::From(from.cast()), size, patience(nanoseconds)) }
        })
    })
}

/// Reads `size` bytes of a block, from its byte `offset` on, without any call of the lender. A block that was
/// not written has what was there before: zeros at first. Errors are those of rborrow_write.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow; `to` has room for so many bytes, which nothing else uses
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_read(
    borrowed: rborrowed_t,
    addr: rborrow_addr_t,
    offset: usize,
    to: *mut c_void,
    size: usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        here()?;
        check(to, size, "a target")?;
        with(borrowed, addr, |memory, block| {
            // SAFETY: the program's promise.
            unsafe { memory.transfer(block, offset, Local::To(to.cast()), size, patience(nanoseconds)) }
        })
    })
}

/// Frees a block. ESTALE: it was freed before, or is none.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_free(borrowed: rborrowed_t, addr: rborrow_addr_t) -> c_int {
    status(|| with(borrowed, addr, Borrowed::free))
}

/// Writes a list of parts of blocks, in its order, within one time. EINVAL, ESTALE and EMSGSIZE say that a
/// part could not be, and nothing is written then; else errors are those of rborrow_write, and parts up to
/// the one that failed may be there.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow; `parts` is NULL or has `count` entries, and each part's memory
/// has so many bytes, which nothing writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_writev(
    borrowed: rborrowed_t,
    parts: *const rborrow_part,
    count: usize,
    nanoseconds: i64,
) -> c_int {
    let from = |at: *mut u8| Local::From(at.cast_const());
    // SAFETY: the program's promise.
    status(|| unsafe { all_parts(borrowed, parts, count, from, nanoseconds) })
}

/// Reads a list of parts of blocks, in its order, within one time. Else as rborrow_writev.
///
/// # Safety
/// As of rborrow_writev; nothing else uses the memory of the parts meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_readv(
    borrowed: rborrowed_t,
    parts: *const rborrow_part,
    count: usize,
    nanoseconds: i64,
) -> c_int {
    // SAFETY: the program's promise.
    status(|| unsafe { all_parts(borrowed, parts, count, Local::To, nanoseconds) })
}

/// What was done with borrowed memory, and what is in its heap.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow; `stats` is NULL or a structure whose first field is its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_get_stats(borrowed: rborrowed_t, stats: *mut rborrow_stats) -> c_int {
    status(|| {
        // SAFETY: the program's promise.
        let to = unsafe { stats.as_mut() }.filter(|stats| stats.size >= size_of::<rborrow_stats>());
        let to = to.ok_or_else(|| {
            Error::Invalid("rborrow_stats.size has to be sizeof(struct rborrow_stats)".into())
        })?;
        let stats_of = BORROWED.with(place(borrowed), |mine| Ok(mine.memory.stats()))?;
        *to = rborrow_stats {
            size: size_of::<rborrow_stats>(),
            heap: stats_of.heap,
            used: stats_of.usage.used,
            free: stats_of.usage.free,
            largest: stats_of.usage.largest,
            fragmentation: stats_of.usage.fragmentation,
            writes: stats_of.writes,
            written_bytes: stats_of.written_bytes,
            reads: stats_of.reads,
            read_bytes: stats_of.read_bytes,
            mapped: stats_of.mapped.into(),
            thread: stats_of.thread.into(),
            policy: text(&stats_of.policy.to_string()),
            path: text(&stats_of.path),
            path_why: text(&stats_of.path_why),
        };
        Ok(())
    })
}

/// Gives the memory back. Its addresses, and memory at them, are not to be used any more.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_close(borrowed: rborrowed_t) -> c_int {
    status(|| BORROWED.take(place(borrowed)).map(drop))
}
