//! The link to peers on this host.
//!
//! A channel goes one way: the sender makes it, at its first send, and may fill it before the
//! receiver has noticed. Two peers that talk both ways have two channels, each a ring in a segment
//! of its own and a socket which says that the other end is alive, and which wakes it.

mod access;
mod admission;
mod ahead;
mod allowance;
mod connect;
mod contested;
mod contests;
mod copies;
mod devices;
mod direct;
mod ends;
mod executed;
mod expected;
mod frames;
mod grant;
mod guest;
mod guests;
mod hello;
mod lack;
mod lifetime;
mod link;
mod listening;
mod looks;
mod mr_table;
mod options;
mod own;
mod pace;
mod parted;
mod peer;
mod peers;
mod poll;
mod producer;
mod reach;
mod ring;
mod rings;
mod rma;
mod segment;
mod send;
mod sending;
mod served;
mod service;
mod shrink;
mod sleep;
mod token;
mod wake;
mod window;
mod windows;

pub(crate) use admission::Callers;
pub use ahead::speculation_barrier;
pub use frames::offers;
pub use hello::ENDPOINT_NAMES;
pub use link::ShmLink;
pub use options::{DEFAULT_RING, FEW, LONG_RING, MIDDLE_RING, NEAR, OpenOptions, eager_most};
pub use segment::{MAX_RING, MIN_RING};
pub use windows::{WindowId, Windows};

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, not(loom)))]
mod awaited_tests;

#[cfg(all(test, not(loom)))]
mod peer_tests;

#[cfg(all(test, not(loom)))]
mod sleep_tests;

#[cfg(all(test, not(loom)))]
mod trust_tests;

#[cfg(all(test, not(loom)))]
mod hostile_tests;

#[cfg(all(test, not(loom)))]
mod fuzz_tests;
