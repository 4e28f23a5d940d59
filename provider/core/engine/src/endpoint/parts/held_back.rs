//! What is known of a peer whose accesses do not take effect in order of themselves.

use std::collections::VecDeque;

use crate::endpoint::parts::request::Request;
use crate::pool::Pool;

/// The order of a peer's accesses while it does not come of itself.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Order {
    /// Requests that no later access may overtake, by name.
    pub(in crate::endpoint) under_way: Vec<u64>,
    /// Frames behind them, and what these take up.
    pub(in crate::endpoint) held: VecDeque<Vec<u8>>,
    pub(in crate::endpoint) size: usize,
    /// The peer's request of a write that failed, perhaps because the peer ended: nothing that was posted
    /// behind it takes effect, up to what an initiator posts that knows of the failure.
    pub(in crate::endpoint) broken: Option<u64>,
}

impl Order {
    /// Whether a request is under way that later accesses must wait for.
    pub(in crate::endpoint) fn waits(&mut self, requests: &mut Pool<Request>) -> bool {
        self.under_way.retain(|name| requests.get_mut(*name).is_some());
        !self.under_way.is_empty()
    }
}
