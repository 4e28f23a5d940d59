//! A peer's process, and a socket that it had.

use std::os::fd::OwnedFd;

/// A peer's process.
#[derive(Debug)]
pub(in crate::shm) struct Life {
    pub(in crate::shm) pid: i32,
    pub(in crate::shm) fd: OwnedFd,
}

/// A socket that a process has listened on, and does not have any more.
#[derive(Debug)]
pub(in crate::shm) struct Deserted {
    pub(in crate::shm) socket: u64,
    pub(in crate::shm) process: Life,
}
