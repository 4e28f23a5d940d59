//! A slow link with keys, between endpoints of one process.
//!
//! It is what a link over a network adapter is like: bytes are on their way for a while, few fit, memory has to be
//! registered before a peer reaches it, and an access is over later. A thread of the [`KeyedNet`], its carrier, moves
//! a little at a time and then pauses. The target's side of the carrier checks key, range and access of each piece.
//!
//! | module | what it holds |
//! |---|---|
//! | `net` | [`KeyedNet`]: what is on its way, and the carrier |
//! | `stream` | frames as bytes of a stream |
//! | `link` | [`KeyedLink`]: frames and channels |
//! | `rma` | keys, and accesses in flight |
//! | `harness` | [`KeyedHarness`] |

mod harness;
mod link;
mod net;
mod rma;
mod stream;

pub use harness::KeyedHarness;
pub use link::KeyedLink;
pub use net::{KeyedNet, Pace};
pub use rma::{Access, HOW};
