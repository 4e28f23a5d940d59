//! Connections that are no channels yet.

use std::os::fd::OwnedFd;
#[cfg(all(test, not(loom)))]
use std::time::Duration;
use std::time::Instant;

use super::peer::Inbound;

/// A connection whose hello is still to come, or waits for descriptors or memory.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) sock: OwnedFd,
    pub(super) pid: i32,
    pub(super) since: Instant,
    /// It has said hello, and waits for this side.
    pub(super) kept: bool,
    /// What it said, if it was received.
    pub(super) said: Option<(Vec<u8>, Option<OwnedFd>)>,
}

#[cfg(all(test, not(loom)))]
impl Guest {
    pub(super) fn age(&mut self, by: Duration) {
        self.since -= by;
    }
}

/// A channel under a name that a living peer has.
#[derive(Debug)]
pub(super) struct Contested {
    pub(super) id: u32,
    pub(super) inb: Inbound,
    pub(super) since: Instant,
    pub(super) next: Instant,
}
