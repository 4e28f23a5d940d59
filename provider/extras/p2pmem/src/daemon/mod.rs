//! An orchestrator for several processes: a daemon on a unix socket, and its clients.
//!
//! Each packet is one message ([`wire`]). The kernel says which user and process a client is; quotas are by
//! that user. What a client holds goes back when its connection ends, so when it is killed. Nothing that a
//! client sends is trusted: lengths and counts have limits, and a packet that makes no sense ends its
//! connection.

mod client;
mod server;
pub mod wire;

pub use client::{Connection, Published, Remote};
pub use server::Server;

/// The name of the daemon's socket, an abstract one, if no other is given.
pub const NAME: &str = "strait-p2pmem";
