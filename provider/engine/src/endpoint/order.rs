//! What is known of a peer whose accesses do not take effect in order of themselves.

use std::collections::VecDeque;

use super::request::Request;
use crate::pool::Pool;

/// The order of a peer's accesses while it does not come of itself.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Requests that no later access may overtake, by name.
    pub(super) under_way: Vec<u64>,
    /// Frames behind them, and what these take up.
    pub(super) held: VecDeque<Vec<u8>>,
    pub(super) size: usize,
    /// The peer's request of a write that failed, perhaps because the peer ended: nothing that was posted behind it takes effect,
    /// up to what an initiator posts that knows of the failure.
    pub(super) broken: Option<u64>,
}

impl Order {
    /// Whether a request is under way that later accesses must wait for.
    pub(super) fn waits(&mut self, requests: &mut Pool<Request>) -> bool {
        self.under_way.retain(|name| requests.get_mut(*name).is_some());
        !self.under_way.is_empty()
    }
}
