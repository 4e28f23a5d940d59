//! Transfers of devices' memory: by handles, staged in page-locked memory, and by bounce buffers.

pub(super) mod bounce;
pub(super) mod bounces;
pub(super) mod handles;
pub(super) mod inject;
pub(super) mod lent;
pub(super) mod staged;
pub(super) mod staging;
