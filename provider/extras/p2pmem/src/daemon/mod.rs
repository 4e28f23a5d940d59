//! An orchestrator for several processes: a daemon on a unix socket, and its clients.
//!
//! Each packet is one message ([`wire`]). The kernel says which user and process a client is; quotas are by
//! that user. What a client holds goes back when its connection ends, so when it is killed; what it has
//! published is taken out then, and revoked at its users. Nothing that a client sends is trusted: lengths,
//! counts and descriptors are checked, and a packet that makes no sense ends its connection.

mod client;
mod server;
mod session;
pub mod wire;

pub use client::{Connection, Publication, Remote, Wanted};
pub use server::Server;
pub use session::{Session, SharedBuffer};
pub use wire::Published;

/// The name of the daemon's socket, an abstract one, if no other is given. One that begins with / is a path.
pub const NAME: &str = "strait-p2pmem";
