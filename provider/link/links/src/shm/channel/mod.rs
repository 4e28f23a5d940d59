//! The shared memory from one endpoint to another: its segment, the ring in it, and who is awake at either
//! end.

pub(super) mod allowance;
pub(super) mod producer;
pub(super) mod ring;
pub(super) mod rings;
pub(super) mod segment;
pub(super) mod shrink;
pub(super) mod wake;
