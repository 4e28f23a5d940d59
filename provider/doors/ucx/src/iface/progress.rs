//! The interface: progress, events.

use std::ffi::{c_int, c_uint};

use link::{speculation_barrier, turns};
use link_api::{Event, Frame, FrameLink, FrameSource, Gone, Link, PeerId, PollFrame, SleepLink, WaitFd};
use ucx_sys::{self as ucx, Status};
use wire::ucx::Kind;

use crate::ffi::guard;
use crate::frame::HEAD;
use crate::state::{Ep, Iface};
use crate::{
    ep::{self, pending},
    iface::rx,
    rma::{coop_begin, coop_help, deferred, remote, serve},
};

/// Messages up to this length are not offered to UCP to keep: copying them is cheaper, and UCP has blocks for
/// so much.
const INLINE: usize = 64;
const _: () = assert!(INLINE <= rx::SHORT);

/// Most frames taken in by one call.
const BATCH: u32 = 16;

/// After how many calls in a row that found nothing one lets another process have the core, where there may
/// be a core for each: there may not, and it may be the one that is waited for.
const PATIENCE: u32 = 1024;

/// After how many calls that took something in a part of the memory that none of them needed is handed back.
const ROUNDS: u32 = 1024;

/// For how many of them a rest counts.
const REST: u32 = 128;

pub(crate) unsafe extern "C" fn progress_enable(iface: ucx::Iface, flags: c_uint) {
    // SAFETY: an interface of ours.
    guard(|| unsafe { (Iface::of(iface).served.host.progress_enable)(iface, flags) });
}

pub(crate) unsafe extern "C" fn progress_disable(iface: ucx::Iface, flags: c_uint) {
    // SAFETY: an interface of ours.
    guard(|| unsafe { (Iface::of(iface).served.host.progress_disable)(iface, flags) });
}

pub(crate) unsafe extern "C" fn progress(iface: ucx::Iface) -> c_uint {
    let this = iface.cast::<Iface>();
    // SAFETY: an interface of ours, which UCX does not close in its own callbacks.
    guard(|| unsafe {
        // Most calls find nothing, and what such a call costs delays what comes meanwhile.
        match (*this).link.poll_frame(FrameSource::Any) {
            PollFrame::Nothing if !(*this).busy => {
                speculation_barrier();
                nothing(this);
                0
            }
            found => advance(this, found),
        }
    })
}

/// Nothing has come.
///
/// # Safety
/// `this` must be an interface of ours.
#[inline]
unsafe fn nothing(this: *mut Iface) {
    // SAFETY: the caller's promise.
    unsafe {
        (*this).budget = ((*this).budget / 2).max(1);
        (*this).empty = (*this).empty.wrapping_add(1);
        if (*this).empty % turns::POLLS == 0 {
            rest(this);
        }
    }
}

/// Takes in what has come, `found` first. Not part of `progress`, which so has few registers to save.
///
/// # Safety
/// `this` must be an interface of ours. Nothing borrows from it while UCX's handlers run.
#[inline(never)]
unsafe fn advance(this: *mut Iface, mut found: PollFrame) -> u32 {
    let mut done = 0;
    // SAFETY: the caller's promise; each borrow ends before a handler is called.
    unsafe {
        let budget = (*this).budget;
        while done < budget {
            let event = match std::mem::replace(&mut found, PollFrame::Unknown) {
                PollFrame::Frame(frame) => Some(Event::Frame(frame)),
                _ => (*this).link.poll(),
            };
            match event {
                None => break,
                Some(Event::Frame(first)) => {
                    let from = first.from;
                    if !receive(this, first) {
                        break;
                    }
                    // Most probably the next one is of the same peer's.
                    if done + 1 < budget {
                        found = (*this).link.poll_frame(FrameSource::Next(from));
                    }
                }
                Some(Event::Closed(peer, why)) => closed(this, peer, why),
                // Of copies by a device, which another interface does.
                Some(
                    Event::Done(..)
                    | Event::Cut(_)
                    | Event::Written(..)
                    | Event::PathChanged(_)
                    | Event::Begun(_),
                ) => {}
            }
            done += 1;
        }
        // A stream of messages is taken in by batches; a single one is handed on at once.
        (*this).budget = if done == budget { (budget * 2).min(BATCH) } else { (budget / 2).max(1) };
        if (*this).busy {
            done += attend(this);
        }
        if done > 0 {
            (*this).empty = 0;
            (*this).rounds += 1;
            if (*this).rounds >= ROUNDS {
                settle(this);
            }
        } else {
            nothing(this);
        }
    }
    done
}

/// A part of the memory is handed back that was not needed since the last such call.
///
/// # Safety
/// `this` must be an interface of ours.
#[cold]
unsafe fn settle(this: *mut Iface) {
    // SAFETY: the caller's promise.
    unsafe {
        (*this).rounds = 0;
        (*this).rx.settle();
    }
}

/// Nothing has come for a while.
///
/// # Safety
/// `this` must be an interface of ours.
#[cold]
unsafe fn rest(this: *mut Iface) {
    // SAFETY: the caller's promise.
    let (no_endpoints, empty) = unsafe {
        if (*this).empty % PATIENCE == 0 {
            (*this).rounds += REST;
            if (*this).rounds >= ROUNDS {
                settle(this);
            }
        }
        ((*this).eps.is_empty(), (*this).empty)
    };
    // A process without endpoints here waits for what comes elsewhere.
    if !no_endpoints && turns::yields(empty, PATIENCE) {
        std::thread::yield_now();
    }
}

/// Takes a frame in; `false`: there is no memory for it, and it stays where it is.
///
/// # Safety
/// As for `advance`.
#[inline]
unsafe fn receive(this: *mut Iface, frame: Frame) -> bool {
    let (from, len) = (frame.from, frame.len);
    // A frame without a head is refused as one that is too long.
    let keep = len.wrapping_sub(HEAD) > INLINE;
    // SAFETY: the caller's promise; a buffer has as much room as it says, zeroed when it was made, and has no
    // other user.
    unsafe {
        let i = &mut *this;
        let Some(buffer) = (if keep { i.rx.take(len) } else { i.rx.take_short() }) else {
            lack(i, frame);
            return false;
        };
        let data = i.rx.data(&buffer);
        let Some([kind, id, ..]) = i.link.receive::<HEAD>(frame, data, buffer.room()) else {
            i.rx.give(buffer);
            log::warn!("dropped a frame of {len} bytes from {}", i.link.peer_addr(from));
            return true;
        };
        let n = len - HEAD;
        if kind == Kind::Am as u8 && usize::from(id) < ucx::UCT_AM_ID_MAX {
            let handler = i.base.am[usize::from(id)];
            let flags = if keep { ucx::UCT_CB_PARAM_FLAG_DESC } else { 0 };
            let status = (handler.cb)(handler.arg, data.cast(), n, flags);
            let i = &mut *this;
            if !keep {
                i.rx.give_short(buffer);
            } else if status == ucx::UCS_INPROGRESS {
                i.rx.lend(buffer);
            } else {
                i.rx.give(buffer);
            }
        } else {
            hear(this, from, [kind, id], std::slice::from_raw_parts(data, n));
            (*this).rx.give(buffer);
        }
    }
    true
}

/// There is no memory for a frame, which is found again: neither it nor what its sender has sent behind it is
/// lost.
#[cold]
fn lack(i: &mut Iface, frame: Frame) {
    let (from, len) = (frame.from, frame.len);
    i.link.land(frame, None);
    if let Some(cure) = i.rx.cure(len) {
        let from = i.link.peer_addr(from);
        log::error!(
            "messages wait (UCS_ERR_NO_MEMORY): no memory for one of {len} bytes from {from}; {cure}"
        );
    }
}

/// A peer went away.
///
/// # Safety
/// As for `advance`.
#[cold]
unsafe fn closed(this: *mut Iface, peer: PeerId, why: Gone) {
    // SAFETY: the caller's promise; endpoints live until they are destroyed.
    unsafe {
        log::debug!("{} went away: {why:?}", (*this).link.peer_addr(peer));
        (*this).remote.forget(peer);
        coop_help::ends(&mut *this, peer);
        (*this).end_readers(peer);
        for ep in (*this).eps.get(&peer).cloned().unwrap_or_default() {
            Ep::fail(ep, ucx::UCS_ERR_CONNECTION_RESET);
        }
        (*this).let_go(peer);
        attend(this);
    }
}

/// What there is to do beyond frames.
///
/// # Safety
/// As for `advance`.
#[cold]
unsafe fn attend(this: *mut Iface) -> u32 {
    let mut done = 0;
    // SAFETY: the caller's promise; what runs handlers of UCX takes endpoints by their address, and
    // asks whether they are still there.
    unsafe {
        (*this).flush_remote();
        done += deferred::progress(this);
        done += coop_help::go_on(&mut *this);
        done += coop_begin::progress(this);
        while let Some(ep) = (*this).failed.pop() {
            done += 1;
            ep::report(this, ep);
        }
        done += pending::dispatch(this);
        let i = &mut *this;
        i.busy = !i.failed.is_empty()
            || !i.waiting.is_empty()
            || !i.remote.sent()
            || !i.deferred.is_empty()
            || !i.shared.is_empty()
            || !i.stuck.is_empty()
            || !i.helping.is_empty();
    }
    done
}

pub(crate) unsafe extern "C" fn event_fd_get(iface: ucx::Iface, fd: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and a place for the answer.
        unsafe { fd.write(Iface::of(iface).link.wait_fd(WaitFd::All).unwrap_or(-1)) };
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn event_arm(iface: ucx::Iface, _events: c_uint) -> Status {
    guard(|| {
        // SAFETY: an interface of ours.
        let i = unsafe { Iface::of(iface) };
        // No ring has a frame for the end of a cooperative copy.
        let shared = !i.shared.is_empty() || !i.stuck.is_empty() || !i.helping.is_empty();
        if shared || !i.failed.is_empty() || !i.deferred.is_empty() {
            return ucx::UCS_ERR_BUSY;
        }
        if i.link.arm() { ucx::UCS_OK } else { ucx::UCS_ERR_BUSY }
    })
}

/// A frame that is no active message came in.
///
/// # Safety
/// `this` must be an interface that no one borrows from. Calls UCX back.
#[cold]
unsafe fn hear(this: *mut Iface, from: PeerId, [kind, second]: [u8; 2], body: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe {
        let what = Kind::from_u8(kind);
        let handled = match what {
            Some(Kind::Request) => serve::serve(&mut *this, from, second, body),
            Some(Kind::Reply) => remote::answered(this, from, second as Status, body),
            Some(Kind::Coop) => coop_help::help(&mut *this, from, second, body),
            Some(Kind::Am) => Err("UCX has no active message of that id"),
            None => Err("that kind is unknown"),
        };
        if let Err(why) = handled {
            let (len, from) = (body.len(), (*this).link.peer_addr(from));
            let what = what.map_or_else(|| format!("kind {kind}"), |what| format!("{what:?}"));
            log::warn!(
                "dropped a malformed frame from {from}, {what}, {second}, {len} bytes: {why}; that peer has a defect or \
                 is no Strait: please report this line"
            );
        }
    }
}
