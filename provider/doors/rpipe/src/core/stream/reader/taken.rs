//! A message that was read.

use crate::Block;

/// A message that was read: its block is the reader's until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub block: Block,
    /// Bytes.
    pub len: usize,
    /// Active message: the handler's number; else 0.
    pub handler: u16,
}
