//! Meeting peers: names, connections that are being made, and which of several counts.

pub(super) mod agreement;
pub(super) mod answers;
pub(super) mod callers;
pub(super) mod calls;
pub(super) mod handshake;
pub(super) mod listening;
pub(super) mod meeting;
pub(super) mod names;
pub(super) mod own;
pub(super) mod promises;
pub(super) mod railed;
pub(super) mod sensible;
