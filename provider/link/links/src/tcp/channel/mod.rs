//! A connection that is agreed on, and those that it has besides: bytes, records, frames.

pub(super) mod at_hand;
pub(super) mod connection;
pub(super) mod incoming;
pub(super) mod landing;
pub(super) mod line;
pub(super) mod outgoing;
pub(super) mod pool;
pub(super) mod rails;
pub(super) mod silence;
