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
mod on_device;
mod post;
mod put;
mod reader;
#[cfg(all(test, loom))]
mod sleep_loom;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod wait;
mod writer;

pub use mode::Mode;
pub(crate) use reader::Reader;
pub use reader::{OnDevice, Taken};
pub use wait::Patience;
pub(crate) use wait::{Contenders, Turn, Waiting};
pub(crate) use writer::{Options, Writer};

use crate::core::context::Ready;

/// For how long an end that is closed waits for what it has begun.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(1);

/// What an end has done and has now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Bytes of the heap, and of those the ones in use and free; writer: by its book; reader: what it has not
    /// freed.
    pub heap: u64,
    pub used: u64,
    pub free: u64,
    /// Bytes of the longest free block; writer only.
    pub largest: u64,
    /// 1 − largest / free; writer only.
    pub fragmentation: f64,
    /// Messages, and their bytes.
    pub messages: u64,
    pub bytes: u64,
    /// Tags that told the writer of freed blocks, and how often they were put or fetched.
    pub tags: u64,
    pub syncs: u64,
    /// Messages of up to so many bytes travel in their slot, and longer ones of up to so many are copied by
    /// the path; writer only.
    pub in_slot: usize,
    pub injected: usize,
    /// Where `injected` comes from: measured, given or a default, and why so; writer only.
    pub injected_why: String,
    /// How the reader learns of a message, and why so.
    pub mode: Option<Mode>,
    pub mode_why: String,
    /// What leads to the peer, and why it is that.
    pub path: String,
    pub path_why: String,
}

impl Stats {
    /// What is the same at both ends of a stream that is set up.
    fn set_up(&mut self, ready: &Ready, mode: Mode) {
        self.heap = ready.met.shape.heap as u64;
        (self.mode, self.mode_why) = (Some(mode), ready.met.mode_why.clone());
        (self.path, self.path_why) = (ready.promise.path.clone(), ready.promise.why.clone());
    }
}
