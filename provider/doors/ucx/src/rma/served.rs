//! The copies of UCX that are served.

use std::ffi::c_void;
use std::sync::Mutex;

use ucx_sys::{Host, IfaceOps, Table};

/// A served copy of UCX. It lives for ever: UCX has pointers into it.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) host: Host,
    pub(crate) md_ops: Table,
    pub(crate) internal_ops: Table,
    pub(crate) iface_ops: IfaceOps,
    /// The same for device memory.
    pub(crate) device_md_ops: Table,
    pub(crate) device_internal_ops: Table,
    pub(crate) device_iface_ops: IfaceOps,
    /// Owned by UCX since registration: it links them into lists.
    pub(crate) component: *mut c_void,
    pub(crate) tl: *mut c_void,
}

// SAFETY: the tables are constant once made; the two pointers are only compared.
unsafe impl Send for Served {}
// SAFETY: as above.
unsafe impl Sync for Served {}

pub(crate) static SERVED: Mutex<Vec<&'static Served>> = Mutex::new(Vec::new());

/// The copy of UCX that is served with this component.
pub(crate) fn of_component(component: *const c_void) -> Option<&'static Served> {
    let served = SERVED.lock().unwrap_or_else(|e| e.into_inner());
    served.iter().find(|s| s.component.cast_const() == component).copied()
}
