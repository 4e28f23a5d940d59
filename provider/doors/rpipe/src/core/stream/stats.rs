//! What an end has done, and has.

use super::Mode;
use crate::core::context::Ready;

/// Messages, and tags of freed blocks, of an end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    messages: u64,
    bytes: u64,
    tags: u64,
    syncs: u64,
}

impl Counts {
    #[inline(always)]
    pub(super) fn add_message(&mut self, len: usize) {
        self.messages += 1;
        self.bytes += len as u64;
    }

    #[inline(always)]
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    #[inline(always)]
    pub(super) fn add_sync(&mut self) {
        self.syncs += 1;
    }

    #[inline(always)]
    pub(super) fn add_tags(&mut self, tags: u64) {
        self.tags += tags;
    }

    pub(super) fn stats(&self) -> Stats {
        let Counts { messages, bytes, tags, syncs } = *self;
        Stats { messages, bytes, tags, syncs, ..Stats::default() }
    }
}

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
    /// Tags of freed blocks for the writer, and how often they were put or fetched.
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
    pub(super) fn set_up(&mut self, ready: &Ready, mode: Mode) {
        self.heap = ready.met.shape.heap as u64;
        (self.mode, self.mode_why) = (Some(mode), ready.met.mode_why.clone());
        (self.path, self.path_why) = (ready.promise.path.clone(), ready.promise.why.clone());
    }
}
