//! Strait's door to UCX: a transport (TL) that UCX loads, or that is preloaded to it.
//!
//! It translates UCT's operations to those of [`link::ShmLink`]; matching and protocols are UCP's.
//!
//! | module | what it holds |
//! |---|---|
//! | `ffi` | the boundary: panics, pointers |
//! | `tables` | what is registered with each copy of UCX |
//! | `md` | memory: windows, registrations, remote keys |
//! | `region` | what memory of ours peers may name, and how that is taken back |
//! | `iface` | the interface: opening, addresses, progress, events, failures |
//! | `attr` | what the interface says of itself |
//! | `ep` | endpoints: active messages, pending requests, flush |
//! | `queue` | the queue of endpoints with pending requests |
//! | `rma` | put, get and atomics: mapped, by CMA, or by request |
//! | `share` | large ones by CMA, which both sides copy |
//! | `remote` | requests to the peer's progress, and their replies |
//! | `rx` | receive buffers |
//! | `device` | device memory: a domain, an interface and endpoints of its own |
//! | `log`, `param` | the log, `STRAIT_UCX_*` |
//!
//! No UCX is linked to. UCX calls in by one of two doors:
//!
//! * [`ucs_module_global_init`], when it finds the file through UCX_PLUGIN_PATH (1.22 and newer);
//! * [`uct_query_components`], which a preloaded copy interposes (before 1.22).
//!
//! Either registers with every UCX of the process that is not served yet.

use std::ffi::{c_uint, c_void};

use ucx_sys as ucx;

mod attr;
mod device;
mod ep;
mod ffi;
mod iface;
mod log;
mod md;
mod param;
mod queue;
mod region;
mod remote;
mod rma;
mod rx;
mod share;
mod tables;

/// The name of transport, component and memory domain.
pub(crate) const NAME: &str = "strait";

/// Where UCX enters that has loaded us as a module.
#[unsafe(no_mangle)]
pub extern "C" fn ucs_module_global_init() -> ucx::Status {
    ffi::guard_or(ucx::UCS_OK, || {
        tables::register_all();
        ucx::UCS_OK
    })
}

/// Where UCX enters that we were preloaded to: registers, then does what UCX's own does.
///
/// # Safety
/// As UCX's own: both pointers must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uct_query_components(components: *mut c_void, count: *mut c_uint) -> ucx::Status {
    let real = ffi::guard_or(None, || {
        tables::register_all();
        ucx::query_components()
    });
    match real {
        // SAFETY: the caller's arguments, passed on.
        Some(real) => unsafe { real(components, count) },
        None => ucx::UCS_ERR_UNSUPPORTED,
    }
}
