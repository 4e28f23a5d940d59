//! Requests of UCX that wait for room in the ring to a peer, or for something else.

use std::ffi::{c_uint, c_void};

use link_api::{PeerId, Refused};
use ucx_sys::{self as ucx, PendingReq, PurgeFn, Status};

use crate::ep::{Ep, of};
use crate::ffi::guard;
use crate::frame::MAX_AM;
use crate::iface::{self, Iface};
use crate::queue::Queue;

/// The endpoints with pending requests: those that this call of `dispatch` still looks at, and those that wait for
/// the next call.
#[derive(Debug)]
pub(crate) struct Waiting {
    queues: [Queue<*mut Ep>; 2],
    /// Which of the two is the former.
    now: usize,
    /// The how manyth call of `dispatch` this is, and in which there was last no room for a peer.
    call: u64,
    no_room: Vec<u64>,
}

/// One of the two queues, and the ticket there.
pub(crate) type Place = (usize, u64);

impl Default for Waiting {
    fn default() -> Waiting {
        Waiting { queues: Default::default(), now: 0, call: 1, no_room: Vec::new() }
    }
}

impl Waiting {
    /// Whether no endpoint waits, between two calls of `dispatch`.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues[self.now].is_empty()
    }

    pub(crate) fn push(&mut self, ep: *mut Ep, next_call: bool) -> Place {
        let which = self.now ^ usize::from(next_call);
        (which, self.queues[which].push(ep))
    }

    /// A request found no room in the ring to this peer.
    fn set_no_room(&mut self, peer: PeerId) {
        let at = peer.0 as usize;
        self.no_room.resize(self.no_room.len().max(at + 1), 0);
        self.no_room[at] = self.call;
    }

    /// Whether one has found none in this call.
    fn has_no_room(&self, peer: PeerId) -> bool {
        self.no_room.get(peer.0 as usize) == Some(&self.call)
    }

    pub(crate) fn remove(&mut self, (which, ticket): Place) {
        self.queues[which].remove(ticket);
    }

    /// The next endpoint to look at.
    fn pop(&mut self) -> Option<*mut Ep> {
        self.queues[self.now].pop()
    }

    /// All have had their turn.
    fn turn_over(&mut self) {
        self.now ^= 1;
        self.call += 1;
    }
}

pub(crate) unsafe extern "C" fn pending_add(ep: ucx::Ep, req: *mut PendingReq, _flags: c_uint) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours, and its interface.
        let (e, i) = unsafe { (of(ep), iface::of((*ep.cast::<Ep>()).iface.cast())) };
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
            let e = of(ep);
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

/// Offers pending requests their turn, one of each endpoint and round after round, until none finds room; how many
/// were done. Room in the ring to a peer is given to the endpoints that wait for it in the order in which they are queued:
/// from the first that finds none on the others have to wait for the next call, in which that one is the first.
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
        (*this).waiting.turn_over();
    }
    done
}
