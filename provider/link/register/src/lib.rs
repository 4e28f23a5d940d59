//! Memory that is registered for an adapter: by which way, why by no better one, and until when.
//!
//! The adapter is a [`Device`]. What it is, and how it is called, is behind that. Only what a caller has
//! registered is ever found: there is no cache of memory that was not, whose entries could outlive it.
//!
//! | module | what it holds |
//! |---|---|
//! | `device` | [`Device`]: what an adapter has to give; [`Way`], [`Refusal`] |
//! | `refused` | which ways were refused, by kind of memory |
//! | `registry` | [`Registry`]: the registrations, and the requests that use each |

mod device;
mod refused;
mod registry;

pub use device::{Device, Refusal, Uses, Way};
pub use registry::Registry;
