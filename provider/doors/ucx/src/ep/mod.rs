//! Endpoints: opening, failures, flush.

pub(crate) mod pending;
pub(crate) mod queue;
pub(crate) mod waiting;

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};

use link::{full_fence, turns};
use link_api::{Link, Refused};
use ucx_sys::{self as ucx, AddrParams, Completion, EpParams, Status};
use xfer::Helper;

use crate::ffi::{complete, guard};
use crate::iface;
use crate::rma::coop_begin;
use crate::rma::deferred;
use crate::state::{Ep, Iface};

pub(crate) unsafe extern "C" fn create(params: *const EpParams, out: *mut ucx::Ep) -> Status {
    guard(|| {
        // SAFETY: UCX's structure.
        let p = unsafe { &*params };
        let needed = ucx::UCT_EP_PARAM_FIELD_IFACE
            | ucx::UCT_EP_PARAM_FIELD_DEV_ADDR
            | ucx::UCT_EP_PARAM_FIELD_IFACE_ADDR;
        if p.field_mask & needed != needed {
            return ucx::UCS_ERR_UNSUPPORTED;
        }
        // SAFETY: addresses of this transport; an interface of ours.
        unsafe {
            if !iface::same_place(p.dev_addr) {
                return ucx::UCS_ERR_UNREACHABLE;
            }
            let i = Iface::of(p.iface);
            let peer = i.link.peer(&iface::name(p.iface_addr));
            let ep = Box::into_raw(Box::new(Ep {
                iface: p.iface.cast(),
                peer,
                gate: false,
                dead: None,
                fenced: false,
                in_order: false,
                pending: VecDeque::new(),
                place: None,
                no_room: false,
                elsewhere: false,
                outstanding: 0,
                flushes: Vec::new(),
                no_cma: !(*i.md).cma,
                awaits: false,
                helper: Helper::default(),
            }));
            i.eps.entry(peer).or_default().push(ep);
            turns::knows(i.eps.len());
            i.live.insert(ep);
            out.write(ep.cast());
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn destroy(ep: ucx::Ep) {
    guard(|| {
        // SAFETY: an endpoint of ours, destroyed once, and its interface.
        unsafe {
            let this = ep.cast::<Ep>();
            let i = &mut *(*this).iface;
            if let Some(list) = i.eps.get_mut(&(*this).peer) {
                list.retain(|e| *e != this);
                if list.is_empty() {
                    i.eps.remove(&(*this).peer);
                }
            }
            i.live.remove(&this);
            if let Some(place) = (*this).place.take() {
                i.waiting.remove(place);
            }
            if i.dispatching == this {
                i.dispatching = std::ptr::null_mut();
            }
            i.failed.retain(|e| *e != this);
            abandon(i, this);
            coop_begin::orphan(i, this);
            i.let_go((*this).peer);
            drop(Box::from_raw(this));
        }
    });
}

/// Forgets what an endpoint has under way; the completions.
fn abandon(i: &mut Iface, ep: *mut Ep) -> Vec<*mut Completion> {
    let mut out = i.remote.abandon(ep);
    out.extend(deferred::abandon(i, ep));
    out.extend(coop_begin::abandon(i, ep));
    out
}

/// Fails an endpoint: its operations complete with the error, then UCX's error handler is called.
///
/// # Safety
/// `this` must be an interface that no one borrows from; `ep` was one of its endpoints.
pub(crate) unsafe fn report(this: *mut Iface, ep: *mut Ep) {
    // SAFETY: the caller's promise; UCX may destroy the endpoint whenever it is called.
    unsafe {
        if !(*this).has(ep) {
            return;
        }
        let status = (*ep).dead.unwrap_or(ucx::UCS_ERR_CONNECTION_RESET);
        for comp in abandon(&mut *this, ep) {
            complete(comp, status);
        }
        if !(*this).has(ep) {
            return;
        }
        (*ep).outstanding = coop_begin::stuck(&*this, ep);
        for comp in std::mem::take(&mut (*ep).flushes) {
            complete(comp, status);
        }
        if (*this).has(ep) {
            ((*this).served.host.handle_ep_err)(this.cast(), ep.cast(), status);
        }
    }
}

pub(crate) unsafe extern "C" fn flush(ep: ucx::Ep, flags: c_uint, comp: *mut Completion) -> Status {
    // What was stored to mapped memory is there before anything that follows is loaded.
    full_fence();
    // SAFETY: an endpoint of ours.
    let done = unsafe { !(*ep.cast::<Ep>()).gate && (*ep.cast::<Ep>()).outstanding == 0 };
    if done && flags & ucx::UCT_FLUSH_FLAG_CANCEL == 0 {
        return ucx::UCS_OK;
    }
    // SAFETY: UCX's arguments.
    unsafe { flush_further(ep, flags, comp) }
}

/// # Safety
/// As for `flush`.
#[inline(never)]
unsafe fn flush_further(ep: ucx::Ep, flags: c_uint, comp: *mut Completion) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours.
        unsafe {
            let this = ep.cast::<Ep>();
            if flags & ucx::UCT_FLUSH_FLAG_CANCEL != 0 {
                let i = (*this).iface;
                for comp in abandon(&mut *i, this) {
                    complete(comp, ucx::UCS_ERR_CANCELED);
                }
                (*this).outstanding = coop_begin::stuck(&*i, this);
                (*this).fenced = false;
                (*this).set_gate();
                if (*this).outstanding == 0 {
                    return ucx::UCS_OK;
                }
                if !comp.is_null() {
                    (*this).flushes.push(comp);
                }
                return ucx::UCS_INPROGRESS;
            }
            let e = Ep::of(ep);
            if let Err(status) = e.may_flush() {
                return status;
            }
            if e.outstanding == 0 {
                return ucx::UCS_OK;
            }
            if !comp.is_null() {
                e.flushes.push(comp);
            }
        }
        ucx::UCS_INPROGRESS
    })
}

pub(crate) unsafe extern "C" fn fence(ep: ucx::Ep, _flags: c_uint) -> Status {
    guard(|| {
        full_fence();
        // SAFETY: an endpoint of ours.
        unsafe { Ep::of(ep) }.fence();
        ucx::UCS_OK
    })
}

/// Checks that the peer is there; if not, the error handler is called.
pub(crate) unsafe extern "C" fn check(ep: ucx::Ep, _flags: c_uint, _comp: *mut Completion) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours, and its interface.
        let e = unsafe { Ep::of(ep) };
        if e.dead.is_none() {
            // Progress reports an end that came over a socket; here a peer that was never reached is tried.
            // SAFETY: as above.
            if let Err(why @ Refused::Gone(_)) = unsafe { (*e.iface).link.room(e.peer, 0) } {
                e.refused(why);
            }
        }
        ucx::UCS_OK
    })
}

/// Since 1.16: whether the endpoint leads to the interface with this address.
pub(crate) unsafe extern "C" fn is_connected(ep: ucx::Ep, params: *const AddrParams) -> c_int {
    guard(|| {
        // SAFETY: an endpoint of ours; UCX's structure, whose first fields are these.
        unsafe {
            let (e, p) = (Ep::of(ep), &*params);
            let both = ucx::ADDR_PARAMS_DEVICE | ucx::ADDR_PARAMS_IFACE;
            if p.field_mask & both != both {
                return 0;
            }
            let same = iface::same_place(p.device_addr)
                && iface::name(p.iface_addr) == (*e.iface).link.peer_addr(e.peer);
            c_int::from(same)
        }
    })
}
