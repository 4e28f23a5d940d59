//! Memory that is registered for an adapter: by which way, why by no better one, and until when.
//!
//! The adapter is a [`Device`]. What it is, and how it is called, is behind that. What a caller has
//! registered to be shared is found, and on-demand registrations, which cannot be stale. Others have no
//! cache: their entries could outlive their memory.
//!
//! | module | what it holds |
//! |---|---|
//! | `device` | [`Device`]: what an adapter has to give; [`Way`], [`Refusal`] |
//! | `kept` | which on-demand registration holds some memory |
//! | `refused` | which ways were refused, by kind of memory |
//! | `registry` | [`Registry`]: the registrations, and the requests that use each |

mod device;
mod kept;
mod refused;
mod registry;

pub use device::{Device, Refusal, Uses, Way, is_for_now};
pub use registry::Registry;
