//! Connections that are no channels yet.

use std::os::fd::OwnedFd;
use std::time::Duration;

/// Most connections that are kept without a hello.
pub(in crate::shm) const MOST: usize = 64;

/// How long one is kept, at least.
pub(in crate::shm) const GRACE: Duration = Duration::from_secs(3);

/// A connection whose hello is still to come, or was received and waits for descriptors or memory.
#[derive(Debug)]
pub(in crate::shm) struct Guest {
    pub(in crate::shm) sock: OwnedFd,
    pub(in crate::shm) pid: i32,
    /// What it said, if it was received.
    pub(in crate::shm) said: Option<(Vec<u8>, Option<OwnedFd>)>,
}
