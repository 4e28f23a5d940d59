//! What an interface and its endpoints are. Each names the other, so both are here; what they do is in the
//! modules above.

use std::collections::{HashMap, HashSet, VecDeque};

use link::ShmLink;
use link_api::{Channel, Link, Parting, PeerId, Refused};
use ucx_sys::{self as ucx, BaseIface, Completion, PendingReq, Status};
use xfer::Helper;

use crate::ep::waiting::{Place, Waiting};
use crate::ffi::complete;
use crate::iface::rx::Buffers;
use crate::md::Md;
use crate::md::readers::Readers;
use crate::rma::coop_state::{Access, Helping, Shared};
use crate::rma::requests::Requests;
use crate::rma::served::Served;

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
    /// Fenced while requests were pending: until none is, each one starts when all before it is done.
    pub(crate) in_order: bool,
    pub(crate) pending: VecDeque<*mut PendingReq>,
    /// Its place among the endpoints with pending requests.
    pub(crate) place: Option<Place>,
    /// Whether there was no room in the ring when that was looked at last; and whether the pending requests
    /// wait for something else.
    pub(crate) no_room: bool,
    pub(crate) elsewhere: bool,
    /// Requests without a reply.
    pub(crate) outstanding: u32,
    /// To be completed when `outstanding` is 0.
    pub(crate) flushes: Vec<*mut Completion>,
    /// This peer's memory cannot be reached by CMA.
    pub(crate) no_cma: bool,
    /// The last access was refused for want of a window.
    pub(crate) awaits: bool,
    pub(crate) helper: Helper,
}

impl Ep {
    /// # Safety
    /// `ep` must be an endpoint of ours. The answer must be gone before UCX is called back.
    #[inline]
    pub(crate) unsafe fn of<'a>(ep: ucx::Ep) -> &'a mut Ep {
        // SAFETY: the caller's promise.
        unsafe { &mut *ep.cast::<Ep>() }
    }

    pub(crate) fn iface(&self) -> *mut Iface {
        self.iface
    }

    /// Whether an operation may start now.
    #[inline]
    pub(crate) fn open(&self) -> Result<(), Status> {
        if self.gate { self.check_gate() } else { Ok(()) }
    }

    #[cold]
    fn check_gate(&self) -> Result<(), Status> {
        if let Some(status) = self.dead {
            return Err(status);
        }
        if self.is_behind() || self.fenced { Err(ucx::UCS_ERR_NO_RESOURCE) } else { Ok(()) }
    }

    /// Whether there are pending requests, whose turn it is first.
    fn is_behind(&self) -> bool {
        // SAFETY: an endpoint's interface outlives it.
        let dispatching = unsafe { (*self.iface).dispatching };
        !self.pending.is_empty() && !std::ptr::eq(dispatching, self)
    }

    /// Whether a flush may start now: pending requests are before it, a fence does not hold it back.
    pub(crate) fn may_flush(&self) -> Result<(), Status> {
        match self.dead {
            Some(status) => Err(status),
            None if self.is_behind() => Err(ucx::UCS_ERR_NO_RESOURCE),
            None => Ok(()),
        }
    }

    pub(crate) fn set_gate(&mut self) {
        self.in_order &= self.fenced || !self.pending.is_empty();
        self.gate = self.dead.is_some() || self.fenced || !self.pending.is_empty();
    }

    /// What comes after this starts when all before it is done.
    pub(crate) fn fence(&mut self) {
        self.fenced = self.outstanding > 0;
        self.in_order |= !self.pending.is_empty();
        self.set_gate();
    }

    /// One more is without a reply.
    pub(crate) fn has_asked(&mut self) {
        self.outstanding += 1;
        if self.in_order {
            self.fenced = true;
            self.gate = true;
        }
    }

    /// A request was answered.
    ///
    /// # Safety
    /// `this` must be an endpoint. Calls UCX back.
    pub(crate) unsafe fn answered(this: *mut Ep) {
        // SAFETY: the caller's promise; the borrow ends before the calls.
        let (flushes, status) = unsafe {
            let ep = &mut *this;
            ep.outstanding -= 1;
            if ep.outstanding > 0 {
                return;
            }
            ep.fenced = false;
            ep.set_gate();
            (std::mem::take(&mut ep.flushes), ep.dead.unwrap_or(ucx::UCS_OK))
        };
        for comp in flushes {
            // SAFETY: given to `flush`, and completed once.
            unsafe { complete(comp, status) };
        }
    }

    /// The status for UCX of a refusal.
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

    /// An endpoint's peer is gone: notes it, for progress to report.
    ///
    /// # Safety
    /// `this` must be an endpoint.
    pub(crate) unsafe fn fail(this: *mut Ep, status: Status) {
        // SAFETY: the caller's promise.
        unsafe {
            if (*this).dead.is_none() {
                (*this).dead = Some(status);
                (*this).gate = true;
                (*(*this).iface).failed.push(this);
            }
        }
    }
}

/// An interface as UCX holds it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Iface {
    pub(crate) base: BaseIface,
    pub(crate) link: ShmLink,
    pub(crate) rx: Buffers,
    /// How many frames the next call takes in at most.
    pub(crate) budget: u32,
    /// How many calls in a row found nothing, since the last put to mapped memory: a process that puts does
    /// not wait for long, even if what it waits for never comes by us but is put to its own memory.
    pub(crate) empty: u32,
    /// Calls that may have taken in something, and rests.
    pub(crate) rounds: u32,
    /// There is more to do than frames: `failed`, `waiting`, `remote`, `deferred`, `shared`, `stuck` or
    /// `helping`.
    pub(crate) busy: bool,
    /// Endpoints with pending requests.
    pub(crate) waiting: Waiting<*mut Ep>,
    /// The endpoint of the pending request that runs, while that exists.
    pub(crate) dispatching: *mut Ep,
    /// Endpoints whose failure is still to be reported.
    pub(crate) failed: Vec<*mut Ep>,
    pub(crate) eps: HashMap<PeerId, Vec<*mut Ep>>,
    pub(crate) live: HashSet<*mut Ep>,
    pub(crate) remote: Requests<*mut Ep>,
    /// Gets that the next calls of progress do, one each ([`crate::rma::deferred`]); and what waits there
    /// until it may go by requests.
    pub(crate) deferred: VecDeque<(*mut Ep, Access)>,
    /// Puts and gets of which the owner of the memory copies a part.
    pub(crate) shared: Vec<Shared<*mut Ep>>,
    /// Those that were given up while the owners were stopped inside a copy.
    pub(crate) stuck: Vec<Shared<*mut Ep>>,
    /// Peers' puts and gets of which a part is copied here.
    pub(crate) helping: VecDeque<Helping>,
    pub(crate) served: &'static Served,
    pub(crate) md: *const Md,
    /// Where bytes rest between a peer's memory and a callback.
    pub(crate) bounce: Vec<u8>,
    /// On the boards of peers whose memory may be taken back.
    pub(crate) readers: Readers<PeerId>,
}

impl Iface {
    /// UCX's worker serializes all calls, and interfaces belong to one.
    ///
    /// # Safety
    /// `iface` must be an interface of ours. The answer must be gone before UCX is called back.
    #[inline]
    pub(crate) unsafe fn of<'a>(iface: ucx::Iface) -> &'a mut Iface {
        // SAFETY: the caller's promise.
        unsafe { &mut *iface.cast::<Iface>() }
    }

    /// Whether an endpoint is (still) one of ours.
    pub(crate) fn has(&self, ep: *mut Ep) -> bool {
        self.live.contains(&ep)
    }

    /// Leaves an operation to progress, which its endpoint counts already.
    pub(crate) fn defer(&mut self, ep: *mut Ep, access: Access) {
        self.deferred.push_back((ep, access));
        self.busy = true;
    }

    /// The link need not remember a peer that is gone, unless something here still names it.
    pub(crate) fn let_go(&mut self, peer: PeerId) {
        let shared = self.shared.iter().chain(&self.stuck).any(|s| s.copy.peer == peer);
        let helped = self.helping.iter().any(|h| h.copy.peer == peer);
        let named = shared || helped || self.eps.contains_key(&peer) || self.remote.names(peer);
        if !named && self.link.channel(peer) == Channel::None {
            self.remote.forget(peer);
            self.link.dismiss(peer, Parting::Forgotten);
            self.end_readers(peer);
        }
    }

    /// Memory of a peer is accessed no more.
    pub(crate) fn end_readers(&mut self, peer: PeerId) {
        // SAFETY: an interface's domain outlives it.
        let md = unsafe { &*self.md };
        self.readers.ended(peer, &md.regions.windows);
    }
}
