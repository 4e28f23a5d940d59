//! A socket to a peer, with what waits to be sent there.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ipc::rights::send_fd;
use ipc::socket;
use meet::Life;

use crate::{Grant, Rank};

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    /// The process that made it.
    pub(super) life: Option<Life>,
    /// `None`: it has not said hello yet.
    pub(super) peer: Option<Rank>,
    /// Its place among those that have not.
    pub(super) guest: Option<usize>,
    pub(super) grants: Vec<Grant>,
    /// A region that could not be mapped: it is tried again before anything more is received.
    pub(super) unmapped: Option<OwnedFd>,
    /// What did not leave yet.
    pub(super) queue: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl Socket {
    /// Sends what waits; how many packets have left.
    pub(super) fn drain(&mut self) -> usize {
        let mut left = 0;
        while let Some((bytes, fd)) = self.queue.front() {
            let sent = match fd {
                Some(fd) => send_fd(&self.fd, bytes, fd.as_fd()),
                None => socket::send(&self.fd, bytes),
            };
            if sent.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock || socket::is_lack(&e)) {
                break;
            }
            // To a peer that has ended nothing is sent.
            self.queue.pop_front();
            left += 1;
        }
        left
    }
}

pub(super) fn has_packet(socket: &Socket) -> bool {
    socket::peek(&socket.fd, &mut [0]).is_ok_and(|len| len > 0)
}
