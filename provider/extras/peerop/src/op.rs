//! The operations of the bytecode: what a peer device executes to commit sends and to wait for completions.
//!
//! Names and numbers are those of PeerDirect Async (gpudirect/libibverbs, `peer_ops.h`), but for
//! [`Op::Add32`], which has no number there. Where its manual pages and its implementations differ, the
//! implementations are followed: a poll with [`Until::And`] waits until a bit of the mask is set.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::place::{Caps, Fence, Place};

/// When a poll ends, `word` being what is in memory, and `value` that of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// `word & value != 0`.
    And,
    /// `!(word | value) != 0`: a bit that is 0 in the value is 0 in the word.
    Nor,
    /// `word - value`, as a signed number of 32 bits, is not negative: counts may wrap.
    Geq,
}

impl Until {
    /// Whether the poll ends.
    pub fn is_met(self, word: u32, value: u32) -> bool {
        match self {
            Until::And => word & value != 0,
            Until::Nor => !(word | value) != 0,
            Until::Geq => word.wrapping_sub(value) as i32 >= 0,
        }
    }
}

/// What is copied: it travels in the bytecode.
#[derive(Clone, PartialEq, Eq)]
pub struct Block(Arc<[u32]>);

impl Block {
    /// Most words of one: 256 bytes.
    pub const MOST: usize = 64;

    /// Of 1 to [`Block::MOST`] words.
    pub fn new(words: &[u32]) -> Result<Block, Error> {
        if (1..=Block::MOST).contains(&words.len()) {
            Ok(Block(words.into()))
        } else {
            Err(Error::BlockLength(words.len()))
        }
    }

    /// Its words, in the order of addresses.
    pub fn words(&self) -> &[u32] {
        &self.0
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} words)", self.0.len())
    }
}

/// An operation. Stores and polls of 4 bytes are aligned to 4, those of 8 to 8, a copy to 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Orders what precedes and what follows.
    Fence(Fence),
    /// Stores 4 bytes.
    Store32 {
        /// Where.
        to: Place,
        /// What.
        value: u32,
    },
    /// Stores 8 bytes.
    Store64 {
        /// Where.
        to: Place,
        /// What.
        value: u64,
    },
    /// Copies a block.
    Copy {
        /// Where to.
        to: Place,
        /// What.
        block: Block,
    },
    /// Waits for a word of 4 bytes.
    Poll {
        /// Where it is.
        at: Place,
        /// Until when.
        until: Until,
        /// What it is compared with.
        value: u32,
    },
    /// Adds to a word of 4 bytes, atomically; the sum wraps.
    Add32 {
        /// Where it is.
        to: Place,
        /// What is added.
        value: u32,
    },
}

impl Op {
    /// What a peer needs for it.
    pub fn needs(&self) -> Caps {
        match self {
            Op::Fence(_) => Caps::FENCE,
            Op::Store32 { .. } => Caps::STORE_DWORD,
            Op::Store64 { .. } => Caps::STORE_QWORD,
            Op::Copy { .. } => Caps::COPY_BLOCK,
            Op::Add32 { .. } => Caps::ADD_DWORD,
            Op::Poll { until: Until::And, .. } => Caps::POLL_AND_DWORD,
            Op::Poll { until: Until::Nor, .. } => Caps::POLL_NOR_DWORD,
            Op::Poll { until: Until::Geq, .. } => Caps::POLL_GEQ_DWORD,
        }
    }

    /// Its number in PeerDirect Async.
    pub fn number(&self) -> u32 {
        self.needs().bits().trailing_zeros()
    }

    /// The place that it accesses, and how many bytes there.
    pub fn place(&self) -> Option<(Place, u64)> {
        match self {
            Op::Fence(_) => None,
            Op::Store64 { to, .. } => Some((*to, 8)),
            Op::Copy { to, block } => Some((*to, 4 * block.words().len() as u64)),
            Op::Store32 { to, .. } | Op::Add32 { to, .. } => Some((*to, 4)),
            Op::Poll { at, .. } => Some((*at, 4)),
        }
    }

    /// To how many bytes its place is aligned.
    pub fn alignment(&self) -> u64 {
        if matches!(self, Op::Store64 { .. }) { 8 } else { 4 }
    }
}

/// A list of operations with room for a number of them that its owner chose.
#[derive(Clone, Debug)]
pub struct List {
    ops: Vec<Op>,
    entries: usize,
}

impl List {
    /// An empty one with room for so many operations.
    pub fn new(entries: usize) -> List {
        List { ops: Vec::new(), entries }
    }

    /// Adds all of them, or none if there is not room for all.
    pub fn append(&mut self, ops: &[Op]) -> Result<(), Error> {
        let room = self.entries - self.ops.len();
        if ops.len() > room {
            return Err(Error::NoSpace { needed: ops.len(), room });
        }
        self.ops.extend_from_slice(ops);
        Ok(())
    }

    /// What is in it.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.ops.clear();
    }
}
