//! RMA and atomics, and their order.

pub(super) mod atomics;
pub(super) mod in_order;
pub(super) mod onesided;
pub(super) mod target;
