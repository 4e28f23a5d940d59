//! RMA and atomics, and their order.

pub(super) mod atomics;
pub(super) mod onesided;
pub(super) mod order;
pub(super) mod target;
