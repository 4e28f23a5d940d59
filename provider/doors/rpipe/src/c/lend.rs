//! Memory that is lent.

use std::sync::Arc;

use libc::c_int;

use super::calls::ranks;
use super::handles::{job, status};
use super::kept::{Kept, Place};
use super::messages::patience;
use super::types::*;
use crate::lend::finish;
use crate::{Context, Error, Lent, Rank};

/// A thread that waits has a reference of its own: others close meanwhile.
static LENT: Kept<Arc<Lent>> =
    Kept::new("this is no lent memory: it was taken back, or rlend has not made it");

fn lent(at: rlent_t) -> *mut Place<Arc<Lent>> {
    at.cast()
}

/// All is taken back, and the thread that makes progress ends.
pub(super) fn close_all(job: &Context) {
    LENT.take_all().iter().for_each(|lent| lent.close());
    finish(job);
}

pub(super) fn rank(rank: c_int) -> Result<Rank, Error> {
    Rank::try_from(rank).map_err(|_| Error::Invalid(format!("{rank} is no rank")))
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
        unsafe { lent.write(LENT.keep(Arc::new(made), job.barrier())?.cast()) };
        Ok(())
    })
}

/// Lends `size` bytes of memory, all zero, to the `count` processes of the ranks at `borrowers`, all of
/// which reach the same bytes; NULL: to all others of the job, in the order of their ranks. Returns when
/// all of them have it. The first of the list keeps the book: it allocates and frees blocks, and passes
/// their addresses to the others, which call rborrow_attach. With any error the memory is lent to none of
/// them. EPIPE: one of them has ended. Else as rlend.
///
/// # Safety
/// `lent` is NULL or valid for a write; `borrowers` is NULL or has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlend_many(
    lent: *mut rlent_t,
    borrowers: *const c_int,
    count: usize,
    size: usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        let job = job()?;
        if lent.is_null() {
            return Err(Error::Invalid("there is no place for what is lent".into()));
        }
        // SAFETY: the program's promise.
        let mut to = unsafe { ranks(&job, borrowers, count) }?;
        if borrowers.is_null() {
            to.retain(|rank| *rank != job.rank());
        }
        let made = Lent::open_many(&job, &to, size, patience(nanoseconds))?;
        // SAFETY: the program's promise.
        unsafe { lent.write(LENT.keep(Arc::new(made), job.barrier())?.cast()) };
        Ok(())
    })
}

/// Waits until the borrower, or each of several, has given the memory back or has ended, so long at most;
/// EAGAIN then. EPIPE: the borrower, or one of them, has ended before. EINVAL: another thread has taken it
/// back meanwhile. No lender has to call it.
///
/// # Safety
/// `lent` is NULL or came from rlend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlend_wait(at: rlent_t, nanoseconds: i64) -> c_int {
    status(|| LENT.with(lent(at), |lent| Ok(lent.clone()))?.wait(patience(nanoseconds)))
}

/// Takes the memory back. Calls of its borrowers fail with EPIPE, within 100 ms where the memory is mapped.
///
/// # Safety
/// `lent` is NULL or came from rlend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlend_close(at: rlent_t) -> c_int {
    status(|| LENT.take(lent(at)).map(|lent| lent.close()))
}
