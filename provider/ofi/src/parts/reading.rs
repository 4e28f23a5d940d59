//! Reads of peers' memory that are not over.

use std::collections::VecDeque;
use std::time::Instant;

use hmem::Span;
use link_api::{OpId, Patience, PeerId};

use crate::below::{Dest, Did};

/// A piece of a read: one at the peer, and one here.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) from: Dest,
    pub(crate) key: u64,
    pub(crate) at: u64,
    pub(crate) into: Span,
}

/// A read that is not over.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) id: OpId,
    pub(crate) peer: PeerId,
    pub(crate) request: u64,
    /// The last generation of the peer's memory that it reads.
    pub(crate) generation: u64,
    /// What was not posted yet.
    pub(crate) queue: VecDeque<Piece>,
    /// Pieces that are under way.
    pub(crate) flying: usize,
    pub(crate) failed: bool,
    /// Its end is not reported.
    pub(crate) mute: bool,
    /// It is to be over, and is ended if it is not by then.
    pub(crate) until: Option<Instant>,
}

impl Op {
    pub(crate) fn is_over(&self) -> bool {
        self.flying == 0 && self.queue.is_empty()
    }
}

/// Reads of peers' memory.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Longest one, if there are any.
    pub(crate) most: Option<usize>,
    pub(crate) ops: Vec<Op>,
    /// Requests that peers have taken back, which are answered when no memory is read by them any more.
    pub(crate) leaving: Vec<(PeerId, u64)>,
    /// How many were started.
    pub(crate) number: u64,
    /// What a provider has reported while only the end of a read was awaited.
    pub(crate) stash: VecDeque<Did>,
    pub(crate) patience: Patience,
    /// How often what is lent was ended.
    pub(crate) generation: u64,
}

impl Reading {
    pub(crate) fn new(most: Option<usize>) -> Reading {
        Reading {
            most,
            ops: Vec::new(),
            leaving: Vec::new(),
            number: 0,
            stash: VecDeque::new(),
            patience: Patience::Second,
            generation: 0,
        }
    }

    /// Whether some are to be posted, or ended, at a time that no descriptor reports.
    pub(crate) fn is_waiting(&self) -> bool {
        self.ops.iter().any(|op| !op.queue.is_empty() || op.until.is_some())
    }
}
