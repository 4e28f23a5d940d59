//! Pipes as a whole.

use libc::{c_char, c_int, c_uint};

use super::handles::{close, job, keep, status, text, with};
use super::types::*;
use crate::{Context, Device, Error, Pipe, PipeOptions, Policy, Rank, Side, Sync};

/// The ranks that a program gives; all of the job for NULL.
///
/// # Safety
/// `members` is NULL or has so many.
pub(super) unsafe fn ranks(job: &Context, members: *const c_int, count: usize) -> Result<Vec<Rank>, Error> {
    if members.is_null() {
        return Ok((0..job.size()).collect());
    }
    if count > job.size() as usize {
        return Err(Error::Invalid(format!("{count} ranks, and the job has {} processes", job.size())));
    }
    // SAFETY: the caller's promise.
    let members = unsafe { std::slice::from_raw_parts(members, count) };
    let rank = |rank: &c_int| {
        let known = Rank::try_from(*rank).ok().filter(|known| *known < job.size());
        known.ok_or_else(|| {
            Error::Invalid(format!("there is no rank {rank}: the job has {} processes", job.size()))
        })
    };
    members.iter().map(rank).collect()
}

pub(super) fn options(attr: &rpipe_attr) -> Result<PipeOptions, Error> {
    const POLICY: u32 = 0xf00;
    const KNOWN: u32 = HD_PIPE
        | FD_PIPE
        | RPIPE_EAGER
        | RPIPE_PULL
        | POLICY
        | RPIPE_DEFERRED
        | RPIPE_IMMEDIATE
        | RPIPE_DEVICE
        | RPIPE_NUMBERS;
    let flags = attr.flags;
    let wrong = |what: &str| Error::Invalid(format!("flags {flags:#x}: {what}"));
    if flags & !KNOWN != 0 {
        return Err(wrong("there are others than this version knows"));
    }
    let side = match flags & (HD_PIPE | FD_PIPE) {
        HD_PIPE if attr.iswriter != 0 => Side::Writer,
        HD_PIPE => Side::Reader,
        FD_PIPE => Side::Both,
        _ => return Err(wrong("one of HD_PIPE and FD_PIPE has to be there")),
    };
    let policy = match flags & POLICY {
        0 => None,
        RPIPE_NEXT_FIT => Some(Policy::NextFit),
        RPIPE_FIRST_FIT => Some(Policy::FirstFit),
        RPIPE_BEST_FIT => Some(Policy::BestFit),
        RPIPE_WORST_FIT => Some(Policy::WorstFit),
        _ => return Err(wrong("one policy at most")),
    };
    let sync = match flags & (RPIPE_DEFERRED | RPIPE_IMMEDIATE) {
        0 => None,
        RPIPE_DEFERRED => Some(Sync::Deferred),
        RPIPE_IMMEDIATE => Some(Sync::Immediate),
        _ => return Err(wrong("RPIPE_DEFERRED or RPIPE_IMMEDIATE, not both")),
    };
    let unless_zero = |n: usize| Some(n).filter(|n| *n != 0);
    Ok(PipeOptions {
        width: unless_zero(attr.width).map(|width| width as u64),
        heap: unless_zero(attr.heap),
        slots: unless_zero(attr.slots),
        policy,
        sync,
        pull: flags & RPIPE_PULL != 0,
        eager: flags & RPIPE_EAGER != 0,
        device: (flags & RPIPE_DEVICE != 0).then(Device::default),
        numbers: flags & RPIPE_NUMBERS != 0,
        ..PipeOptions::new(side)
    })
}

fn open(peer: c_int, attr: &rpipe_attr) -> Result<rpipe_t, Error> {
    let peer = Rank::try_from(peer).map_err(|_| Error::Invalid(format!("{peer} is no rank")))?;
    let job = job()?;
    keep(Pipe::open(&job, peer, &options(attr)?)?, job.barrier())
}

/// Makes an end of a pipe to a peer, whose messages have `width` bytes at most. The peer makes the other end,
/// at any time; the first that a process makes to a peer leads to the first that the peer makes, and so on.
/// Programs call it as rpipe.
///
/// # Safety
/// `rp` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_open(
    rp: *mut rpipe_t,
    peer: c_int,
    iswriter: c_int,
    width: usize,
    flags: c_uint,
) -> c_int {
    let attr = rpipe_attr { size: size_of::<rpipe_attr>(), iswriter, flags, width, heap: 0, slots: 0 };
    // SAFETY: the program's promise.
    unsafe { rpipe_open_attr(rp, peer, &raw const attr) }
}

/// As rpipe_open, with all that can be said of a pipe.
///
/// # Safety
/// `rp` is NULL or valid for a write; `attr` is NULL or a structure that begins with its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_open_attr(rp: *mut rpipe_t, peer: c_int, attr: *const rpipe_attr) -> c_int {
    status(|| {
        // SAFETY: the program's promise.
        let attr = unsafe { attr.as_ref() }.filter(|attr| attr.size >= size_of::<rpipe_attr>());
        let attr =
            attr.ok_or_else(|| Error::Invalid("rpipe_attr.size has to be sizeof(struct rpipe_attr)".into()))?;
        if rp.is_null() {
            return Err(Error::Invalid("there is no place for the pipe".into()));
        }
        // SAFETY: it is not NULL: valid for a write by the program's promise.
        unsafe { rp.write(open(peer, attr)?) };
        Ok(())
    })
}

/// Closes an end, after what was written has left. Addresses of the pipe, and memory at them, are not to be
/// used any more. The peer reads what was written, and then its calls fail with EPIPE. ETIMEDOUT: the end is
/// closed, and some of what was written may be lost (STRAIT_RPIPE_LINGER).
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_close(rp: rpipe_t) -> c_int {
    status(|| close(rp))
}

/// Chooses blocks by another policy from now on: RPIPE_NEXT_FIT and so on. The writer's end only.
///
/// # Safety
/// `rp` is NULL or came from rpipe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_set_policy(rp: rpipe_t, policy: c_uint) -> c_int {
    status(|| {
        let attr = rpipe_attr { size: 0, iswriter: 1, flags: HD_PIPE | policy, width: 0, heap: 0, slots: 0 };
        let policy = options(&attr)?.policy.ok_or_else(|| Error::Invalid("this is no policy".into()))?;
        with(rp, |pipe, _| pipe.set_policy(policy))
    })
}

/// What a pipe has done and has now.
///
/// # Safety
/// `rp` is NULL or came from rpipe; `stats` is NULL or a structure whose first field is its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpipe_get_stats(rp: rpipe_t, stats: *mut rpipe_stats) -> c_int {
    status(|| {
        // SAFETY: the program's promise.
        let to = unsafe { stats.as_mut() }.filter(|stats| stats.size >= size_of::<rpipe_stats>());
        let to =
            to.ok_or_else(|| Error::Invalid("rpipe_stats.size has to be sizeof(struct rpipe_stats)".into()))?;
        *to = with(rp, |pipe, _| Ok(of_pipe(pipe)))?;
        Ok(())
    })
}

fn of_pipe(pipe: &Pipe) -> rpipe_stats {
    let (writer, reader) = (pipe.writer_stats(), pipe.reader_stats());
    let (policy, sync) = match &writer {
        Some((_, policy, sync)) => (policy.to_string(), sync.to_string()),
        None => Default::default(),
    };
    let written = writer.map(|(stats, ..)| stats);
    let (w, r) = (written.clone().unwrap_or_default(), reader.clone().unwrap_or_default());
    let main = written.or(reader).unwrap_or_default();
    rpipe_stats {
        size: size_of::<rpipe_stats>(),
        heap: main.heap,
        used: main.used,
        free: main.free,
        largest: main.largest,
        fragmentation: main.fragmentation,
        written: w.messages,
        written_bytes: w.bytes,
        read: r.messages,
        read_bytes: r.bytes,
        syncs: w.syncs + r.syncs,
        tags: w.tags + r.tags,
        flag_mode: text(&main.mode.map_or(String::new(), |mode| mode.to_string())),
        flag_why: text(&main.mode_why),
        path: text(&main.path),
        path_why: text(&main.path_why),
        policy: text(&policy),
        sync: text(&sync),
        in_slot: main.in_slot as u64,
        injected: main.injected as u64,
        injected_why: text(&main.injected_why),
    }
}

/// What the last call of this thread that failed has to say, and what to do about it. The text stays until
/// the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn rerror() -> *const c_char {
    c_abi::last_error()
}
