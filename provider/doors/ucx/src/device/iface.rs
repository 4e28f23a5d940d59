//! The interface: opening, addresses, progress.

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use hmem::share::Owner;
use ucx_sys::{self as ucx, AddrParams, Completion, IfaceAttr, PerfAttr, Status};
use wire::ucx::{DeviceAddr, Place};

use super::copies::{Copies, Copy};
use super::state::{Ep, Iface};
use crate::ffi::{complete, guard, int};
use crate::iface::attr;
use crate::iface::place::{PLACE, place, unreachable_because};
use crate::rma::served::Served;

/// Copies that one call of progress completes at most.
const BATCH: u32 = 16;

/// Bytes of an interface's address: which process it is of.
const ADDRESS: usize = size_of::<DeviceAddr>();

/// A new interface, which UCX has still to initialise the front of.
pub(crate) fn new(served: &'static Served) -> Option<*mut Iface> {
    // SAFETY: nothing but plain numbers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return None;
    }
    let mut iface: Box<std::mem::MaybeUninit<Iface>> = Box::new_uninit();
    let at = iface.as_mut_ptr();
    // SAFETY: every field is written once: `base` with zeros; a descriptor just made, for us.
    unsafe {
        (&raw mut (*at).base).write_bytes(0, 1);
        (&raw mut (*at).copies).write(Copies::new());
        (&raw mut (*at).eps).write(Vec::new());
        (&raw mut (*at).served).write(served);
        (&raw mut (*at).event).write(OwnedFd::from_raw_fd(fd));
        (&raw mut (*at).bandwidth).write(hmem::cuda::peer_bandwidth());
    }
    Some(Box::into_raw(iface).cast())
}

pub(crate) unsafe extern "C" fn close(iface: ucx::Iface) {
    guard(|| {
        // SAFETY: an interface of ours, closed once.
        unsafe {
            let host = &Iface::of(iface).served.host;
            (host.progress_disable)(iface, ucx::UCT_PROGRESS_BOTH);
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
            attr::fill_device(&mut *out, Iface::of(iface).bandwidth, PLACE, ADDRESS);
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn estimate_perf(iface: ucx::Iface, perf: *mut PerfAttr) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and UCX's structure of its release.
        unsafe {
            let status = (Iface::of(iface).served.host.base_iface_estimate_perf)(iface, perf.cast());
            if status == ucx::UCS_OK && (*perf).field_mask & ucx::UCT_PERF_ATTR_FIELD_RECV_OVERHEAD != 0 {
                // The peer has nothing to do.
                (*perf).recv_overhead = 0.0;
            }
            status
        }
    })
}

/// Where this process's devices are reached from: as for the host's memory, and where a pid means the same.
fn own_place() -> Place {
    let Place { host, uid, .. } = place();
    let pids = std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| std::os::unix::fs::MetadataExt::ino(&m));
    // Never that of an interface for host memory.
    Place { host: (!host.get()).into(), namespace: (pids as u32).into(), uid }
}

/// # Safety
/// `address` must be a device address of this transport.
pub(super) unsafe fn same_place(address: *const u8) -> bool {
    // SAFETY: the caller's promise.
    own_place() == unsafe { address.cast::<Place>().read() }
}

pub(crate) unsafe extern "C" fn get_device_address(_iface: ucx::Iface, out: *mut u8) -> Status {
    // SAFETY: UCX gives as much room as `query` said.
    guard(|| unsafe {
        out.cast::<Place>().write(own_place());
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn get_address(_iface: ucx::Iface, out: *mut u8) -> Status {
    guard(|| {
        let me = super::myself();
        let address = DeviceAddr { id: me.id.into(), pid: (me.pid as u32).into(), zero: 0.into() };
        // SAFETY: UCX gives as much room as `query` said.
        unsafe { out.cast::<DeviceAddr>().write(address) };
        ucx::UCS_OK
    })
}

/// The process that an interface's address is of.
///
/// # Safety
/// `address` must be an interface's address.
pub(super) unsafe fn owner(address: *const u8) -> Owner {
    // SAFETY: the caller's promise.
    let DeviceAddr { id, pid, .. } = unsafe { address.cast::<DeviceAddr>().read() };
    Owner { id: id.get(), pid: pid.get() as i32 }
}

/// Why an interface at these addresses cannot be reached; empty if it can. Within a process UCX has its own
/// copies, and asks for some with no key at all.
///
/// # Safety
/// They must be of this transport, or null where unknown.
unsafe fn hindrance(device: *const u8, iface: *const u8) -> &'static [u8] {
    // SAFETY: the caller's promise.
    unsafe {
        match () {
            () if device.is_null() => b"no address\0",
            () if !same_place(device) => b"another host, pid namespace or user, or host memory\0",
            () if !iface.is_null() && owner(iface) == super::myself() => b"the same process\0",
            () => b"",
        }
    }
}

pub(crate) unsafe extern "C" fn is_reachable(
    _iface: ucx::Iface,
    device: *const u8,
    iface_addr: *const u8,
) -> c_int {
    // SAFETY: UCX passes addresses of this transport.
    guard(|| int(unsafe { hindrance(device, iface_addr) }.is_empty()))
}

/// Since 1.15.
pub(crate) unsafe extern "C" fn is_reachable_v2(_iface: ucx::Iface, params: *const AddrParams) -> c_int {
    guard(|| {
        // SAFETY: UCX's structure, with addresses of this transport.
        unsafe {
            let p = &*params;
            let field_at = |field, at| if p.field_mask & field != 0 { at } else { std::ptr::null() };
            let device = field_at(ucx::ADDR_PARAMS_DEVICE, p.device_addr);
            let why = hindrance(device, field_at(ucx::ADDR_PARAMS_IFACE, p.iface_addr));
            if !why.is_empty() {
                unreachable_because(p, why);
            }
            int(why.is_empty())
        }
    })
}

pub(crate) unsafe extern "C" fn flush(iface: ucx::Iface, _flags: c_uint, comp: *mut Completion) -> Status {
    guard(|| {
        if !comp.is_null() {
            return ucx::UCS_ERR_UNSUPPORTED;
        }
        // SAFETY: an interface of ours.
        if unsafe { Iface::of(iface).copies.is_empty() } { ucx::UCS_OK } else { ucx::UCS_INPROGRESS }
    })
}

pub(crate) unsafe extern "C" fn fence(iface: ucx::Iface, _flags: c_uint) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and its endpoints.
        unsafe {
            for ep in &Iface::of(iface).eps {
                (**ep).fence();
            }
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn progress_enable(iface: ucx::Iface, flags: c_uint) {
    // SAFETY: an interface of ours.
    guard(|| unsafe { (Iface::of(iface).served.host.progress_enable)(iface, flags) });
}

pub(crate) unsafe extern "C" fn progress_disable(iface: ucx::Iface, flags: c_uint) {
    // SAFETY: an interface of ours.
    guard(|| unsafe { (Iface::of(iface).served.host.progress_disable)(iface, flags) });
}

/// Completes the copies that are done.
pub(crate) unsafe extern "C" fn progress(iface: ucx::Iface) -> c_uint {
    let this = iface.cast::<Iface>();
    // SAFETY: an interface of ours, which UCX does not close in its own callbacks.
    unsafe {
        if (*this).copies.is_empty() {
            return 0;
        }
    }
    guard(|| {
        let mut done = 0;
        while done < BATCH {
            // SAFETY: an interface of ours, which UCX does not close in its own callbacks; the borrow ends
            // before the completion.
            let next = unsafe { (*this).copies.next() };
            let Some((copy, status)) = next else { break };
            // SAFETY: the completion waits for this copy.
            unsafe { over(this, copy, status) };
            done += 1;
        }
        done
    })
}

pub(crate) unsafe extern "C" fn event_fd_get(iface: ucx::Iface, fd: *mut c_int) -> Status {
    guard(|| {
        // SAFETY: an interface of ours, and a place for the answer.
        unsafe { fd.write(Iface::of(iface).event.as_raw_fd()) };
        ucx::UCS_OK
    })
}

/// A device wakes no process, so that none may sleep meanwhile.
pub(crate) unsafe extern "C" fn event_arm(iface: ucx::Iface, _events: c_uint) -> Status {
    guard(|| {
        // SAFETY: an interface of ours.
        if unsafe { Iface::of(iface).copies.is_empty() } { ucx::UCS_OK } else { ucx::UCS_ERR_BUSY }
    })
}

/// A copy is over: completes it, and flushes that waited for it.
///
/// # Safety
/// `this` must be an interface that no one borrows from. Calls UCX back.
unsafe fn over(this: *mut Iface, copy: Copy<Ep>, status: Status) {
    // SAFETY: the caller's promise; UCX may destroy the endpoint whenever it is called.
    unsafe {
        (*copy.ep).outstanding -= 1;
        complete(copy.comp, status);
        if !(*this).has(copy.ep) || (*copy.ep).outstanding > 0 {
            return;
        }
        (*copy.ep).fenced = false;
        for comp in std::mem::take(&mut (*copy.ep).flushes) {
            complete(comp, ucx::UCS_OK);
        }
    }
}
