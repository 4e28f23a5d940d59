//! What memory a pointer is, and how bytes get in and out of it.
//!
//! Everything above speaks of user memory only as a [`Span`]: an address, a length, a [`Kind`] and what can
//! be done with it ([`Caps`]). A `Span` is made once, by a provider's entry points, from what the application
//! promised (`unsafe`), and is then moved about by safe code which never looks through it. Only the functions
//! of this crate and of the links follow the address.
//!
//! The modules are in layers: each one uses those above its line of this table, and `ci/layers` finds
//! circles.
//!
//! | layer | modules |
//! |---|---|
//! | words | `kind`, `error`, `span`, `words`, `value`, `long_double` |
//! | tools | `bytes`, `guard`, `loaded_library`, [`agent`] |
//! | tools: handles and mappings; pending copies | [`share`]; [`pending`] (the trait and the list) |
//! | the trait that each kind implements | `memory` |
//! | host memory that a kind has page-locked, in pools | [`locked`] |
//! | which kinds are in the process | `presence` |
//! | the kinds | `system`, [`fake`], [`client`], [`cuda`], [`rocr`], [`ze`] |
//! | the list of them, and what an address is | [`registry`] |
//! | copies and atomics | `copy`, `atomic`, `pending::start`, [`stage`], [`bounce`], [`path`] |
//! | memory for what operations keep | `scratch` |
//! | the same by another process | `share::open` and `plan`, [`agent_process`] |

pub mod agent;
pub mod agent_process;
mod atomic;
pub mod bounce;
mod bytes;
pub mod client;
mod copy;
pub mod cuda;
mod error;
pub mod fake;
pub mod guard;
mod kind;
mod loaded_library;
pub mod locked;
#[cfg(target_arch = "x86_64")]
mod long_double;
mod memory;
pub mod path;
pub mod pending;
mod presence;
pub mod registry;
pub mod rocr;
mod scratch;
pub mod share;
mod span;
pub mod stage;
mod system;
mod value;
mod words;
pub mod ze;

pub use atomic::{AtomicOp, Class, Datatype, NotApplied, apply, reduce, reduces, valid};
pub use bytes::copy_bytes;
pub use copy::{copy, copy_in, copy_out, is_present, read, write};
pub use error::Error;
pub use kind::{Caps, Kind};
pub use registry::{classify, is_never_a_device, may_have_a_device};
pub use scratch::Scratch;
pub use span::{Span, can, parts, total};
pub use words::Words;
