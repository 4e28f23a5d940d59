//! The link over TCP, put to the checks of all links and to its own.
#![cfg(not(loom))]

#[path = "../support/caller.rs"]
mod caller;
#[path = "../support/node.rs"]
mod node;
#[path = "../support/pair.rs"]
mod pair;
#[path = "../support/played.rs"]
mod played;
#[path = "../support/sockets.rs"]
mod sockets;
#[path = "../support/tcp.rs"]
mod tcp;

mod agreed;
mod begun;
mod conformance;
mod eager;
mod ends;
mod farewell;
mod further;
mod kept;
mod landed;
mod names;
mod peers;
mod rails;
mod rails_ends;
mod rails_told;
mod rows;
mod sessions;
mod writes;
