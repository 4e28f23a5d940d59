//! Large gets, which progress copies.
//!
//! UCP's rendezvous gets a message's bytes where its receive and the sender's offer meet. Where the offer
//! came first, that is in the call that posts the receive, and most programs send when they have posted their
//! receives. A copy in that call would have those messages wait: neighbours that each receive before they
//! send would take turns, where they can copy at the same time. So such a get is in flight until the next
//! call of progress.

use ucx_sys::{self as ucx, Completion, Status};

use crate::ffi::complete;
use crate::rma::coop_begin;
use crate::rma::coop_state::Access;
use crate::rma::direct::transfer;
use crate::state::{Ep, Iface};

/// Bytes of which the copy takes longer than what a program does between two calls.
const LEAST: usize = 16 << 10;

/// A put or get by CMA.
pub(crate) fn start(e: &mut Ep, access: &Access) -> Result<Status, Status> {
    // SAFETY: an endpoint's interface outlives it.
    let may_sleep = unsafe { (*e.iface()).link.may_sleep() };
    // No descriptor becomes readable for a copy to be made, or when the owner has done its part.
    if may_sleep {
        return transfer(e, access);
    }
    defer(e, access).map_or_else(|| copy(e, access), Ok)
}

/// Together with the owner of the memory, if that is worth it.
fn copy(e: &mut Ep, access: &Access) -> Result<Status, Status> {
    coop_begin::start(e, access).map_or_else(|| transfer(e, access), Ok)
}

/// Leaves a get to progress, if it is one of that kind.
fn defer(e: &mut Ep, access: &Access) -> Option<Status> {
    if access.put || access.len < LEAST || access.comp.is_null() {
        return None;
    }
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    e.has_asked();
    i.defer(e, access.clone());
    Some(ucx::UCS_INPROGRESS)
}

/// Does the first of them, if there are the resources for it; how many were done.
///
/// # Safety
/// `this` must be an interface that no one borrows from. Calls UCX back.
pub(crate) unsafe fn progress(this: *mut Iface) -> u32 {
    // SAFETY: the caller's promise; an endpoint that is destroyed takes what it has here along, and UCX may
    // destroy it when it is called.
    unsafe {
        // Those of an endpoint that has failed end when that is reported.
        if (*this).deferred.front().is_some_and(|(ep, _)| (**ep).dead.is_some()) {
            return 0;
        }
        let Some((ep, access)) = (*this).deferred.pop_front() else { return 0 };
        let status = copy(&mut *ep, &access).unwrap_or_else(|status| status);
        if status == ucx::UCS_ERR_NO_RESOURCE {
            // It goes by requests, and many wait for its peer.
            (*this).defer(ep, access);
            return 0;
        }
        if status != ucx::UCS_INPROGRESS {
            complete(access.comp, status);
        }
        if (*this).has(ep) {
            Ep::answered(ep);
        }
    }
    1
}

/// Forgets those of an endpoint; their completions.
pub(crate) fn abandon(i: &mut Iface, ep: *mut Ep) -> impl Iterator<Item = *mut Completion> {
    let (its, others) = std::mem::take(&mut i.deferred).into_iter().partition::<Vec<_>, _>(|(e, _)| *e == ep);
    i.deferred = others.into();
    its.into_iter().map(|(_, access)| access.comp)
}
