//! Operations under way by the engine: what it uses until each completes.

use std::collections::HashMap;

use crate::{Memory, Rank, Token};

#[derive(Debug)]
pub(super) enum Op {
    Receive(Vec<u8>),
    /// Asks whether a peer is there. Keeps its bytes.
    Ping(Rank, #[allow(dead_code)] Vec<u8>),
    /// Keeps its memory, which may be taken back meanwhile. Whether the peer fetches the bytes of this put.
    Move(Rank, Token, #[allow(dead_code)] Memory, bool),
    Fetch(Rank, Token, Box<[u64; 2]>),
}

/// By their contexts.
#[derive(Debug, Default)]
pub(super) struct Ops {
    ops: HashMap<usize, Op>,
    last: usize,
}

impl Ops {
    /// A context for an operation.
    pub(super) fn next(&mut self) -> usize {
        self.last += 1;
        self.last
    }

    pub(super) fn insert(&mut self, ctx: usize, op: Op) {
        self.ops.insert(ctx, op);
    }

    pub(super) fn remove(&mut self, ctx: usize) -> Option<Op> {
        self.ops.remove(&ctx)
    }

    /// A rank to which bytes were put, or of which bytes are got, that are not there yet.
    pub(super) fn moving(&self, is_wanted: impl Fn(Rank) -> bool) -> Option<Rank> {
        self.ops.values().find_map(|op| match op {
            Op::Move(rank, ..) if is_wanted(*rank) => Some(*rank),
            _ => None,
        })
    }

    /// Peers may still be inside of what they use: it stays.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.ops));
    }
}
