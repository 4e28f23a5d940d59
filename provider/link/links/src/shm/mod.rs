//! The link to peers on this host.
//!
//! A channel goes one way: the sender makes it, at its first send, and may fill it before the
//! receiver has noticed. Two peers that talk both ways have two channels, each a ring in a segment
//! of its own and a socket which says that the other end is alive, and which wakes it.

mod ahead;
mod channel;
mod channels;

mod direct;
mod ends;
mod frames;
mod group;

mod lifetime;
mod link;
mod meet;
mod memory;
mod options;
mod pace;
mod peer;
mod peers;
mod poll;
mod sending;
mod service;
mod sleep;

pub use ahead::speculation_barrier;
pub use channel::segment::{MAX_RING, MIN_RING};
pub use frames::offers;
pub use link::ShmLink;
pub(crate) use meet::admission::Callers;
pub use meet::hello::ENDPOINT_NAMES;
pub use memory::windows::{WindowId, Windows};
pub use options::{DEFAULT_RING, FEW, LONG_RING, MIDDLE_RING, NEAR, OpenOptions, eager_most};

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, not(loom)))]
#[path = "tests/awaited_tests.rs"]
mod awaited_tests;

#[cfg(all(test, not(loom)))]
#[path = "tests/peer_tests.rs"]
mod peer_tests;

#[cfg(all(test, not(loom)))]
#[path = "tests/sleep_tests.rs"]
mod sleep_tests;

#[cfg(all(test, not(loom)))]
#[path = "tests/trust_tests.rs"]
mod trust_tests;

#[cfg(all(test, not(loom)))]
#[path = "tests/hostile_tests.rs"]
mod hostile_tests;

#[cfg(all(test, not(loom)))]
mod fuzz_tests;
