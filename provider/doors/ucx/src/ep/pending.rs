//! Requests of UCX that wait for room in the ring to a peer, or for something else.

use std::ffi::{c_uint, c_void};

use link_api::Refused;
use ucx_sys::{self as ucx, PendingReq, PurgeFn, Status};

use crate::ffi::guard;
use crate::frame::MAX_AM;
use crate::state::{Ep, Iface};

pub(crate) unsafe extern "C" fn pending_add(ep: ucx::Ep, req: *mut PendingReq, _flags: c_uint) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours, and its interface.
        let (e, i) = unsafe { (Ep::of(ep), Iface::of((*ep.cast::<Ep>()).iface.cast())) };
        if e.pending.is_empty() {
            // If there is room by now the request is not ours to keep.
            let room = i.link.room(e.peer, MAX_AM);
            let no_room = matches!(room, Err(Refused::Busy));
            e.elsewhere = e.fenced || e.awaits || i.remote.full(e.peer);
            if e.dead.is_some() || !(no_room || e.elsewhere) {
                return ucx::UCS_ERR_BUSY;
            }
            e.place = Some(i.waiting.push(e, false));
            i.busy = true;
        }
        e.pending.push_back(req);
        e.gate = true;
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn pending_purge(ep: ucx::Ep, callback: Option<PurgeFn>, arg: *mut c_void) {
    guard(|| {
        // SAFETY: an endpoint of ours, and its interface; requests are UCX's to free.
        unsafe {
            let e = Ep::of(ep);
            let requests = std::mem::take(&mut e.pending);
            e.set_gate();
            if let Some(place) = e.place.take() {
                (*e.iface).waiting.remove(place);
            }
            for req in requests {
                if let Some(callback) = callback {
                    callback(req, arg);
                }
            }
        }
    });
}

/// Offers pending requests their turn, one of each endpoint and round after round, until none finds room; how
/// many were done. Room in the ring to a peer is given to the endpoints that wait for it in the order in
/// which they are queued: from the first that finds none on the others have to wait for the next call, in
/// which that one is the first.
///
/// # Safety
/// `this` must be an interface that no one borrows from.
pub(crate) unsafe fn dispatch(this: *mut Iface) -> u32 {
    let mut done = 0;
    // SAFETY: the caller's promise; a request belongs to UCX while its function runs, which may
    // free it, destroy endpoints, or add to any queue. An endpoint that is destroyed leaves the queues, and
    // `dispatching` if it is that one.
    unsafe {
        while let Some(ep) = (*this).waiting.pop() {
            if !(*ep).elsewhere && (*this).waiting.has_no_room((*ep).peer) {
                (*ep).place = Some((*this).waiting.push(ep, true));
                continue;
            }
            (*ep).place = None;
            let Some(req) = (*ep).pending.pop_front() else { continue };
            (*ep).no_room = false;
            (*this).dispatching = ep;
            (*ep).gate = true;
            let status = ((*req).func)(req);
            if std::mem::replace(&mut (*this).dispatching, std::ptr::null_mut()).is_null() {
                done += 1;
                continue;
            }
            let stuck = status == ucx::UCS_ERR_NO_RESOURCE;
            if stuck || status == ucx::UCS_INPROGRESS {
                (*ep).pending.push_front(req);
            }
            done += u32::from(!stuck);
            (*ep).set_gate();
            (*ep).elsewhere = stuck && !(*ep).no_room;
            if stuck && (*ep).no_room {
                (*this).waiting.set_no_room((*ep).peer);
            }
            if !(*ep).pending.is_empty() && (*ep).place.is_none() {
                (*ep).place = Some((*this).waiting.push(ep, stuck));
            }
        }
        (*this).waiting.next_round();
    }
    done
}
