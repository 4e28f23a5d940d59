//! Device memory: a memory domain and an interface of their own, so that UCP chooses for each kind of
//! memory. There are such only in processes that have loaded CUDA's driver. What UCP finds out and does
//! with UCX's own cuda_copy stays there: what memory an address is, and copies between device and host.
//!
//! A peer's key names allocations ([`hmem::share::Export`]); a process that has the key opens them, and has
//! its own device copy. The copy completes by progress, when the device is done.
//!
//! | module | what it holds |
//! |---|---|
//! | `md` | registrations |
//! | `key` | packed keys, and what they are in the process that unpacks them |
//! | `state` | what an interface and its endpoints are |
//! | `iface` | the interface: opening, addresses, progress |
//! | `copies` | the copies in flight, and their reader slots |
//! | `ep` | endpoints: put, get, flush |

mod copies;
pub(crate) mod ep;
pub(crate) mod iface;
pub(crate) mod key;
pub(crate) mod md;
mod state;

use std::sync::Mutex;

use hmem::Kind;
use hmem::share::Owner;

/// The name of the memory domain.
pub(crate) const NAME: &std::ffi::CStr = c"strait_cuda";

/// Whether there can be device memory in this process.
pub(crate) fn is_here() -> bool {
    hmem::registry::is_here(Kind::Cuda)
}

/// This process; a forked child is another one.
fn myself() -> Owner {
    static MYSELF: Mutex<Option<Owner>> = Mutex::new(None);
    let mut myself = MYSELF.lock().unwrap_or_else(|e| e.into_inner());
    let pid = std::process::id() as i32;
    match *myself {
        Some(me) if me.pid == pid => me,
        _ => *myself.insert(Owner::now(pid)),
    }
}
