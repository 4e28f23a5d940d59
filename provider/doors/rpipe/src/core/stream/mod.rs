//! A stream: one direction of a pipe, from a writer's end to a reader's.
//!
//! The reader's region has the slots, the tags of immediate synchronization, and the heap; the writer's has a
//! line of state, the tags of deferred synchronization, and a heap of the same length where the reader's is
//! not mapped.

#[cfg(all(test, not(loom)))]
mod hostile_tests;
mod inject;
#[cfg(all(test, not(loom)))]
pub(crate) mod lacking_tests;
#[cfg(all(test, not(loom)))]
mod leaving_tests;
#[cfg(all(test, not(loom)))]
mod meeting_tests;
mod mode;
mod port;
mod reader;
#[cfg(all(test, loom))]
mod sleep_loom;
mod stats;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod wait;
mod writer;

pub use mode::Mode;
pub(crate) use reader::Reader;
pub use reader::{OnDevice, Taken};
pub use stats::Stats;
pub use wait::Patience;
pub(crate) use wait::{Contenders, WaitStep, Waiting};
pub(crate) use writer::{Options, Writer};

/// For how long an end that is closed waits for what it has begun.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(1);
