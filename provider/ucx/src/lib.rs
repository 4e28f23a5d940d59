//! Strait's UCX transport (TL): UCX loads it, or it is preloaded.
//!
//! It translates UCT's operations to those of [`link::ShmLink`]; matching and protocols are UCP's.
//!
//! | module | what it holds |
//! |---|---|
//! | `tables` | what is registered with each copy of UCX |
//! | `md` | memory: windows, registrations, packed keys |
//! | `rkey` | remote keys |
//! | `region` | which memory of this process peers may name, and its revocation |
//! | `readers` | accesses to memory that its owner may take back |
//! | `state` | what an interface and its endpoints are: below all that follows |
//! | `iface` | the interface: opening, addresses, flush |
//! | `progress` | the interface: progress, events |
//! | `attr` | the attributes of the interface |
//! | `ep` | endpoints: opening, failures, flush |
//! | `am` | active messages |
//! | `pending`, `waiting`, `queue` | waiting requests, the endpoints that have some, and their queue |
//! | `rma`, `atomic` | put, get and atomics, in mapped memory or by `direct` |
//! | `direct` | which way memory is reached; by CMA, or by request |
//! | `deferred` | large gets by CMA, which the next call of progress does |
//! | `share`, `help`, `coop` | cooperative puts and gets: the initiator, the target, the state of either |
//! | `remote`, `serve`, `requests` | requests to the peer's progress; those of peers; those under way |
//! | `metered` | counts of what is sent, for reports |
//! | `frame` | how long frames are, and why one is dropped; their layout is `wire::ucx` |
//! | `rx` | receive buffers |
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
mod atomic;
mod attr;
mod coop;
mod deferred;
mod device;
mod direct;
mod ep;
mod ffi;
mod frame;
mod help;
mod iface;
mod keyhead;
mod log;
mod md;
mod metered;
mod param;
mod params;
mod pending;
mod place;
mod progress;
mod queue;
mod readers;
mod region;
mod remote;
mod requests;
mod rkey;
mod rma;
mod rx;
mod serve;
mod served;
mod share;
mod slabs;
mod state;
mod tables;
mod waiting;

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
