//! Memory that is borrowed.

use std::collections::BTreeSet;
use std::ptr::{self, null_mut};
use std::sync::{Mutex, PoisonError};

use libc::{c_int, c_uint, c_void};

use super::calls::options;
use super::handles::{guard, here, job, status, text};
use super::kept::{Kept, Place};
use super::lend::rank;
use super::messages::patience;
use super::types::*;
use crate::lend::Local;
use crate::{Atomic, AtomicOp, Block, Borrowed, Error, Patience, Policy, Rank};

static BORROWED: Kept<Mine> =
    Kept::new("this is no borrowed memory: it was given back, or rborrow has not made it");

/// Borrowed memory, with what its addresses have: an address of another is ESTALE.
struct Mine {
    number: Number,
    memory: Borrowed,
}

fn place(at: rborrowed_t) -> *mut Place<Mine> {
    at.cast()
}

/// All is given back that no thread is in.
pub(super) fn close_all() {
    drop(BORROWED.take_all());
}

fn check<T>(at: *const T, size: usize, what: &str) -> Result<(), Error> {
    if at.is_null() && size != 0 || isize::try_from(size).is_err() {
        return Err(Error::Invalid(format!("{what} of {size} bytes at {at:?}: there is no such memory")));
    }
    Ok(())
}

fn packed(number: &Number, block: Block) -> rborrow_addr_t {
    u64::from(number.0) << 48 | u64::from(block.generation) << 32 | u64::from(block.granule)
}

impl Mine {
    fn block(&self, addr: rborrow_addr_t) -> Result<Block, Error> {
        if addr >> 48 != u64::from(self.number.0) {
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
    within(at, addr, Patience::Forever, body)
}

/// The same, whose time another thread's call counts toward.
fn within<T>(
    at: rborrowed_t,
    addr: rborrow_addr_t,
    patience: Patience,
    body: impl FnOnce(&mut Borrowed, Block) -> Result<T, Error>,
) -> Result<T, Error> {
    BORROWED.with_in_time(place(at), patience, |mine| {
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
    BORROWED.with_in_time(place(at), patience, |mine| {
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

/// Borrows: the oldest memory that the process of rank `lender` lends to this one and that is not borrowed
/// yet. Waits for it, so long at most; EAGAIN then. `policy` is RPIPE_NEXT_FIT and so on, or 0: as
/// STRAIT_RPIPE_POLICY says. EPIPE: the lender has ended. EOPNOTSUPP: the path does not promise that a read
/// finds what was written before it. ENOBUFS: another memory that is borrowed here has the same addresses;
/// this one is given back.
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
    status(|| {
        let job = job()?;
        if borrowed.is_null() {
            return Err(Error::Invalid("there is no place for what is borrowed".into()));
        }
        let memory = Borrowed::open(&job, rank(lender)?, chosen(policy)?, patience(nanoseconds))?;
        let number = memory.shared_name().map_or_else(Number::of_one, Number::of_all)?;
        // SAFETY: the program's promise.
        unsafe { borrowed.write(BORROWED.keep(Mine { number, memory }, job.barrier())?.cast()) };
        Ok(())
    })
}

/// What addresses of a memory have, which no other memory's in this process have.
#[derive(Debug)]
struct Number(u16);

/// All of them, and the last one of a memory with one borrower.
static NUMBERS: Mutex<(BTreeSet<u16>, u16)> = Mutex::new((BTreeSet::new(), 0));

/// The bit of numbers that all borrowers of one memory have.
const OF_ALL: u16 = 1 << 15;

impl Number {
    /// Of the only borrower of a memory: not 0, which is no address, and not that of the last 32766
    /// memories.
    fn of_one() -> Result<Number, Error> {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let (used, last) = &mut *numbers;
        for _ in 0..OF_ALL {
            *last = last.wrapping_sub(1) & !OF_ALL;
            if *last != 0 && used.insert(*last) {
                return Ok(Number(*last));
            }
        }
        Err(Error::Full("32767 memories are borrowed here: give one back (rborrow_close)".into()))
    }

    /// Of all borrowers of one memory, which get it without a message: the lender's rank and which memory
    /// of its it is, both modulo 181.
    fn of_all((lender, ordinal): (Rank, u32)) -> Result<Number, Error> {
        let number = OF_ALL | ((lender % 181) * 181 + ordinal % 181) as u16;
        if NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).0.insert(number) {
            return Ok(Number(number));
        }
        Err(Error::Full(format!(
            "addresses of this memory would be those of another that is borrowed here, of a lender whose rank \
             differs from {lender} by a multiple of 181, or 181 loans ago: give that back (rborrow_close) first. \
             This one is given back"
        )))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).0.remove(&self.0);
    }
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
/// ended, or has taken the memory back; EPERM: of several borrowers another one keeps the book.
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
        || BORROWED.with(place(borrowed), |mine| Ok(packed(&mine.number, mine.memory.alloc(size, align)?)));
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

/// Writes `size` bytes to a block, from its byte `offset` on, without any call of the lender. They are in
/// its memory when the call returns. Waits so long at most; EAGAIN: not all of them are known to be there,
/// and some may arrive until another call here has returned something else; write all of them again.
/// EMSGSIZE: the block has fewer bytes. ESTALE: there is no such block. EPIPE: the lender has ended, or has
/// taken the memory back.
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
        let patience = patience(nanoseconds);
        within(borrowed, addr, patience, |memory, block| {
            // SAFETY: the program's promise.
            unsafe { memory.transfer(block, offset, Local::From(from.cast()), size, patience) }
        })
    })
}

/// Reads `size` bytes of a block, from its byte `offset` on, without any call of the lender. A block that
/// was not written has what was there before: zeros at first. Errors are those of rborrow_write.
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
        let patience = patience(nanoseconds);
        within(borrowed, addr, patience, |memory, block| {
            // SAFETY: the program's promise.
            unsafe { memory.transfer(block, offset, Local::To(to.cast()), size, patience) }
        })
    })
}

/// Frees a block. ESTALE: it was freed before, or is none. EPERM: of several borrowers another one keeps the
/// book.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_free(borrowed: rborrowed_t, addr: rborrow_addr_t) -> c_int {
    status(|| with(borrowed, addr, Borrowed::free))
}

/// Makes a block usable here which the first of several borrowers has allocated: `addr` is the address
/// there, which a message has brought, and `size` its bytes, or how many of its first are used. The address
/// is then the block's here too. Nothing is sent. Blocks that were attached at bytes of it end here, since
/// they were freed before. ESTALE: the address is of other memory. EMSGSIZE: it is not inside of what was
/// lent. The book's keeper may call it too: EMSGSIZE: the block has fewer bytes, ESTALE: there is no such
/// block.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_attach(borrowed: rborrowed_t, addr: rborrow_addr_t, size: usize) -> c_int {
    status(|| with(borrowed, addr, |memory, block| memory.attach(block, size)))
}

/// Ends rborrow_attach: the address is ESTALE here. It frees nothing; the book's keeper does that.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_detach(borrowed: rborrowed_t, addr: rborrow_addr_t) -> c_int {
    status(|| with(borrowed, addr, Borrowed::detach))
}

fn atomic(what: c_uint, operand: u64, compare: u64) -> Result<Atomic, Error> {
    let wide = match what & 0xf {
        RPIPE_INT32 | RPIPE_UINT32 => Some(false),
        RPIPE_INT64 | RPIPE_UINT64 => Some(true),
        _ => None,
    };
    let op = match what & !0xf {
        RPIPE_SUM => Some(AtomicOp::Sum),
        RPIPE_AND => Some(AtomicOp::And),
        RPIPE_OR => Some(AtomicOp::Or),
        RPIPE_XOR => Some(AtomicOp::Xor),
        RPIPE_SWAP => Some(AtomicOp::Swap),
        RPIPE_COMPARE_SWAP => Some(AtomicOp::CompareSwap),
        _ => None,
    };
    let known = op.zip(wide).map(|(op, wide)| Atomic { op, wide, operand, compare });
    known.ok_or_else(|| {
        Error::Invalid(format!(
            "{what:#x} is no atomic operation: it is a type of integers and RPIPE_SUM, _AND, _OR, _XOR, _SWAP or \
             _COMPARE_SWAP, such as RPIPE_UINT64 | RPIPE_SUM"
        ))
    })
}

/// An atomic operation on a word of a block: `what` is a type, RPIPE_INT32, RPIPE_UINT32, RPIPE_INT64 or
/// RPIPE_UINT64, and RPIPE_SUM, RPIPE_AND, RPIPE_OR, RPIPE_XOR, RPIPE_SWAP or RPIPE_COMPARE_SWAP, as
/// RPIPE_UINT64 | RPIPE_SUM. The word begins `offset` bytes into the block, a multiple of its own bytes, 4
/// or 8; of one of 4 bytes the lower halves of the numbers count. RPIPE_COMPARE_SWAP alone uses `compare`.
/// What the word was comes to `old`, with zeros above 4 bytes; NULL: it is not wanted. Sums wrap; a sum
/// with 0 reads. Atomic among all borrowers, over every path, and with the atomic instructions of the
/// lender's and the borrowers' processors; rborrow_write is not.
///
/// Waits so long at most; EAGAIN: it may be done or not. The same call again, with the same numbers, gets
/// what it has found, and does it no second time: it is made until it returns something else. EINVAL: this
/// is no operation, or the word is not aligned. Else errors are those of rborrow_write.
///
/// # Safety
/// `borrowed` is NULL or came from rborrow; `old` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rborrow_atomic(
    borrowed: rborrowed_t,
    addr: rborrow_addr_t,
    offset: usize,
    what: c_uint,
    operand: u64,
    compare: u64,
    old: *mut u64,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        let atomic = atomic(what, operand, compare)?;
        let patience = patience(nanoseconds);
        let was = within(borrowed, addr, patience, |memory, block| {
            memory.atomic(block, offset, &atomic, patience)
        })?;
        // SAFETY: the program's promise.
        if let Some(old) = unsafe { old.as_mut() } {
            *old = was;
        }
        Ok(())
    })
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
        // Programs may have been compiled before there was more.
        const LEAST: usize = std::mem::offset_of!(rborrow_stats, atomics);
        // SAFETY: the program's promise.
        let size = if stats.is_null() { 0 } else { unsafe { stats.cast::<usize>().read() } };
        if size < LEAST {
            return Err(Error::Invalid("rborrow_stats.size has to be sizeof(struct rborrow_stats)".into()));
        }
        let size = if size < size_of::<rborrow_stats>() { LEAST } else { size_of::<rborrow_stats>() };
        let stats_of = BORROWED.with(place(borrowed), |mine| Ok(mine.memory.stats()))?;
        let made = rborrow_stats {
            size,
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
            policy: text(&stats_of.policy.map_or(String::new(), |policy| policy.to_string())),
            path: text(&stats_of.path),
            path_why: text(&stats_of.path_why),
            atomics: stats_of.atomics,
            keeper: stats_of.keeper.map_or(-1, |rank| rank as c_int),
        };
        // SAFETY: the program's structure has so many bytes, as it says, and this one has as many.
        unsafe { ptr::from_ref(&made).cast::<u8>().copy_to_nonoverlapping(stats.cast(), size) };
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_memories_that_are_borrowed_at_one_time_differ() {
        let of_one: Vec<Number> = (0..32_767).map(|_| Number::of_one().unwrap()).collect();
        assert!(of_one.iter().all(|number| number.0 != 0 && number.0 & OF_ALL == 0));
        assert_eq!(of_one.iter().map(|number| number.0).collect::<BTreeSet<_>>().len(), 32_767);
        assert!(matches!(Number::of_one(), Err(Error::Full(_))));
        let all = (0..181).flat_map(|a| (1..182).map(move |b| (a, b)));
        let of_all: Vec<Number> = all.map(|name| Number::of_all(name).unwrap()).collect();
        assert!(of_all.iter().all(|number| number.0 & OF_ALL != 0));
        for name in [(181, 1), (0, 182), (362, 181)] {
            assert!(matches!(Number::of_all(name), Err(Error::Full(why)) if why.contains("rborrow_close")));
        }
        drop((of_one, of_all));
        assert!(Number::of_all((181, 1)).is_ok() && Number::of_one().is_ok());
    }
}
