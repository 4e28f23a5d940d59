//! Endpoints: active messages, the pending queue, flush.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};

use arrayvec::ArrayVec;
use hmem::{Kind, Span};
use link::full_fence;
use link_api::{Link, PeerId, Refused};
use ucx_sys::{self as ucx, AddrParams, Completion, EpParams, Iov, PackFn, PendingReq, PurgeFn, Status};

use crate::attr::{MAX_HEADER, MAX_IOV, SEGMENT};
use crate::ffi::guard;
use crate::iface::{self, AM, HEAD, Iface};
use crate::queue::Queue;
use crate::remote::MAX_REQUEST;
use crate::share::{self, Help};

/// An endpoint as UCX holds it: `uct_ep_t` is the first field.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ep {
    iface: *mut Iface,
    pub(crate) peer: PeerId,
    /// Not every send may go out at once: look closer.
    gate: bool,
    dead: Option<Status>,
    /// Nothing starts before `outstanding` is 0.
    fenced: bool,
    pending: VecDeque<*mut PendingReq>,
    /// Where it is among those whose pending requests wait for their turn.
    place: Option<Place>,
    /// Whether there was no room in the ring when that was looked at last; and whether the pending requests wait for
    /// something else.
    no_room: bool,
    elsewhere: bool,
    /// Requests without a reply.
    pub(crate) outstanding: u32,
    /// To be completed when `outstanding` is 0.
    flushes: Vec<*mut Completion>,
    /// This peer's memory cannot be reached by CMA.
    pub(crate) no_cma: bool,
    /// The last access was refused for want of a window.
    pub(crate) awaits: bool,
    pub(crate) help: Help,
}

/// The endpoints with pending requests: those whose turn is to come, and those that have to wait for the next call.
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
type Place = (usize, u64);

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

    fn push(&mut self, ep: *mut Ep, next_call: bool) -> Place {
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

    fn remove(&mut self, (which, ticket): Place) {
        self.queues[which].remove(ticket);
    }

    /// The next whose turn it is.
    fn pop(&mut self) -> Option<*mut Ep> {
        self.queues[self.now].pop()
    }

    /// All have had their turn.
    fn turn_over(&mut self) {
        self.now ^= 1;
        self.call += 1;
    }
}

/// # Safety
/// `ep` must be an endpoint of ours. The answer must be gone before UCX is called back.
pub(crate) unsafe fn of<'a>(ep: ucx::Ep) -> &'a mut Ep {
    // SAFETY: the caller's promise.
    unsafe { &mut *ep.cast::<Ep>() }
}

/// Counts a completion down.
///
/// # Safety
/// `comp` must be null or a completion that still waits for this event.
pub(crate) unsafe fn complete(comp: *mut Completion, status: Status) {
    if comp.is_null() {
        return;
    }
    // SAFETY: the caller's promise. The function may free it.
    unsafe {
        if status != ucx::UCS_OK && (*comp).status == ucx::UCS_OK {
            (*comp).status = status;
        }
        (*comp).count -= 1;
        if let (0, Some(func)) = ((*comp).count, (*comp).func) {
            func(comp);
        }
    }
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
                help: Help::default(),
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

    fn set_gate(&mut self) {
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

/// Parts of host memory, as far as they fit.
///
/// # Safety
/// `iov` must be `count` parts that stay valid while the answer is used.
pub(crate) unsafe fn spans(iov: *const Iov, count: usize) -> Option<(ArrayVec<Span, MAX_IOV>, usize)> {
    let mut out = ArrayVec::new();
    let mut total = 0;
    for i in 0..count {
        // SAFETY: the caller's promise.
        let part = unsafe { &*iov.add(i) };
        let len = if part.count == 0 { 0 } else { part.length };
        if len > 0 {
            // SAFETY: the caller's promise: memory of that length.
            let span = unsafe { Span::new(part.buffer.expose_provenance(), len, Kind::System) };
            out.try_push(span).ok()?;
            total += len;
        }
    }
    Some((out, total))
}

/// The first bytes of an active message, [AM, id, 0, 0]: as one word, since one that is stored by bytes
/// and loaded as a word has the load wait for all stores before it, those to the ring among them.
#[inline]
fn am(id: u8) -> [u8; HEAD] {
    (u32::from(AM) | u32::from(id) << 8).to_le_bytes()
}

pub(crate) unsafe extern "C" fn am_short(
    ep: ucx::Ep,
    id: u8,
    header: u64,
    payload: *const c_void,
    length: c_uint,
) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours; nothing calls back.
        let e = unsafe { of(ep) };
        if let Err(status) = e.open() {
            return status;
        }
        let len = length as usize;
        if len + 8 > SEGMENT {
            return ucx::UCS_ERR_EXCEEDS_LIMIT;
        }
        let mut head = [0; HEAD + 8];
        head[..HEAD].copy_from_slice(&am(id));
        head[HEAD..].copy_from_slice(&header.to_ne_bytes());
        // SAFETY: UCX says that this memory is valid, which is all read before the return; the
        // interface outlives its endpoints.
        let sent = unsafe {
            let body = [Span::new(payload.expose_provenance(), len, Kind::System)];
            (*e.iface).link.send(e.peer, &head, &body, 0, len)
        };
        match sent {
            Ok(()) => ucx::UCS_OK,
            Err(why) => e.refused(why),
        }
    })
}

pub(crate) unsafe extern "C" fn am_short_iov(ep: ucx::Ep, id: u8, iov: *const Iov, count: usize) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours; nothing calls back; UCX's vector.
        unsafe { send_parts(of(ep), &am(id), iov, count) }
    })
}

/// # Safety
/// `iov` must be `count` valid parts.
unsafe fn send_parts(e: &mut Ep, head: &[u8], iov: *const Iov, count: usize) -> Status {
    if let Err(status) = e.open() {
        return status;
    }
    // SAFETY: the caller's promise; all is read before the return.
    let Some((body, len)) = (unsafe { spans(iov, count) }) else { return ucx::UCS_ERR_INVALID_PARAM };
    if head.len() - HEAD + len > SEGMENT {
        return ucx::UCS_ERR_EXCEEDS_LIMIT;
    }
    // SAFETY: an endpoint's interface outlives it.
    match unsafe { (*e.iface).link.send(e.peer, head, &body, 0, len) } {
        Ok(()) => ucx::UCS_OK,
        Err(why) => e.refused(why),
    }
}

pub(crate) unsafe extern "C" fn am_bcopy(
    ep: ucx::Ep,
    id: u8,
    pack: PackFn,
    arg: *mut c_void,
    _flags: c_uint,
) -> isize {
    guard(|| {
        // SAFETY: an endpoint of ours. UCX's function writes at most what `query` says it may, and
        // calls nothing of ours.
        let sent = unsafe {
            let e = of(ep);
            if let Err(status) = e.open() {
                return status.into();
            }
            (*e.iface).link.send_packed(e.peer, &am(id), SEGMENT, |to| pack(to.cast(), arg))
        };
        match sent {
            Ok(n) => n as isize,
            // SAFETY: as above.
            Err(why) => unsafe { of(ep) }.refused(why).into(),
        }
    })
}

/// The bytes are copied at once, so this never has to wait for a completion.
pub(crate) unsafe extern "C" fn am_zcopy(
    ep: ucx::Ep,
    id: u8,
    header: *const c_void,
    header_length: c_uint,
    iov: *const Iov,
    count: usize,
    _flags: c_uint,
    _comp: *mut Completion,
) -> Status {
    guard(|| {
        let n = header_length as usize;
        if n > MAX_HEADER {
            return ucx::UCS_ERR_EXCEEDS_LIMIT;
        }
        let mut head = [0; HEAD + MAX_HEADER];
        head[..HEAD].copy_from_slice(&am(id));
        // SAFETY: UCX's header, which is not longer than the array; the rest as in `am_short_iov`.
        unsafe {
            head.as_mut_ptr().add(HEAD).copy_from_nonoverlapping(header.cast(), n);
            send_parts(of(ep), &head[..HEAD + n], iov, count)
        }
    })
}

pub(crate) unsafe extern "C" fn pending_add(ep: ucx::Ep, req: *mut PendingReq, _flags: c_uint) -> Status {
    guard(|| {
        // SAFETY: an endpoint of ours, and its interface.
        let (e, i) = unsafe { (of(ep), iface::of((*ep.cast::<Ep>()).iface.cast())) };
        if e.pending.is_empty() {
            // If there is room by now the request is not ours to keep.
            let room = i.link.room(e.peer, MAX_REQUEST);
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
            // An end that came over a socket is told by progress; who was never reached is tried.
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
