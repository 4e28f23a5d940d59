//! Which way memory behind a key is reached, and accesses to it: by CMA, or by request.

use hmem::Span;
use link_api::{Direct, Grant, Link, NoDirect, Refused, RmaLink};
use ucx_sys::{self as ucx, Status};
use wire::Seg;

use crate::iface::attr::SEGMENT;
use crate::md::region::Slot;
use crate::md::rkey::{Reach, Rkey};
use crate::rma::coop_state::Access;
use crate::rma::remote::{Ask, What};
use crate::rma::requests::{Into_, Operation};
use crate::state::Ep;

/// How an access goes.
pub(crate) enum Way {
    Mapped(*mut u8),
    Cma,
    Request,
}

/// Chooses for memory behind a key.
#[inline]
pub(crate) fn way(e: &mut Ep, rkey: usize, addr: u64, len: usize) -> Result<Way, Status> {
    if rkey == ucx::UCT_INVALID_RKEY {
        return Err(ucx::UCS_ERR_INVALID_PARAM);
    }
    e.open()?;
    // SAFETY: a key that was unpacked, and is not released while used.
    let key = unsafe { &mut *(rkey as *mut Rkey) };
    // SAFETY: an endpoint's interface outlives it.
    let readers = unsafe { &mut (*e.iface()).readers };
    match key.reach(addr, len, (readers, e.peer)) {
        Reach::Mapped(at) => Ok(Way::Mapped(at)),
        other => far(e, other),
    }
}

#[cold]
fn far(e: &mut Ep, reach: Reach) -> Result<Way, Status> {
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    e.awaits = false;
    match reach {
        Reach::Outside => return Err(ucx::UCS_ERR_INVALID_ADDR),
        Reach::Want { id, wait } => {
            i.link.want(e.peer, id).map_err(|why| e.refused(why))?;
            e.awaits = wait || e.no_cma;
            if e.awaits {
                return Err(ucx::UCS_ERR_NO_RESOURCE);
            }
        }
        _ => {}
    }
    if !e.no_cma && reach != Reach::Ask {
        if i.link.peer_pid(e.peer).is_none() {
            i.link.room(e.peer, 0).map_err(|why| e.refused(why))?;
        }
        match i.link.knows_space(e.peer) {
            Some(true) => return Ok(Way::Cma),
            // Its welcome is on the way.
            Some(false) => {
                e.awaits = true;
                return Err(ucx::UCS_ERR_NO_RESOURCE);
            }
            None => e.no_cma = true,
        }
    }
    may_ask(e).map(|()| Way::Request)
}

/// Whether one more operation may go by requests: not many wait for this peer yet.
pub(crate) fn may_ask(e: &Ep) -> Result<(), Status> {
    // SAFETY: an endpoint's interface outlives it.
    let full = unsafe { (*e.iface()).remote.full(e.peer) };
    if full { Err(ucx::UCS_ERR_NO_RESOURCE) } else { Ok(()) }
}

/// Runs an access to a key's memory, unless that was taken back.
#[inline]
pub(crate) fn access<T>(rkey: usize, f: impl FnOnce() -> T) -> Result<T, Status> {
    // SAFETY: as in `way`.
    let key = unsafe { &*(rkey as *const Rkey) };
    key.access(f).ok_or(ucx::UCS_ERR_CANCELED)
}

/// What a key names on its owner's board.
pub(crate) fn slot(rkey: usize) -> Option<Slot> {
    // SAFETY: as in `way`.
    unsafe { (*(rkey as *const Rkey)).slot() }
}

/// By CMA; `Ok(false)` if that does not work with this peer.
pub(crate) fn cma(
    e: &mut Ep,
    rkey: usize,
    put: bool,
    addr: u64,
    local: &[Span],
    len: usize,
) -> Result<bool, Status> {
    let remote = [Seg { addr: addr.into(), len: (len as u64).into() }];
    // SAFETY: an endpoint's interface outlives it.
    let link = unsafe { &mut (*e.iface()).link };
    let peer = e.peer;
    let way = if put { link_api::Way::Put } else { link_api::Way::Get };
    let direct = Direct::new(Grant::Agreed, &remote, local, len);
    let done = access(rkey, || link.access(way, peer, &direct))?;
    match done {
        Ok(()) => {
            if e.helper.works() {
                log::info!("{}: CMA works", link.peer_addr(peer));
            }
            Ok(true)
        }
        Err(NoDirect::Never) => {
            e.no_cma = true;
            log::info!("{}: no CMA: its memory is reached through the ring", link.peer_addr(peer));
            Ok(false)
        }
        // Not this memory: the access goes as a request, which the owner answers.
        Err(NoDirect::Memory) => Ok(false),
        Err(NoDirect::Revoked | NoDirect::Fault) => match link.room(peer, 0) {
            // Dead, but not yet buried.
            Err(why @ Refused::Gone(_)) => Err(e.refused(why)),
            _ => Err(ucx::UCS_ERR_IO_ERROR),
        },
    }
}

/// By CMA or by request, whatever works with this peer.
pub(crate) fn transfer(e: &mut Ep, a: &Access) -> Result<Status, Status> {
    if !e.no_cma && cma(e, a.rkey, a.put, a.addr, &a.local, a.len)? {
        return Ok(ucx::UCS_OK);
    }
    by_request(e, a)
}

pub(crate) fn by_request(e: &mut Ep, a: &Access) -> Result<Status, Status> {
    may_ask(e)?;
    Ok(if a.put { put_by_request(e, a) } else { get_by_request(e, a) })
}

#[cold]
fn put_by_request(e: &mut Ep, a: &Access) -> Status {
    let (len, addr, comp) = (a.len, a.addr, a.comp);
    let requests = len.div_ceil(SEGMENT);
    if requests == 0 {
        return ucx::UCS_OK;
    }
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    let operation = Operation::new(requests, comp);
    let mut bytes = vec![0; SEGMENT.min(len)];
    for k in 0..requests {
        let off = k * SEGMENT;
        let n = SEGMENT.min(len - off);
        hmem::read(&a.local, off, &mut bytes[..n]);
        let ask = Ask { what: What::Put, addr: addr + off as u64, a: 0, b: 0, slot: slot(a.rkey) };
        i.ask(e, ask, &bytes[..n], Into_::Nowhere, &operation);
    }
    // Without a completion (short, bcopy) a flush completes when it has arrived.
    if comp.is_null() { ucx::UCS_OK } else { ucx::UCS_INPROGRESS }
}

#[cold]
fn get_by_request(e: &mut Ep, a: &Access) -> Status {
    let (len, addr, comp) = (a.len, a.addr, a.comp);
    // Pieces that end where a part or a segment does.
    let mut pieces = Vec::new();
    let mut off = 0;
    for part in &a.local {
        let mut at = 0;
        while at < part.len() && off < len {
            let n = SEGMENT.min(part.len() - at).min(len - off);
            pieces.push((part.as_ptr().wrapping_add(at), off, n));
            at += n;
            off += n;
        }
    }
    if pieces.is_empty() {
        return ucx::UCS_OK;
    }
    let operation = Operation::new(pieces.len(), comp);
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    for (to, off, n) in pieces {
        let ask = Ask { what: What::Get, addr: addr + off as u64, a: n as u64, b: 0, slot: slot(a.rkey) };
        i.ask(e, ask, &[], Into_::Memory(to, n), &operation);
    }
    ucx::UCS_INPROGRESS
}
