//! Channels that were given up while a peer was inside an access.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

use ipc::{access, socket};
use meet::Life;
use wire::channel::Space;

use crate::shm::channel::segment::Segment;
use crate::space;

/// A channel that was given up while the peer was inside an access.
#[derive(Debug)]
pub(in crate::shm) struct Parted {
    pub(in crate::shm) peer: u32,
    pub(in crate::shm) since: Instant,
    /// Its receiver was, else its sender.
    pub(in crate::shm) receiver: bool,
    pub(in crate::shm) mem: Segment,
    pub(in crate::shm) sock: OwnedFd,
    /// By which the peer's end is found out while a process forked from it holds its sockets.
    pub(in crate::shm) life: Option<Life>,
    pub(in crate::shm) pid: i32,
    pub(in crate::shm) space: Option<Space>,
}

impl Parted {
    fn is_inside(&self) -> bool {
        match self.receiver {
            true => receiver_is_inside(&self.mem),
            false => access::is_inside(self.mem.tx_inside(), None),
        }
    }

    /// Whether it accesses nothing any more.
    pub(in crate::shm) fn is_over(&self) -> bool {
        !self.is_inside()
            || socket::hung_up(&self.sock)
            || self.life.as_ref().is_some_and(Life::has_ended)
            || self.space.is_some_and(|space| space::is_gone(&space, self.pid))
    }
}

pub(in crate::shm) fn receiver_is_inside(mem: &Segment) -> bool {
    access::is_inside(mem.rx_inside(), None) || mem.rx_flights().load(Acquire) != 0
}
