//! The fabric: fi_fabric(3).

mod open;

use std::sync::Arc;

use libfabric_sys as fi;

use crate::ffi::Refs;
pub(crate) use open::open;

/// `struct fid_fabric`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct FabricFid {
    pub fid: fi::fid_fabric,
    pub shared: Arc<FabricShared>,
}

/// What outlives the application's view of it, as long as something opened in it is open.
#[derive(Debug)]
pub(crate) struct FabricShared {
    pub api_version: u32,
    /// Domains and event queues.
    pub children: Refs,
}
