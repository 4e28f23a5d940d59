//! How the engine and the UCX transport copy payload between two peers: each mechanism once.
//!
//! | module | what it holds |
//! |---|---|
//! | `cut` | pieces of a cooperative copy: their sizes, and which sizes of a peer's are accepted |
//! | `coop` | cooperative copy: one side's share of such a transfer |
//! | `helper` | whether a peer is worth asking for its help |
//! | `device` | copies by devices in flight |
//! | `handle` | handles of devices' memory in frames, checked |

#![forbid(unsafe_code)]

mod coop;
mod cut;
mod device;
pub mod handle;
mod helper;

pub use coop::{BYTES_PER_CALL, CoopCopy, LAST, MAX_HELPED};
pub use cut::Cut;
pub use device::DeviceCopies;
pub use helper::Helper;
