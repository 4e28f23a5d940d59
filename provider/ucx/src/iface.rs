//! The interface: opening, addresses, progress, events, failures.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use engine::{Event, Frame as _, Glance, Gone, Link, PeerId};
use link::{OpenOptions, ShmFrame, ShmLink, full_fence, look_no_further};
use ucx_sys::{
    self as ucx, AddrParams, BaseIface, Completion, IfaceAttr, IfaceOps, IfaceParams, PerfAttr, Status, Table,
};
use wire::Addr;

use crate::attr::{self, SEGMENT};
use crate::device;
use crate::ep::{self, Ep};
use crate::ffi::guard;
use crate::md::Md;
use crate::param;
use crate::region::Seats;
use crate::remote::Remote;
use crate::rx::Buffers;
use crate::share::{self, Helping, Shared};
use crate::tables::{PLACE, Served, int, place};

/// What this door's peers speak; nothing that the engine does.
const VERSION: u16 = 0x5505;

/// Bytes before the payload of a frame: what it is, an active message's id, and two zeros.
pub(crate) const HEAD: usize = 4;
/// An active message.
pub(crate) const AM: u8 = 0;

/// Longest frame: a request for the longest segment.
pub(crate) const MAX_FRAME: usize = HEAD + crate::remote::FIXED + SEGMENT;

/// Messages up to this length are not offered to UCP to keep: copying them is cheaper than another
/// buffer.
const INLINE: usize = 512;

/// Most frames taken in by one call.
const BATCH: u32 = 16;

/// After how many calls in a row that found nothing one lets another process have the core: where
/// there are more processes than cores, it may be the one that is waited for.
const PATIENCE: u32 = 1024;

/// Bytes of an interface's address: the port it listens at, as far as that goes.
const ADDRESS: usize = 8;

/// An interface as UCX holds it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Iface {
    pub(crate) base: BaseIface,
    pub(crate) link: ShmLink,
    rx: Buffers,
    /// How many frames the next call takes in at most.
    budget: u32,
    /// How many calls in a row found nothing, since the last put to mapped memory: who puts does not wait
    /// for long, even if what it waits for never comes by us but is put to its own memory.
    pub(crate) empty: u32,
    /// There is more to do than frames: `failed`, `waiting`, `remote`, `shared`, `stuck` or `helping`.
    pub(crate) busy: bool,
    /// Endpoints with pending requests.
    pub(crate) waiting: ep::Waiting,
    /// The endpoint whose pending request has its turn, while that exists.
    pub(crate) dispatching: *mut Ep,
    /// Endpoints whose failure is still to be told.
    pub(crate) failed: Vec<*mut Ep>,
    pub(crate) eps: HashMap<PeerId, Vec<*mut Ep>>,
    pub(crate) live: HashSet<*mut Ep>,
    pub(crate) remote: Remote,
    /// Puts and gets of which the owner of the memory copies a part.
    pub(crate) shared: Vec<Shared>,
    /// Those that were given up, and whose owners are stopped inside a copy.
    pub(crate) stuck: Vec<Shared>,
    /// Peers' puts and gets of which a part is copied here.
    pub(crate) helping: VecDeque<Helping>,
    pub(crate) served: &'static Served,
    pub(crate) md: *const Md,
    /// Where bytes rest between a peer's memory and a callback.
    pub(crate) bounce: Vec<u8>,
    /// On the boards of peers whose memory may be taken back.
    pub(crate) seats: Seats,
}

/// UCX's worker serializes all calls, and interfaces belong to one.
///
/// # Safety
/// `iface` must be an interface of ours. The answer must be gone before UCX is called back.
pub(crate) unsafe fn of<'a>(iface: ucx::Iface) -> &'a mut Iface {
    // SAFETY: the caller's promise.
    unsafe { &mut *iface.cast::<Iface>() }
}

pub(crate) unsafe extern "C" fn query_devices(
    md: ucx::Md,
    devices: *mut c_void,
    count: *mut c_uint,
) -> Status {
    guard(|| {
        // SAFETY: UCX's arguments; a domain of ours; the function's own contract.
        unsafe {
            let (host, name) = match device::md::is(md) {
                true => (&(*md.cast::<device::md::Md>()).served.host, c"cuda"),
                false => (&(*md.cast::<Md>()).served.host, c"host"),
            };
            (host.single_device_resource)(
                md,
                name.as_ptr(),
                ucx::UCT_DEVICE_TYPE_SHM,
                ucx::UNKNOWN_SYS_DEVICE,
                devices,
                count,
            )
        }
    })
}

pub(crate) unsafe extern "C" fn open(
    md: ucx::Md,
    worker: *mut c_void,
    params: *const IfaceParams,
    config: *const c_void,
    out: *mut ucx::Iface,
) -> Status {
    guard(|| {
        // SAFETY: a domain of ours; UCX's arguments.
        if unsafe { device::md::is(md) } {
            // SAFETY: likewise, a domain of that sort.
            let served = unsafe { (*md.cast::<device::md::Md>()).served };
            let Some(iface) = device::iface::new(served) else { return ucx::UCS_ERR_IO_ERROR };
            let tables = (&served.device_iface_ops, &served.device_internal_ops);
            // SAFETY: made just now, and begins with the base of an interface.
            return unsafe { init(iface, served, tables, (md, worker, params, config), out) };
        }
        // SAFETY: likewise.
        let (owner, p) = unsafe { (&*md.cast::<Md>(), &*params) };
        let headroom =
            if p.field_mask & ucx::UCT_IFACE_PARAM_FIELD_RX_HEADROOM != 0 { p.rx_headroom } else { 0 };
        let given = |field, value| if p.field_mask & field != 0 { Some(value) } else { None };
        let align = (
            given(ucx::UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT, p.am_alignment).unwrap_or(1),
            given(ucx::UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET, p.am_align_offset).unwrap_or(0),
        );
        let Some(rx) = Buffers::new(headroom, MAX_FRAME, align) else {
            log::error!("an alignment of {} bytes is none that messages can have", align.0);
            return ucx::UCS_ERR_INVALID_PARAM;
        };
        let settings = param::get();
        let options = OpenOptions {
            bind: Some((Ipv4Addr::LOCALHOST, 0).into()),
            ring: settings.rings.0,
            long_ring: settings.rings.1,
            cma: owner.cma,
            // For device memory there is another interface.
            device_direct: false,
            // An address is only told by an interface that listens.
            connect_timeout: Duration::ZERO,
            version: VERSION,
            windows: Some(owner.regions.windows.clone()),
            ..OpenOptions::default()
        };
        let link = match ShmLink::open(options) {
            Ok(link) => link,
            Err(e) => {
                log::error!("no endpoint on this host: {e}");
                return ucx::UCS_ERR_IO_ERROR;
            }
        };
        let served = owner.served;
        let mut iface: Box<std::mem::MaybeUninit<Iface>> = Box::new_uninit();
        let at = iface.as_mut_ptr();
        // SAFETY: every field is written once: `base` with zeros, for UCX to fill in.
        unsafe {
            (&raw mut (*at).base).write_bytes(0, 1);
            (&raw mut (*at).link).write(link);
            (&raw mut (*at).rx).write(rx);
            (&raw mut (*at).budget).write(1);
            (&raw mut (*at).empty).write(0);
            (&raw mut (*at).busy).write(false);
            (&raw mut (*at).waiting).write(ep::Waiting::default());
            (&raw mut (*at).dispatching).write(std::ptr::null_mut());
            (&raw mut (*at).failed).write(Vec::new());
            (&raw mut (*at).eps).write(HashMap::new());
            (&raw mut (*at).live).write(HashSet::new());
            (&raw mut (*at).remote).write(Remote::default());
            (&raw mut (*at).shared).write(Vec::new());
            (&raw mut (*at).stuck).write(Vec::new());
            (&raw mut (*at).helping).write(VecDeque::new());
            (&raw mut (*at).served).write(served);
            (&raw mut (*at).md).write(md.cast());
            (&raw mut (*at).bounce).write(Vec::new());
            (&raw mut (*at).seats).write(Seats::new());
        }
        let iface: *mut Iface = Box::into_raw(iface).cast();
        let tables = (&served.iface_ops, &served.internal_ops);
        // SAFETY: made just now, and begins with the base of an interface.
        unsafe { init(iface, served, tables, (md, worker, params, config), out) }
    })
}

/// What UCX calls `open` with.
type Arguments = (ucx::Md, *mut c_void, *const IfaceParams, *const c_void);

/// Has UCX initialise the base of an interface of sort `I`, and hands that over.
///
/// # Safety
/// `iface` was boxed, is nobody else's, and begins with a `BaseIface`; UCX's arguments.
unsafe fn init<I>(
    iface: *mut I,
    served: &'static Served,
    (ops, internal): (&'static IfaceOps, &'static Table),
    (md, worker, params, config): Arguments,
    out: *mut ucx::Iface,
) -> Status {
    let mut count = 1;
    // SAFETY: a place larger than UCX's structure, tables that live for ever, UCX's own
    // arguments passed on; two arguments more are for builds with statistics.
    unsafe {
        let status = (served.host.base_iface_init)(
            iface.cast(),
            served.host.base_iface_class,
            &mut count,
            (&raw const *ops).cast(),
            internal.as_ptr().cast(),
            md,
            worker,
            params,
            config,
            std::ptr::null_mut(),
            c"strait".as_ptr(),
        );
        if status != ucx::UCS_OK {
            // Of the base nothing needs to be dropped.
            drop(Box::from_raw(iface));
            return status;
        }
        out.write(iface.cast());
    }
    ucx::UCS_OK
}

pub(crate) unsafe extern "C" fn close(iface: ucx::Iface) {
    guard(|| {
        // SAFETY: an interface of ours, closed once.
        unsafe {
            let host = &of(iface).served.host;
            (host.progress_disable)(iface, ucx::UCT_PROGRESS_BOTH);
            share::help_closes(of(iface));
            (host.class_cleanup)(host.base_iface_class, iface, -1);
            drop(Box::from_raw(iface.cast::<Iface>()));
        }
    });
}

pub(crate) unsafe extern "C" fn query(iface: ucx::Iface, out: *mut IfaceAttr) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and UCX's structure, which its function sets to defaults.
        unsafe {
            (of(iface).served.host.base_iface_query)(iface, out);
            attr::fill(&mut *out, (*of(iface).md).cma, PLACE, ADDRESS);
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn estimate_perf(iface: ucx::Iface, perf: *mut PerfAttr) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and UCX's structure of its release.
        unsafe {
            let host = &of(iface).served.host;
            // Which kinds of memory there are is said by the domain; "unknown" is asked for as well.
            let status = (host.base_iface_estimate_perf)(iface, perf.cast());
            if status != ucx::UCS_OK || (*perf).field_mask & ucx::UCT_PERF_ATTR_FIELD_OPERATION == 0 {
                return status;
            }
            if let Some(bandwidth) = attr::refine(&mut *perf) {
                if host.layout.path_bandwidth && (*perf).field_mask & 1 << 9 != 0 {
                    perf.add(1).cast::<ucx::Bandwidth>().write(bandwidth);
                }
            }
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn get_device_address(_iface: ucx::Iface, out: *mut u8) -> Status {
    // SAFETY: UCX gives as much room as `query` said.
    guard(|| unsafe {
        out.cast::<[u8; PLACE]>().write(place());
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn get_address(iface: ucx::Iface, out: *mut u8) -> Status {
    guard(|| {
        // SAFETY: an interface of ours; UCX gives as much room as `query` said.
        unsafe {
            let mut address = [0; ADDRESS];
            address[..2].copy_from_slice(&of(iface).link.addr().port().to_le_bytes());
            address[4..].copy_from_slice(&std::process::id().to_le_bytes());
            out.cast::<[u8; ADDRESS]>().write(address);
        }
        ucx::UCS_OK
    })
}

/// The link's name for an interface's address.
///
/// # Safety
/// `address` must be an interface's address.
pub(crate) unsafe fn name(address: *const u8) -> Addr {
    // SAFETY: the caller's promise.
    let bytes = unsafe { address.cast::<[u8; 2]>().read() };
    Addr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, u16::from_le_bytes(bytes))))
}

/// Whether an interface at this device address can be reached.
///
/// # Safety
/// `address` must be a device address.
pub(crate) unsafe fn same_place(address: *const u8) -> bool {
    // SAFETY: the caller's promise.
    place() == unsafe { address.cast::<[u8; PLACE]>().read() }
}

pub(crate) unsafe extern "C" fn is_reachable(
    _iface: ucx::Iface,
    device: *const u8,
    _iface_addr: *const u8,
) -> c_int {
    // SAFETY: UCX passes an address of this transport.
    guard(|| int(unsafe { same_place(device) }))
}

/// Tells UCX why, if it wants to know; `text` ends in NUL.
///
/// # Safety
/// `p` must be UCX's.
pub(crate) unsafe fn unreachable_because(p: &AddrParams, text: &[u8]) {
    let both = ucx::ADDR_PARAMS_INFO | ucx::ADDR_PARAMS_INFO_LENGTH;
    let n = text.len().min(p.info_string_length);
    if p.field_mask & both == both && n > 0 && !p.info_string.is_null() {
        // SAFETY: UCX gives room for that many characters; the last one ends the text.
        unsafe {
            p.info_string.copy_from_nonoverlapping(text.as_ptr().cast::<c_char>(), n);
            p.info_string.add(n - 1).write(0);
        }
    }
}

/// Since 1.15.
pub(crate) unsafe extern "C" fn is_reachable_v2(_iface: ucx::Iface, params: *const AddrParams) -> c_int {
    guard(|| {
        // SAFETY: UCX's structure.
        let p = unsafe { &*params };
        if p.field_mask & ucx::ADDR_PARAMS_DEVICE == 0 || p.device_addr.is_null() {
            return 0;
        }
        // SAFETY: UCX passes an address of this transport.
        let yes = unsafe { same_place(p.device_addr) };
        if !yes {
            // SAFETY: UCX's structure.
            unsafe { unreachable_because(p, b"another host, network namespace or user\0") };
        }
        int(yes)
    })
}

pub(crate) unsafe extern "C" fn flush(iface: ucx::Iface, _flags: c_uint, comp: *mut Completion) -> Status {
    guard(|| {
        if !comp.is_null() {
            return ucx::UCS_ERR_UNSUPPORTED;
        }
        full_fence();
        // SAFETY: an interface of ours.
        let i = unsafe { of(iface) };
        // What waits for its turn was posted before, too.
        let done = i.remote.idle() && i.shared.is_empty() && i.stuck.is_empty() && i.waiting.is_empty();
        if done { ucx::UCS_OK } else { ucx::UCS_INPROGRESS }
    })
}

pub(crate) unsafe extern "C" fn fence(iface: ucx::Iface, _flags: c_uint) -> Status {
    guard(|| {
        full_fence();
        // SAFETY: an interface of ours, and its endpoints.
        unsafe {
            for ep in of(iface).eps.values().flatten() {
                (**ep).fence();
            }
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn progress_enable(iface: ucx::Iface, flags: c_uint) {
    // SAFETY: an interface of ours.
    guard(|| unsafe { (of(iface).served.host.progress_enable)(iface, flags) });
}

pub(crate) unsafe extern "C" fn progress_disable(iface: ucx::Iface, flags: c_uint) {
    // SAFETY: an interface of ours.
    guard(|| unsafe { (of(iface).served.host.progress_disable)(iface, flags) });
}

pub(crate) unsafe extern "C" fn progress(iface: ucx::Iface) -> c_uint {
    let this = iface.cast::<Iface>();
    // SAFETY: an interface of ours, which UCX does not close in its own callbacks.
    guard(|| unsafe {
        // Most calls find nothing, and what such a call costs delays what comes meanwhile.
        match (*this).link.glance() {
            Glance::Nothing if !(*this).busy => {
                look_no_further();
                nothing(this);
                0
            }
            Glance::Frame(frame) => advance(this, Some(frame)),
            _ => advance(this, None),
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
        (*this).empty += 1;
        if (*this).empty == PATIENCE {
            rest(this);
        }
    }
}

/// Takes in what has come, `frame` first. Not part of `progress`, which so has few registers to save.
///
/// # Safety
/// `this` must be an interface of ours. Nothing borrows from it while UCX's handlers run.
#[inline(never)]
unsafe fn advance(this: *mut Iface, mut frame: Option<ShmFrame>) -> u32 {
    let mut done = 0;
    // SAFETY: the caller's promise; each borrow ends before a handler is called.
    unsafe {
        let budget = (*this).budget;
        while done < budget {
            let event = match frame.take() {
                Some(frame) => Some(Event::Frame(frame)),
                None => (*this).link.poll(),
            };
            match event {
                None => break,
                Some(Event::Frame(first)) => {
                    let from = first.from();
                    receive(this, first);
                    // Most probably the next one is of the same peer's.
                    if done + 1 < budget {
                        frame = (*this).link.more(from);
                    }
                }
                Some(Event::Closed(peer, why)) => closed(this, peer, why),
                // Of copies by a device, which another interface does.
                Some(Event::Copied(..)) => {}
            }
            done += 1;
        }
        // A stream of messages is taken in by batches; a single one is handed on at once.
        (*this).budget = if done == budget { (budget * 2).min(BATCH) } else { (budget / 2).max(1) };
        if (*this).busy {
            done += attend(this);
        }
        if done > 0 { (*this).empty = 0 } else { nothing(this) }
    }
    done
}

/// Nothing has come for long.
///
/// # Safety
/// `this` must be an interface of ours.
#[cold]
unsafe fn rest(this: *mut Iface) {
    // SAFETY: the caller's promise.
    let alone = unsafe {
        (*this).empty = 0;
        (*this).eps.is_empty()
    };
    // Who talks to nobody here waits for somebody elsewhere.
    if !alone {
        std::thread::yield_now();
    }
}

/// Takes a frame in.
///
/// # Safety
/// As for `advance`.
#[inline]
unsafe fn receive(this: *mut Iface, frame: ShmFrame) {
    let (from, len) = (frame.from(), frame.len());
    // SAFETY: the caller's promise; a buffer has room for `MAX_FRAME` bytes, zeroed when it was made, and
    // is nobody else's.
    unsafe {
        let i = &mut *this;
        let buffer = i.rx.take();
        let data = i.rx.data(&buffer);
        let Some([kind, id, ..]) = i.link.receive::<HEAD>(frame, data, i.rx.room()) else {
            i.rx.give(buffer);
            return log::warn!("dropped a frame of {len} bytes from {}", i.link.peer_addr(from));
        };
        let n = len - HEAD;
        if kind == AM && usize::from(id) < ucx::UCT_AM_ID_MAX {
            let handler = i.base.am[usize::from(id)];
            let flags = if n > INLINE { ucx::UCT_CB_PARAM_FLAG_DESC } else { 0 };
            let status = (handler.cb)(handler.arg, data.cast(), n, flags);
            let i = &mut *this;
            if flags != 0 && status == ucx::UCS_INPROGRESS {
                i.rx.lend(buffer);
            } else {
                i.rx.give(buffer);
            }
        } else {
            crate::remote::hear(this, from, [kind, id], std::slice::from_raw_parts(data, n));
            (*this).rx.give(buffer);
        }
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
        share::help_ends(&mut *this, peer);
        for ep in (*this).eps.get(&peer).cloned().unwrap_or_default() {
            ep::fail(ep, ucx::UCS_ERR_CONNECTION_RESET);
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
        done += share::help_on(&mut *this);
        done += share::progress(this);
        while let Some(ep) = (*this).failed.pop() {
            done += 1;
            ep::report(this, ep);
        }
        done += ep::dispatch(this);
        let i = &mut *this;
        i.busy = !i.failed.is_empty()
            || !i.waiting.is_empty()
            || !i.remote.sent()
            || !i.shared.is_empty()
            || !i.stuck.is_empty()
            || !i.helping.is_empty();
    }
    done
}

pub(crate) unsafe extern "C" fn event_fd_get(iface: ucx::Iface, fd: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and a place for the answer.
        unsafe { fd.write(of(iface).link.wait_fd()) };
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn event_arm(iface: ucx::Iface, _events: c_uint) -> Status {
    guard(|| {
        // SAFETY: an interface of ours.
        let i = unsafe { of(iface) };
        // Who shares a copy tells it by no ring.
        if !i.failed.is_empty() || !i.shared.is_empty() || !i.stuck.is_empty() || !i.helping.is_empty() {
            return ucx::UCS_ERR_BUSY;
        }
        if i.link.arm() { ucx::UCS_OK } else { ucx::UCS_ERR_BUSY }
    })
}

impl Iface {
    /// Whether an endpoint is (still) one of ours.
    pub(crate) fn has(&self, ep: *mut Ep) -> bool {
        self.live.contains(&ep)
    }

    /// The link need not remember a peer that is gone, unless something here still names it.
    pub(crate) fn let_go(&mut self, peer: PeerId) {
        let shared = self.shared.iter().chain(&self.stuck).any(|s| s.peer == peer);
        let shared = shared || share::helps(self, peer);
        let named = shared || self.eps.contains_key(&peer) || self.remote.names(peer);
        if !named && !self.link.is_met(peer) {
            self.remote.forget(peer);
            self.link.forget(peer);
        }
    }

    /// Forgets what an endpoint has under way; the completions.
    pub(crate) fn abandon(&mut self, ep: *mut Ep) -> Vec<*mut Completion> {
        let mut out = self.remote.abandon(ep);
        out.extend(share::abandon(self, ep));
        out
    }
}
