//! Strait's libfabric provider, which libfabric loads at run time.
//!
//! It translates: libfabric's objects, flags, error numbers and versions on one side, the engine's
//! types on the other. It decides nothing about matching, protocols or completions. The lock of a domain,
//! sleeping, and automatic progress are `runtime`'s.
//!
//! | module | what it holds |
//! |---|---|
//! | `ffi` | the boundary: panics, pointers, references |
//! | `errno`, `log`, `param` | errors, the log, `FI_STRAIT_*` |
//! | `text`, `version` | text for an application's buffers, the provider's version |
//! | `info` | fi_getinfo and what an info means |
//! | `alias` | another name for the provider |
//! | `journal` | what `strait doctor` gets to know of this process |
//! | `observer` | what is pending, for the same |
//! | `report` | the report of messages and bytes at the end of the process |
//! | `fabric`, `domain`, `ep` | the objects of those names |
//! | `av`, `cq`, `cntr`, `eq`, `mr` | the objects of those names |
//! | `wait` | libfabric's wait objects |
//! | `hmem_ops` | the operations of fi_open_ops(3) for device memory |
//! | `xpu` | devices that post by themselves |
//! | `atomic` | which atomic operations there are |
//!
//! libfabric is not linked to: [`libfabric_sys::Core`] finds the copy that has loaded the provider. The only
//! exported symbol is [`fi_prov_ini`].

use std::cell::UnsafeCell;
use std::ptr;

use libfabric_sys as fi;

use version::VERSION;

mod agent;
mod alias;
mod atomic;
mod av;
mod cntr;
mod cq;
mod domain;
mod ep;
mod eq;
mod errno;
mod fabric;
mod ffi;
mod hmem_ops;
mod info;
mod job;
mod journal;
mod log;
mod mr;
mod observer;
mod param;
mod report;
#[cfg(test)]
mod tests;
mod text;
mod version;
mod wait;
mod xpu;

/// What it goes by, unless FI_STRAIT_ALIAS says otherwise.
const NAME: &std::ffi::CStr = c"strait";

/// The oldest core whose structures this code relies on.
const OLDEST_CORE: (u32, u32) = (1, 17);

/// A place that the core writes to: it keeps its own notes in `fi_provider::context`.
struct Provider(UnsafeCell<fi::fi_provider>);

// SAFETY: it is written before fi_prov_ini returns it, and by the core alone from then on.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(UnsafeCell::new(fi::fi_provider {
    version: VERSION,
    fi_version: 0,
    context: fi::fi_context { internal: [ptr::null_mut(); 4] },
    name: NAME.as_ptr(),
    getinfo: Some(info::getinfo),
    fabric: Some(fabric::open),
    cleanup: Some(cleanup),
}));

/// Where libfabric enters. NULL means that this process's core is not one that can be served.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi::fi_provider {
    ffi::guard_or(ptr::null_mut(), || {
        let Some(core) = fi::Core::find(None) else { return ptr::null_mut() };
        if !core.at_least(OLDEST_CORE.0, OLDEST_CORE.1) {
            return ptr::null_mut();
        }
        let provider = PROVIDER.0.get();
        // A provider that implements less than an application asks for is passed over, and what
        // the application asks for is at most what its core has.
        // SAFETY: the core calls this once, before it uses the structure.
        unsafe { (*provider).fi_version = core.version() };
        journal::open();
        log::open(core, provider);
        // SAFETY: the structure that is returned, with its name, which the core has not read yet.
        unsafe {
            // The core names variables after it, and may have it from a former call.
            (*provider).name = NAME.as_ptr();
            param::read(&core, provider);
            info::nic::read_param(&core, provider);
            report::read(&core, provider);
            alias::read(&core, provider);
        }
        provider
    })
}

unsafe extern "C" fn cleanup() {
    ffi::guard_or((), log::close);
}
