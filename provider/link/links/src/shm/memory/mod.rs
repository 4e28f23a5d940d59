//! Memory that peers access: registrations, windows, devices' allocations, and taking it back.

pub(super) mod access;
pub(super) mod copies;
pub(super) mod devices;
pub(super) mod grant;
pub(super) mod mr_table;
pub(super) mod parted;
pub(super) mod window;
pub(super) mod windows;
