//! Channels that were given up while a peer was inside an access.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

use ipc::{access, pidfd, socket};
use wire::channel::Space;

use super::segment::Segment;
use crate::space;

/// A channel that was given up while the peer was inside an access.
#[derive(Debug)]
pub(super) struct Parted {
    pub(super) peer: u32,
    pub(super) since: Instant,
    /// Its receiver was, else its sender.
    pub(super) receiver: bool,
    pub(super) mem: Segment,
    pub(super) sock: OwnedFd,
    /// By which the peer's end is found out while a process forked from it holds its sockets.
    pub(super) life: Option<OwnedFd>,
    pub(super) pid: i32,
    pub(super) space: Option<Space>,
}

impl Parted {
    fn is_inside(&self) -> bool {
        match self.receiver {
            true => receiver_is_inside(&self.mem),
            false => access::is_inside(self.mem.tx_inside(), None),
        }
    }

    /// Whether it accesses nothing any more.
    pub(super) fn is_over(&self) -> bool {
        !self.is_inside()
            || socket::hung_up(&self.sock)
            || self.life.as_ref().is_some_and(pidfd::has_ended)
            || self.space.is_some_and(|space| space::is_gone(&space, self.pid))
    }
}

pub(super) fn receiver_is_inside(mem: &Segment) -> bool {
    access::is_inside(mem.rx_inside(), None) || mem.rx_flights().load(Acquire) != 0
}
