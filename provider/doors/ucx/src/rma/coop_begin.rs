//! Large puts and gets by CMA, which both sides copy.
//!
//! One core's copy is far from what the memory can do. So the side that puts or gets opens a counter that
//! both sides can reach, says where its memory is, and copies piece after piece, each taken from the counter.
//! The owner of the remote memory, if its progress comes to it meanwhile, takes pieces too and copies them
//! the other way round. If not, it takes none, and all is copied here as it would have been anyway: no side
//! waits for the other to begin.
//!
//! When there are no more pieces, the owner reports in shared memory how many it has done. Until then an
//! operation of which it took any is in flight. If it is cancelled or its endpoint destroyed, the owner's
//! permission ends ([`RmaLink::revoke`]), so that UCX's memory is not accessed once it was given back.

use arrayvec::ArrayVec;
use link::ShmLink;
use link_api::{Channel, FrameLink, Grant, Link, Revoke, RmaLink, Way};
use ucx_sys::{self as ucx, Completion, Status};
use wire::Seg;
use wire::ucx::{CoopOffer, Head, Kind};
use xfer::{CoopCopy, Cut};
use zerocopy::IntoBytes;

use crate::ffi::complete;
use crate::iface::attr::MAX_IOV;
use crate::md::region::Slot;
use crate::rma::coop_state::{Access, Shared, request};
use crate::rma::direct;
use crate::state::{Ep, Iface};

/// Longest frame that announces a cooperative copy.
const MAX: usize = Head::LEN + size_of::<CoopOffer>() + MAX_IOV * size_of::<Seg>();
const _: () = assert!(MAX <= crate::frame::MAX_FRAME);

/// Bytes from which on it is worth a frame, and from which on also where more of the peer's frames wait: of
/// many short ones in a row each side has enough to do.
const LEAST: usize = 32 << 10;
const LEAST_IN_A_ROW: usize = 128 << 10;

/// Copies together with the owner, if that is worth it. `None`: it is not, and nothing was done.
pub(crate) fn start(e: &mut Ep, access: &Access) -> Option<Status> {
    if access.len < LEAST || access.comp.is_null() || !e.helper.is_worth_asking() {
        return None;
    }
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    if access.len < LEAST_IN_A_ROW && i.link.has_frames_of(e.peer) {
        return None;
    }
    let cut = Cut::of(access.len);
    let share = i.link.pieces_open(e.peer)?;
    let way = if access.put { Way::Put } else { Way::Get };
    let mut copy = CoopCopy::open(e.peer, share, access.len, cut, Grant::Agreed, way);
    let about = CoopOffer {
        addr: access.addr.into(),
        len: (copy.len as u64).into(),
        piece: (cut.piece as u64).into(),
        counter: CoopOffer::name(share.slot, share.generation),
        slot: Slot::to_wire(direct::slot(access.rkey)),
        zero: 0.into(),
    };
    let mut frame = ArrayVec::<u8, MAX>::new();
    let mut say = |bytes: &[u8]| frame.try_extend_from_slice(bytes);
    let mut said = say(&Head::bytes(Kind::Coop, access.put.into())).and_then(|()| say(about.as_bytes()));
    for part in &access.local {
        let part = Seg { addr: part.addr().into(), len: (part.len() as u64).into() };
        said = said.and_then(|()| say(part.as_bytes()));
    }
    let peer = e.peer;
    let remote = [Seg { addr: access.addr.into(), len: (access.len as u64).into() }];
    let copied = direct::access(access.rkey, || {
        if said.is_err() || i.link.send(peer, &frame, &[], 0, 0).is_err() {
            return None;
        }
        copy.run(&mut i.link, &access.local, &remote, usize::MAX, |_, _| false);
        Some(())
    });
    match copied {
        Ok(Some(())) => {}
        refused => {
            i.link.pieces_close(peer, share);
            return refused.err();
        }
    }
    let theirs = copy.theirs();
    e.helper.has_taken(theirs);
    log::trace!("{} copies {theirs} pieces of {}, {} bytes", i.link.peer_addr(peer), cut.pieces, access.len);
    let over = if theirs == 0 { Some(copy.failed().is_none()) } else { None };
    let mut shared = Shared { ep: &raw mut *e, copy, access: access.clone() };
    let Some(good) = over.or_else(|| shared.over(&i.link)) else {
        e.has_asked();
        i.shared.push(shared);
        i.busy = true;
        return Some(ucx::UCS_INPROGRESS);
    };
    let good = good && finish(&mut i.link, &mut shared);
    i.link.pieces_close(peer, share);
    Some(if good { ucx::UCS_OK } else { transfer_again(e, access) })
}

/// Copies the last bytes of a put, all others of which are there; whether that went well.
fn finish<E>(link: &mut ShmLink, shared: &mut Shared<E>) -> bool {
    let Shared { copy, access, .. } = shared;
    let remote = [Seg { addr: access.addr.into(), len: (access.len as u64).into() }];
    matches!(direct::access(access.rkey, || copy.finish(link, &access.local, &remote)), Ok(Ok(())))
}

/// Some piece could not be copied: all of it again, without the owner's help.
#[cold]
fn transfer_again(e: &mut Ep, access: &Access) -> Status {
    e.helper.has_failed();
    direct::transfer(e, access).unwrap_or_else(|status| status)
}

/// Completes what owners are done with; how many.
///
/// # Safety
/// `this` must be an interface that no one borrows from. Calls UCX back.
pub(crate) unsafe fn progress(this: *mut Iface) -> u32 {
    // SAFETY: the caller's promise.
    let mut n = unsafe { progress_stuck(this) };
    // SAFETY: the caller's promise; an endpoint that goes takes what it has here along.
    unsafe {
        while let Some((at, good)) =
            (*this).shared.iter().enumerate().find_map(|(at, s)| Some((at, s.over(&(*this).link)?)))
        {
            let mut shared = (*this).shared.swap_remove(at);
            let good = good && finish(&mut (*this).link, &mut shared);
            let Shared { ep, copy, access } = shared;
            (*this).link.pieces_close(copy.peer, copy.counter);
            let status = if good { ucx::UCS_OK } else { transfer_again(&mut *ep, &access) };
            if status == ucx::UCS_ERR_NO_RESOURCE {
                (*this).defer(ep, access);
                continue;
            }
            if status != ucx::UCS_INPROGRESS {
                complete(access.comp, status);
            }
            if (*this).has(ep) {
                Ep::answered(ep);
            }
            n += 1;
        }
    }
    n
}

/// Forgets an endpoint's operations, whose owners access no memory of theirs any more when this returns;
/// their completions. One whose owner is stopped inside a copy completes when the owner has left it, or has
/// ended: see [`stuck`].
pub(crate) fn abandon(i: &mut Iface, ep: *mut Ep) -> Vec<*mut Completion> {
    let mut out = Vec::new();
    while let Some(at) = i.shared.iter().position(|s| s.ep == ep) {
        let s = i.shared.swap_remove(at);
        // No piece is taken any more, and none that was taken is copied any more.
        let CoopCopy { peer, counter, .. } = s.copy;
        i.link.pieces_close(peer, counter);
        let left =
            s.over(&i.link).is_some() || i.link.revoke(Revoke::Request(peer, request(counter))).is_ok();
        match left {
            true => out.push(s.access.comp),
            false => i.stuck.push(s),
        }
    }
    out
}

/// How many operations of an endpoint were given up while their owners were inside a copy.
pub(crate) fn stuck(i: &Iface, ep: *mut Ep) -> u32 {
    i.stuck.iter().filter(|s| s.ep == ep).count() as u32
}

/// An endpoint is gone: the operations that were given up have none, also if another endpoint has its place.
pub(crate) fn orphan(i: &mut Iface, ep: *mut Ep) {
    for s in i.stuck.iter_mut().filter(|s| s.ep == ep) {
        s.ep = std::ptr::null_mut();
        s.access.comp = std::ptr::null_mut();
    }
}

/// Completes those of them whose owners have left or ended; how many.
///
/// # Safety
/// As for `progress`.
unsafe fn progress_stuck(this: *mut Iface) -> u32 {
    let mut n = 0;
    let has_left = |i: &Iface, s: &Shared<*mut Ep>| {
        let CoopCopy { peer, counter, .. } = s.copy;
        s.over(&i.link).is_some()
            || !i.link.is_inside(peer, request(counter))
            || i.link.channel(peer) == Channel::Ended
    };
    // SAFETY: the caller's promise; an endpoint is only looked at if it is still there.
    unsafe {
        while let Some(at) = (*this).stuck.iter().position(|s| has_left(&*this, s)) {
            let Shared { ep, access, .. } = (*this).stuck.swap_remove(at);
            complete(access.comp, ucx::UCS_ERR_CANCELED);
            if (*this).has(ep) {
                Ep::answered(ep);
            }
            n += 1;
        }
    }
    n
}
