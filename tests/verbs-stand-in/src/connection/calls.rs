//! What a process has of librdmacm's.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::packet::Address;

pub type At = (IpAddr, u16);

/// What an event is, beside the id that it is of: type, status, the id that it brings, bytes of the peer.
#[derive(Debug)]
pub struct Event {
    pub id: usize,
    pub listener: usize,
    pub kind: u32,
    pub status: c_int,
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
pub struct Channel {
    pub fd: OwnedFd,
    pub events: VecDeque<Event>,
}

#[derive(Debug, Default)]
pub enum Stage {
    #[default]
    Idle,
    Listening(OwnedFd),
    /// Of this listener: the request has not come; it has.
    Called(OwnedFd, usize),
    Requests(OwnedFd, Address, u32),
    /// The answer is awaited; connected.
    Calls(OwnedFd),
    Up(OwnedFd),
    Over,
}

#[derive(Debug, Default)]
pub struct Id {
    pub channel: usize,
    pub device: usize,
    pub own: Option<At>,
    pub to: Option<At>,
    pub qpn: u32,
    pub stage: Stage,
}

impl Id {
    pub fn fd(&self) -> Option<RawFd> {
        match &self.stage {
            Stage::Idle | Stage::Requests(..) | Stage::Over => None,
            Stage::Listening(fd) | Stage::Called(fd, _) | Stage::Calls(fd) | Stage::Up(fd) => {
                Some(fd.as_raw_fd())
            }
        }
    }
}

/// All of a process, by the addresses of what the program has.
#[derive(Debug, Default)]
pub struct Manager {
    pub channels: HashMap<usize, Channel>,
    pub ids: HashMap<usize, Id>,
    pub contexts: HashMap<usize, usize>,
}

impl Manager {
    /// What poll(2) is to wait for.
    pub fn polled(&self) -> impl Iterator<Item = (RawFd, i16)> {
        self.ids.values().filter_map(Id::fd).map(|fd| (fd, libc::POLLIN))
    }

    /// A queue pair is in error, or gone: so is its connection.
    pub fn hang_up(&mut self, qpn: u32) {
        for id in self.ids.values().filter(|id| id.qpn == qpn) {
            if let Stage::Up(fd) = &id.stage {
                unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_RDWR) };
            }
        }
    }
}
