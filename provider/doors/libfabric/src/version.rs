//! The provider's version.

/// As libfabric encodes it.
pub(crate) const VERSION: u32 = libfabric_sys::FI_VERSION(0, 1);
