//! What a rank does at a time.

use super::steps::{Message, Step};

/// What memory for what is received begins at a multiple of, in bytes.
pub(super) const ALIGN: u64 = 256;

/// A copy within a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where to.
    pub to: u64,
    /// Where from.
    pub from: u64,
    /// Bytes.
    pub len: u64,
}

/// What a rank does, one after another; each ends before the next one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Copies within the rank's memory, in any order.
    Copy(Vec<Copy>),
    /// Messages that go out, and those that come in.
    Exchange(Vec<Message>, Vec<Message>),
    /// Steps, in this order.
    Compute(Vec<Step>),
}

impl Phase {
    /// Whether it is nothing.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Phase::Copy(copies) => copies.is_empty(),
            Phase::Exchange(sends, receives) => sends.is_empty() && receives.is_empty(),
            Phase::Compute(steps) => steps.is_empty(),
        }
    }
}
