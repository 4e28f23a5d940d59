//! The sums themselves.

use std::collections::BTreeMap;

use wire::Addr;

use super::counts::{Counts, ROWS, SIDES};

/// What is known of a peer.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) link: &'static str,
    pub(super) words: String,
    pub(super) carried: bool,
    pub(super) fell_back: [u64; 2],
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) endpoints: u64,
    pub(super) peers: BTreeMap<Addr, Peer>,
    pub(super) counts: [[Counts; ROWS]; SIDES],
    pub(super) with_counts: usize,
}
