//! What a descriptor is in the poller of a link, by the upper half of its token; the lower half says which.

pub(in crate::shm) const LISTENER: u64 = u64::MAX;
pub(in crate::shm) const OUT: u64 = 1 << 32;
pub(in crate::shm) const IN: u64 = 2 << 32;
pub(in crate::shm) const GUEST: u64 = 3 << 32;
pub(in crate::shm) const LIFE: u64 = 4 << 32;
pub(in crate::shm) const TIMER: u64 = 5 << 32;
pub(in crate::shm) const EXECUTED: u64 = 6 << 32;
pub(in crate::shm) const KIND: u64 = !0 << 32;
