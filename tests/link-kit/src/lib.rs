//! What every link has to do, as checks that any link can be put to; and a slow link with keys.
//!
//! - [`conformance`]: the checks, in groups, one for each clause of [`link_api`]'s documentation. A link is
//!   put to them by [`conform!`] and a [`Harness`].
//! - [`Broken`]: a link with a flaw, one for each clause, by which the checks themselves are tested.
//! - [`counting`]: an allocator that counts, for test programs of their own.
//! - [`process`]: a process of a test, which is another test of the program.
//! - [`keyed`]: a link between endpoints of one process that is slow and reaches memory by keys alone.

#![deny(unsafe_code)]

mod broken;
pub mod conformance;
#[allow(unsafe_code, reason = "an allocator is unsafe to implement")]
pub mod counting;
mod harness;
pub mod keyed;
pub mod process;
mod ready;

pub use broken::{Broken, Flaw, Flawed};
pub use harness::{Ends, Harness, bytes, name, text};
pub use ready::is_readable;
