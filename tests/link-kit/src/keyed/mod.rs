//! A slow link with keys, between endpoints of one process.
//!
//! It is what a link over a network adapter is like: bytes are on their way for a while, few fit, memory has
//! to be registered before a peer reaches it, and an access is over later. A thread of the [`KeyedNet`], its
//! carrier, moves a little at a time and then pauses. The target's side of the carrier checks key, range and
//! access of each piece.
//!
//! | module | what it holds |
//! |---|---|
//! | `net` | [`KeyedNet`] |
//! | `carrier` | what is on its way, and how it is carried |
//! | `stream` | frames as bytes of a stream |
//! | `link` | [`KeyedLink`]: frames and channels |
//! | `rma` | access to memory |
//! | `key` | what an endpoint lets its peers reach |
//! | `flight` | accesses in flight |
//! | `harness` | [`KeyedHarness`] |

mod carrier;
mod flight;
mod harness;
mod key;
mod link;
mod net;
mod rma;
mod stream;

pub use carrier::Pace;
pub use harness::KeyedHarness;
pub use key::{Access, HOW};
pub use link::KeyedLink;
pub use net::KeyedNet;
