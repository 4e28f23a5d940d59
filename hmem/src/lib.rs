//! The cellar of Strait: what memory a pointer is, and how bytes get in and out of it.
//!
//! Everything above speaks of user memory only as a [`Span`]: an address, a length and a [`Kind`].
//! A `Span` is made once, by a door, from what the application promised (`unsafe`), and is then
//! moved about by safe code which never looks through it. Only the functions of this crate and of
//! the links follow the address.

mod error;
mod span;
pub use error::Error;
pub use registry::classify;
pub use span::{Kind, Span, copy, copy_in, copy_out, read, total, write};

pub mod client;
pub mod cuda;
pub mod fake;
pub mod flight;
pub mod guard;
pub mod path;
mod presence;
pub mod registry;
pub mod rocr;
mod runtime;
pub mod share;
pub mod ze;

mod atomic;
pub use atomic::{AtomicOp, Class, Datatype, NotApplied, apply, valid};

#[cfg(target_arch = "x86_64")]
mod long_double;
mod value;
