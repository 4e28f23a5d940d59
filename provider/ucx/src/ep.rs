//! Endpoints: opening, failures, flush.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint};

use link::full_fence;
use link_api::{Link, PeerId, Refused};
use ucx_sys::{self as ucx, AddrParams, Completion, EpParams, PendingReq, Status};
use xfer::Helper;

use crate::ffi::{complete, guard};
use crate::iface::{self, Iface};
use crate::pending::Place;
use crate::share;

/// An endpoint as UCX holds it: `uct_ep_t` is the first field.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ep {
    pub(crate) iface: *mut Iface,
    pub(crate) peer: PeerId,
    /// Not every send may go out at once: look closer.
    pub(crate) gate: bool,
    pub(crate) dead: Option<Status>,
    /// Nothing starts before `outstanding` is 0.
    pub(crate) fenced: bool,
    pub(crate) pending: VecDeque<*mut PendingReq>,
    /// Its place among the endpoints with pending requests.
    pub(crate) place: Option<Place>,
    /// Whether there was no room in the ring when that was looked at last; and whether the pending requests wait for
    /// something else.
    pub(crate) no_room: bool,
    pub(crate) elsewhere: bool,
    /// Requests without a reply.
    pub(crate) outstanding: u32,
    /// To be completed when `outstanding` is 0.
    flushes: Vec<*mut Completion>,
    /// This peer's memory cannot be reached by CMA.
    pub(crate) no_cma: bool,
    /// The last access was refused for want of a window.
    pub(crate) awaits: bool,
    pub(crate) helper: Helper,
}

/// # Safety
/// `ep` must be an endpoint of ours. The answer must be gone before UCX is called back.
pub(crate) unsafe fn of<'a>(ep: ucx::Ep) -> &'a mut Ep {
    // SAFETY: the caller's promise.
    unsafe { &mut *ep.cast::<Ep>() }
}

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
            let i = iface::of(p.iface);
            let peer = i.link.peer(&iface::name(p.iface_addr));
            let ep = Box::into_raw(Box::new(Ep {
                iface: p.iface.cast(),
                peer,
                gate: false,
                dead: None,
                fenced: false,
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
            i.abandon(this);
            share::orphan(i, this);
            i.let_go((*this).peer);
            drop(Box::from_raw(this));
        }
    });
}

impl Ep {
    pub(crate) fn iface(&self) -> *mut Iface {
        self.iface
    }

    /// Whether an operation may start now.
    #[inline]
    pub(crate) fn open(&self) -> Result<(), Status> {
        if self.gate { self.closer_look() } else { Ok(()) }
    }

    #[cold]
    fn closer_look(&self) -> Result<(), Status> {
        if let Some(status) = self.dead {
            return Err(status);
        }
        // SAFETY: an endpoint's interface outlives it.
        let dispatching = unsafe { (*self.iface).dispatching };
        let queued = !self.pending.is_empty() && !std::ptr::eq(dispatching, self);
        if queued || self.fenced { Err(ucx::UCS_ERR_NO_RESOURCE) } else { Ok(()) }
    }

    pub(crate) fn set_gate(&mut self) {
        self.gate = self.dead.is_some() || self.fenced || !self.pending.is_empty();
    }

    /// What comes after this starts when all before it is done.
    pub(crate) fn fence(&mut self) {
        self.fenced = self.outstanding > 0;
        self.set_gate();
    }

    /// A request was answered.
    ///
    /// # Safety
    /// `this` must be an endpoint. Calls UCX back.
    pub(crate) unsafe fn answered(this: *mut Ep) {
        // SAFETY: the caller's promise; the borrow ends before the calls.
        let flushes = unsafe {
            let ep = &mut *this;
            ep.outstanding -= 1;
            if ep.outstanding > 0 {
                return;
            }
            ep.fenced = false;
            ep.set_gate();
            std::mem::take(&mut ep.flushes)
        };
        for comp in flushes {
            // SAFETY: given to `flush`, and completed once.
            unsafe { complete(comp, ucx::UCS_OK) };
        }
    }

    /// What UCX is told of a refusal.
    #[cold]
    pub(crate) fn refused(&mut self, why: Refused) -> Status {
        match why {
            Refused::Busy => {
                self.no_room = true;
                ucx::UCS_ERR_NO_RESOURCE
            }
            Refused::Fault => ucx::UCS_ERR_IO_ERROR,
            Refused::Gone(why) => {
                let status = ucx::UCS_ERR_CONNECTION_RESET;
                if self.dead.is_none() {
                    // SAFETY: an endpoint's interface outlives it.
                    let i = unsafe { &mut *self.iface };
                    log::debug!("{} is not there: {why:?}", i.link.peer_addr(self.peer));
                    self.dead = Some(status);
                    self.gate = true;
                    i.failed.push(self);
                    i.busy = true;
                }
                status
            }
        }
    }
}

/// An endpoint's peer is gone: notes it, to be told by `report`.
///
/// # Safety
/// `ep` must be an endpoint.
pub(crate) unsafe fn fail(ep: *mut Ep, status: Status) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*ep).dead.is_none() {
            (*ep).dead = Some(status);
            (*ep).gate = true;
            (*(*ep).iface).failed.push(ep);
        }
    }
}

/// Tells UCX of an endpoint that failed: what was under way ends, then its error handler is called.
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
        for comp in (*this).abandon(ep) {
            complete(comp, status);
        }
        if !(*this).has(ep) {
            return;
        }
        (*ep).outstanding = share::stuck(&*this, ep);
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
                for comp in (*i).abandon(this) {
                    complete(comp, ucx::UCS_ERR_CANCELED);
                }
                (*this).outstanding = share::stuck(&*i, this);
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
            let e = of(ep);
            if !e.fenced {
                if let Err(status) = e.open() {
                    return status;
                }
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
        unsafe { of(ep) }.fence();
        ucx::UCS_OK
    })
}

/// Whether the peer is there: if not, the error handler is told.
pub(crate) unsafe extern "C" fn check(ep: ucx::Ep, _flags: c_uint, _comp: *mut Completion) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours, and its interface.
        let e = unsafe { of(ep) };
        if e.dead.is_none() {
            // An end that came over a socket is told by progress; a peer that was never reached is tried.
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
            let (e, p) = (of(ep), &*params);
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
