//! The interface: opening, addresses, flush.

pub(crate) mod attr;
pub(crate) mod place;
pub(crate) mod progress;
pub(crate) mod rx;
pub(crate) mod slabs;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use link::{OpenOptions, ShmLink, full_fence};
use link_api::Link;
use ucx_sys::{
    self as ucx, AddrParams, Completion, IfaceAttr, IfaceOps, IfaceParams, PerfAttr, Status, Table,
};
use wire::Addr;
use wire::ucx::{HostAddr, Place};

use crate::device;
use crate::ep::waiting::Waiting;
use crate::ffi::guard;
use crate::ffi::int;
use crate::iface::place::{PLACE, place, unreachable_because};
use crate::iface::rx::Buffers;
use crate::md::Md;
use crate::md::readers::Readers;
use crate::param;
use crate::rma::coop_help;
use crate::rma::requests::Requests;
use crate::rma::served::Served;
use crate::state::Iface;

/// The protocol version of this transport; the engine's peers have another one.
const VERSION: u16 = 0x5507;

/// Bytes of an interface's address.
const ADDRESS: usize = size_of::<HostAddr>();

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
            // SAFETY: a domain of ours, of that sort.
            let served = unsafe { (*md.cast::<device::md::Md>()).served };
            let Some(iface) = device::iface::new(served) else { return ucx::UCS_ERR_IO_ERROR };
            let tables = (&served.device_iface_ops, &served.device_internal_ops);
            // SAFETY: made just now, and begins with the base of an interface.
            return unsafe { init(iface, served, tables, (md, worker, params, config), out) };
        }
        // SAFETY: a domain of ours, of the other sort; UCX's arguments.
        let (owner, p) = unsafe { (&*md.cast::<Md>(), &*params) };
        let served = owner.served;
        let iface = match new(owner, p) {
            Ok(iface) => iface,
            Err(status) => return status,
        };
        let tables = (&served.iface_ops, &served.internal_ops);
        // SAFETY: made just now, and begins with the base of an interface.
        unsafe { init(iface, served, tables, (md, worker, params, config), out) }
    })
}

/// A new interface, which UCX has still to initialise the front of.
fn new(owner: &Md, p: &IfaceParams) -> Result<*mut Iface, Status> {
    let headroom = if p.field_mask & ucx::UCT_IFACE_PARAM_FIELD_RX_HEADROOM != 0 { p.rx_headroom } else { 0 };
    let if_set = |field, value| if p.field_mask & field != 0 { Some(value) } else { None };
    let align = (
        if_set(ucx::UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT, p.am_alignment).unwrap_or(1),
        if_set(ucx::UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET, p.am_align_offset).unwrap_or(0),
    );
    let Some(rx) = Buffers::new(headroom, align) else {
        log::error!("an alignment of {} bytes is none that messages can have", align.0);
        return Err(ucx::UCS_ERR_INVALID_PARAM);
    };
    let settings = param::get();
    let options = OpenOptions {
        bind: Some((Ipv4Addr::LOCALHOST, 0).into()),
        ring: settings.rings.0,
        long_ring: settings.rings.1,
        cma: owner.cma,
        // For device memory there is another interface.
        device_direct: false,
        // An interface has an address only once it listens.
        connect_timeout: Duration::ZERO,
        version: VERSION,
        windows: Some(owner.regions.windows.clone()),
        ..OpenOptions::default()
    };
    let link = match ShmLink::open(options) {
        Ok(link) => link,
        Err(e) => {
            let no_memory = e.raw_os_error() == Some(libc::ENOMEM);
            let cure = if no_memory {
                format!("; {}", link::MemoryLimit(param::get().rings.0))
            } else {
                String::new()
            };
            log::error!("no endpoint on this host: {e}{cure}");
            return Err(if no_memory { ucx::UCS_ERR_NO_MEMORY } else { ucx::UCS_ERR_IO_ERROR });
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
        (&raw mut (*at).rounds).write(0);
        (&raw mut (*at).busy).write(false);
        (&raw mut (*at).waiting).write(Waiting::default());
        (&raw mut (*at).dispatching).write(std::ptr::null_mut());
        (&raw mut (*at).failed).write(Vec::new());
        (&raw mut (*at).eps).write(HashMap::new());
        (&raw mut (*at).live).write(HashSet::new());
        (&raw mut (*at).remote).write(Requests::default());
        (&raw mut (*at).deferred).write(VecDeque::new());
        (&raw mut (*at).shared).write(Vec::new());
        (&raw mut (*at).stuck).write(Vec::new());
        (&raw mut (*at).helping).write(VecDeque::new());
        (&raw mut (*at).served).write(served);
        (&raw mut (*at).md).write(owner);
        (&raw mut (*at).bounce).write(Vec::new());
        (&raw mut (*at).readers).write(Readers::new());
    }
    Ok(Box::into_raw(iface).cast())
}

/// What UCX calls `open` with.
type Arguments = (ucx::Md, *mut c_void, *const IfaceParams, *const c_void);

/// Has UCX initialise the base of an interface of sort `I`, and hands that over.
///
/// # Safety
/// `iface` was boxed, has no other user, and begins with a `BaseIface`; UCX's arguments.
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
            let host = &Iface::of(iface).served.host;
            (host.progress_disable)(iface, ucx::UCT_PROGRESS_BOTH);
            coop_help::closes(Iface::of(iface));
            (host.class_cleanup)(host.base_iface_class, iface, -1);
            drop(Box::from_raw(iface.cast::<Iface>()));
        }
    });
}

pub(crate) unsafe extern "C" fn query(iface: ucx::Iface, out: *mut IfaceAttr) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and UCX's structure, which its function sets to defaults.
        unsafe {
            (Iface::of(iface).served.host.base_iface_query)(iface, out);
            attr::fill(&mut *out, (*Iface::of(iface).md).cma, PLACE, ADDRESS);
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn estimate_perf(iface: ucx::Iface, perf: *mut PerfAttr) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and UCX's structure of its release.
        unsafe {
            let host = &Iface::of(iface).served.host;
            // The domain has the kinds of memory there are; UCX passes "unknown" as well.
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
        out.cast::<Place>().write(place());
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn get_address(iface: ucx::Iface, out: *mut u8) -> Status {
    guard(|| {
        // SAFETY: an interface of ours; UCX gives as much room as `query` said.
        unsafe {
            let port = Iface::of(iface).link.addr().port().into();
            let address = HostAddr { port, zero: 0.into(), pid: std::process::id().into() };
            out.cast::<HostAddr>().write(address);
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
    let HostAddr { port, .. } = unsafe { address.cast::<HostAddr>().read() };
    Addr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port.get())))
}

/// Whether an interface at this device address can be reached.
///
/// # Safety
/// `address` must be a device address.
pub(crate) unsafe fn same_place(address: *const u8) -> bool {
    // SAFETY: the caller's promise.
    place() == unsafe { address.cast::<Place>().read() }
}

pub(crate) unsafe extern "C" fn is_reachable(
    _iface: ucx::Iface,
    device: *const u8,
    _iface_addr: *const u8,
) -> c_int {
    // SAFETY: UCX passes an address of this transport.
    guard(|| int(unsafe { same_place(device) }))
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
        let i = unsafe { Iface::of(iface) };
        // What waits for its turn was posted before, too.
        let copied = i.deferred.is_empty() && i.shared.is_empty() && i.stuck.is_empty();
        let done = copied && i.remote.idle() && i.waiting.is_empty();
        if done { ucx::UCS_OK } else { ucx::UCS_INPROGRESS }
    })
}

pub(crate) unsafe extern "C" fn fence(iface: ucx::Iface, _flags: c_uint) -> Status {
    guard(|| {
        full_fence();
        // SAFETY: an interface of ours, and its endpoints.
        unsafe {
            for ep in Iface::of(iface).eps.values().flatten() {
                (**ep).fence();
            }
        }
        ucx::UCS_OK
    })
}
