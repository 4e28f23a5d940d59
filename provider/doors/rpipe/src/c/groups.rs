//! Groups: broadcast and neighbour exchange; `collectives` has the other calls.

use libc::{c_int, c_void};

use super::calls::ranks;
use super::handles::{here, job, status};
use super::kept::{Kept, Place};
use super::messages::patience;
use super::types::*;
use crate::group::Exchange;
use crate::{Error, Group, Rank};

pub(super) static ALL: Kept<Group> =
    Kept::new("this is no open group: it was closed, or rpipe_group_open has not made it");

pub(super) fn place(group: rpipe_group_t) -> *mut Place<Group> {
    group.cast()
}

/// All are closed that no thread is in.
pub(super) fn close_all() -> Result<(), Error> {
    ALL.take_all().into_iter().map(|mut group| group.close()).fold(Ok(()), Result::and)
}

pub(super) fn check(at: *const c_void, size: usize, what: &str) -> Result<(), Error> {
    if at.is_null() && size != 0 || isize::try_from(size).is_err() {
        return Err(Error::Invalid(format!("{what} of {size} bytes at {at:?}: there is no such memory")));
    }
    Ok(())
}

pub(super) fn rank_of(rank: c_int) -> Result<Rank, Error> {
    Rank::try_from(rank).map_err(|_| Error::Invalid(format!("{rank} is no rank")))
}

/// Makes a group of these ranks, this process's among them, in the same order at each of them; NULL: all
/// processes of the job. Nothing is sent before it is used. Two processes that are in several groups
/// together, or have full-duplex pipes to each other, make all these in the same order.
///
/// # Safety
/// `group` is NULL or valid for a write; `members` is NULL or has so many ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_group_open(
    group: *mut rpipe_group_t,
    members: *const c_int,
    count: usize,
) -> c_int {
    status(|| {
        let job = job()?;
        if group.is_null() {
            return Err(Error::Invalid("there is no place for the group".into()));
        }
        // SAFETY: the program's promise.
        let ranks = unsafe { ranks(&job, members, count)? };
        let made = ALL.keep(Group::open(&job, &ranks)?, job.barrier())?;
        // SAFETY: it is not NULL: valid for a write by the program's promise.
        unsafe { group.write(made.cast()) };
        Ok(())
    })
}

/// Broadcast: the `size` bytes of the member of rank `root` come to all others. Each member calls it, with
/// the same root and size, and returns when its part is done: the root may return before others have the
/// bytes. EPIPE: a member that this one needs has ended, or its call has failed; rerror names it. EMSGSIZE,
/// EINVAL: the members do not call the same. After any of these the group is over: each call of it fails, at
/// all members that wait for one another; close it, and make another one of those that are left.
///
/// # Safety
/// `group` is NULL or came from rpipe_group_open; `buffer` has so many bytes, which nothing else uses
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_bcast(
    group: rpipe_group_t,
    root: c_int,
    buffer: *mut c_void,
    size: usize,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { rpipe_bcast_timed(group, root, buffer, size, RPIPE_FOREVER) }
}

/// As rpipe_bcast, and takes so long at most. ETIMEDOUT: it has taken longer; rerror names the members that
/// were waited for. The group is over then: the calls of the others fail with EPIPE.
///
/// # Safety
/// Those of rpipe_bcast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_bcast_timed(
    group: rpipe_group_t,
    root: c_int,
    buffer: *mut c_void,
    size: usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        here()?;
        check(buffer, size, "a buffer")?;
        let root = rank_of(root)?;
        // SAFETY: the program's promise.
        ALL.with(place(group), |group| unsafe {
            group.bcast_at(root, buffer.cast(), size, patience(nanoseconds))
        })
    })
}

/// Neighbour exchange: sends to each neighbour, and receives from each. A neighbour is a member that calls
/// it, too, and has this one among its neighbours; members that have none need not call it. Messages may have
/// any length, up to the room that the receiver gives. Of several neighbours that are one rank the first sent
/// is the first received; this member may be its own. Errors are those of rpipe_bcast.
///
/// # Safety
/// `group` is NULL or came from rpipe_group_open; `neighbors` is NULL or has so many, with the memory that
/// they name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_neighbor_exchange(
    group: rpipe_group_t,
    neighbors: *mut rpipe_neighbor,
    count: usize,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { rpipe_neighbor_exchange_timed(group, neighbors, count, RPIPE_FOREVER) }
}

/// As rpipe_neighbor_exchange, and takes so long at most. ETIMEDOUT is that of rpipe_bcast_timed.
///
/// # Safety
/// Those of rpipe_neighbor_exchange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_neighbor_exchange_timed(
    group: rpipe_group_t,
    neighbors: *mut rpipe_neighbor,
    count: usize,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        here()?;
        if neighbors.is_null() && count != 0 || c_int::try_from(count).is_err() {
            return Err(Error::Invalid(format!("{count} neighbors at {neighbors:?}: there are none")));
        }
        let mut all = Vec::new();
        let none = |_| Error::Exhausted(format!("no memory for {count} neighbors"));
        all.try_reserve_exact(count).map_err(none)?;
        for at in 0..count {
            // SAFETY: the program's promise.
            let one = unsafe { neighbors.add(at).read() };
            check(one.send, one.send_size, "what is sent")?;
            check(one.receive, one.receive_size, "the room for what comes")?;
            let rank = rank_of(one.rank)?;
            all.push(Exchange {
                rank,
                send: (one.send.cast(), one.send_size),
                receive: (one.receive.cast(), one.receive_size),
                received: 0,
            });
        }
        // SAFETY: the program's promise, of the memory of each neighbor.
        let done =
            ALL.with(place(group), |group| unsafe { group.exchange_at(&mut all, patience(nanoseconds)) });
        for (at, one) in all.iter().enumerate() {
            // SAFETY: one of the `count` neighbors of the program's promise.
            unsafe { (*neighbors.add(at)).received = one.received };
        }
        done
    })
}

/// Closes a group. Others that wait for this member get EPIPE.
///
/// # Safety
/// `group` is NULL or came from rpipe_group_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_group_close(group: rpipe_group_t) -> c_int {
    status(|| ALL.take(place(group))?.close())
}
