//! Strait's UCX transport (TL): UCX loads it, or it is preloaded.
//!
//! It translates UCT's operations to those of [`link::ShmLink`]; matching and protocols are UCP's.
//!
//! | module | what it holds |
//! |---|---|
//! | `tables` | what is registered with each copy of UCX |
//! | `md` | memory: windows, registrations; the head of packed keys (`keyhead`) |
//! | `md::rkey` | remote keys |
//! | `md::region` | what memory of ours peers may name, and how that is taken back |
//! | `md::readers` | accesses to memory that its owner may take back |
//! | `state` | what an interface and its endpoints are: below all that follows |
//! | `iface` | the interface: opening, addresses, flush |
//! | `iface::progress` | the interface: progress, events |
//! | `iface::attr`, `iface::place` | what the interface says of itself, and of where it is |
//! | `ep` | endpoints: opening, failures, flush |
//! | `am` | active messages |
//! | `ep::{pending, waiting, queue}` | requests that wait, the endpoints with some, and the queue of these |
//! | `rma`, `rma::atomic` | put, get and atomics, in mapped memory or by `direct` |
//! | `rma::direct` | which way memory is reached; by CMA, or by request |
//! | `rma::deferred` | large gets by CMA, which the next call of progress does |
//! | `rma::{coop_begin, coop_help, coop_state}` | large puts and gets by CMA that both sides copy |
//! | `rma::{remote, serve, requests}` | requests to the peer's progress; those of peers; those under way |
//! | `metered` | counting what is sent, where a report is requested |
//! | `frame` | how long frames are, and why one is dropped; their layout is `wire::ucx` |
//! | `iface::rx`, `iface::slabs` | receive buffers, and the memory of them |
//! | `ffi` | the boundary: panics, pointers |
//! | `device` | device memory: a domain, an interface and endpoints of its own |
//! | `log`, `param` | the log, `STRAIT_UCX_*` |
//!
//! No UCX is linked to. UCX calls in by one of two entry points:
//!
//! * [`ucs_module_global_init`], when it finds the file through UCX_PLUGIN_PATH (1.22 and newer);
//! * [`uct_query_components`], which a preloaded copy interposes (before 1.22).
//!
//! Either registers with every UCX of the process that is not served yet.

use std::ffi::{c_uint, c_void};

use ucx_sys as ucx;

mod am;
mod device;
mod ep;
mod ffi;
mod frame;
mod iface;
mod log;
mod md;
mod metered;
mod param;
mod params;
mod rma;
mod state;
mod tables;

/// Where UCX enters that has loaded us as a module.
#[unsafe(no_mangle)]
pub extern "C" fn ucs_module_global_init() -> ucx::Status {
    ffi::guard_or(ucx::UCS_OK, || {
        tables::register_all(metered::table);
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
        tables::register_all(metered::table);
        ucx::query_components()
    });
    match real {
        // SAFETY: the caller's arguments, passed on.
        Some(real) => unsafe { real(components, count) },
        None => ucx::UCS_ERR_UNSUPPORTED,
    }
}
