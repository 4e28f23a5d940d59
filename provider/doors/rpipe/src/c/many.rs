//! The readers' ends of many writers.

use std::sync::Arc;

use libc::c_int;

use super::active::handle;
use super::calls::{options, ranks};
use super::handles::{Member, close_member, guard, here, job, keep_member, packed, status, with};
use super::kept::{Kept, Place};
use super::messages::{is_enough, patience};
use super::types::*;
use crate::many::several::Turns;
use crate::many::{all_are_gone, is_end};
use crate::{Context, Error, Patience, Pipe, PipeOptions, Rank};

/// The ends that a program has a pointer to.
pub(super) struct Ends {
    context: Arc<Context>,
    members: Vec<Member>,
    ranks: Vec<Rank>,
    turns: Turns,
}

static ALL: Kept<Ends> = Kept::new(
    "these are no open ends of many writers: they were closed, or rpipe_many_open has not made them",
);

fn place(many: rpipe_many_t) -> *mut Place<Ends> {
    many.cast()
}

/// All are forgotten; the pipes of them are closed with all others.
pub(super) fn forget_all() {
    drop(ALL.take_all());
}

/// Makes the readers' ends of pipes from `count` writers, which are read as one; `peers` are their ranks, in
/// any order, or NULL for all other processes of the job. Each writer opens its end by rpipe, as that of any
/// other pipe. A heap is made when its writer begins. Of `attr`, which may be NULL for pipes of any width,
/// `iswriter` says nothing, and FD_PIPE is refused.
///
/// # Safety
/// `many` is NULL or valid for a write; `peers` is NULL or has so many ranks; `attr` is NULL or a structure
/// that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_many_open(
    many: *mut rpipe_many_t,
    peers: *const c_int,
    count: usize,
    attr: *const rpipe_attr,
) -> c_int {
    status(|| {
        let job = job()?;
        if many.is_null() {
            return Err(Error::Invalid("there is no place for the ends".into()));
        }
        let usual = rpipe_attr {
            size: size_of::<rpipe_attr>(),
            iswriter: 0,
            flags: HD_PIPE,
            width: RPIPE_UNBOUNDED,
            heap: 0,
            slots: 0,
        };
        // SAFETY: the program's promise.
        let attr = unsafe { attr.as_ref() }.unwrap_or(&usual);
        if attr.size < size_of::<rpipe_attr>() {
            return Err(Error::Invalid("rpipe_attr.size has to be sizeof(struct rpipe_attr)".into()));
        }
        if attr.flags & FD_PIPE != 0 {
            return Err(Error::Invalid("FD_PIPE: many writers have one reader, and HD_PIPE each".into()));
        }
        let options = options(&rpipe_attr { iswriter: 0, ..*attr })?;
        // SAFETY: the program's promise.
        let mut ranks = unsafe { ranks(&job, peers, count)? };
        if peers.is_null() {
            ranks.retain(|rank| *rank != job.rank());
        }
        if ranks.contains(&job.rank()) {
            return Err(Error::Invalid(format!("rank {} is this process, and no writer to it", job.rank())));
        }
        if ranks.is_empty() {
            return Err(Error::Invalid("there are no writers: a job of one process, or a count of 0".into()));
        }
        let members = open(&job, &ranks, &options)?;
        let turns = Turns::new(members.len(), options.eager);
        let (context, barrier) = (job.clone(), job.barrier());
        let made = ALL.keep(Ends { context, members: members.clone(), ranks, turns }, barrier);
        let made = made.inspect_err(|_| {
            let _ = close_members(&members);
        })?;
        // SAFETY: the program's promise.
        unsafe { many.write(made.cast()) };
        Ok(())
    })
}

fn open(job: &Arc<Context>, ranks: &[Rank], options: &PipeOptions) -> Result<Vec<Member>, Error> {
    let mut members = Vec::with_capacity(ranks.len());
    for rank in ranks {
        match Pipe::open(job, *rank, options).and_then(|pipe| keep_member(pipe, job.barrier())) {
            Ok(rp) => members.push(Member(rp)),
            Err(fault) => {
                let _ = close_members(&members);
                return Err(fault);
            }
        }
    }
    Ok(members)
}

fn close_members(members: &[Member]) -> Result<(), Error> {
    members.iter().map(|member| close_member(member.0)).fold(Ok(()), Result::and)
}

/// Waits for the next message of any writer, of `size` bytes at most, so long at most, and gives its address,
/// its pipe, for rmem, and its writer's rank. Writers come in turn: each that has written gets one message
/// read before another gets a second one. A longer message stays (EMSGSIZE). Active messages are handled, by
/// what rhandle has registered with their pipe. EPIPE: the writer of this rank and pipe has ended, and all
/// that it wrote was read; each writer's end is reported once. When all writers have ended, EPIPE comes with
/// the rank -1. EAGAIN: not within the time. `from` and `source` may be NULL.
///
/// # Safety
/// `many` is NULL or came from rpipe_many_open; `addr`, `from` and `source` are each NULL or valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_many_read(
    many: rpipe_many_t,
    addr: *mut raddr_t,
    size: usize,
    from: *mut rpipe_t,
    source: *mut c_int,
    nanoseconds: i64,
) -> c_int {
    status(|| {
        if addr.is_null() {
            return Err(Error::Invalid("there is no place for the address".into()));
        }
        let report = |rp: rpipe_t, rank: c_int| {
            if !from.is_null() {
                // SAFETY: the program's promise.
                unsafe { from.write(rp) };
            }
            if !source.is_null() {
                // SAFETY: it is not NULL: valid for a write by the program's promise.
                unsafe { source.write(rank) };
            }
        };
        report(std::ptr::null_mut(), -1);
        let (time, mut handled) = (patience(nanoseconds), 0);
        let read = loop {
            // A handler may call every function, also of these ends.
            match ALL.with(place(many), |ends| next(ends, size, time, report))? {
                (read, 0, ..) => break read,
                (read, handler, rp, rank) => handle(rp, read, handler).map_err(|fault| {
                    report(rp, rank as c_int);
                    fault.of(rank)
                })?,
            }
            is_enough(time, &mut handled)?;
        };
        // SAFETY: it is not NULL: valid for a write by the program's promise.
        unsafe { addr.write(read) };
        Ok(())
    })
}

/// The next message of any writer, with the number of its handler or 0, its pipe, and its writer's rank.
fn next(
    ends: &mut Ends,
    size: usize,
    time: Patience,
    report: impl Fn(rpipe_t, c_int),
) -> Result<(raddr_t, u16, rpipe_t, Rank), Error> {
    let Ends { context, members, ranks, turns } = ends;
    loop {
        if turns.is_empty() {
            return Err(all_are_gone());
        }
        let at = turns.wait(&mut members[..], context, time)?;
        let (Member(rp), rank) = (members[at], ranks[at]);
        let read = with(rp, |pipe, id| {
            let read = pipe.read_if_any(size, time)?;
            Ok(read.map(|(address, _, handler)| (packed(id, address), handler)))
        });
        match read {
            Ok(None) => {}
            Ok(Some((read, handler))) => {
                if handler == 0 {
                    report(rp, rank as c_int);
                }
                return Ok((read, handler, rp, rank));
            }
            Err(fault) => {
                // What the writer has sent may only wait for a descriptor.
                let waits = matches!(fault, Error::Exhausted(_)) && !with(rp, |pipe, _| Ok(pipe.is_over()))?;
                if is_end(&fault) && !waits {
                    turns.remove(at);
                }
                if fault != Error::Again {
                    report(rp, rank as c_int);
                }
                return Err(fault.of(rank));
            }
        }
    }
}

/// The pipe of the writer of this rank, for rhandle and rpipe_get_stats. It is read by rpipe_many_read alone,
/// and closed by rpipe_many_close. NULL, with errno, if there is none.
///
/// # Safety
/// `many` is NULL or came from rpipe_many_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_many_pipe(many: rpipe_many_t, rank: c_int) -> rpipe_t {
    guard(|| {
        ALL.with(place(many), |ends| {
            let at = ends.ranks.iter().position(|one| c_int::try_from(*one) == Ok(rank));
            let at = at.ok_or_else(|| Error::Invalid(format!("rank {rank} is none of these writers")))?;
            Ok(ends.members[at].0)
        })
    })
    .unwrap_or(std::ptr::null_mut())
}

/// Closes the ends. Addresses of their pipes, and memory at them, are not to be used any more.
///
/// # Safety
/// `many` is NULL or came from rpipe_many_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_many_close(many: rpipe_many_t) -> c_int {
    status(|| {
        here()?;
        close_members(&ALL.take(place(many))?.members)
    })
}
