//! Operations under way by the engine.

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
