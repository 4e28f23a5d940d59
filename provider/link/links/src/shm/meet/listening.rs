//! The socket that peers connect to, and a descriptor in reserve for what they bring.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipc::socket;
use meet::{Spare, Strangers};

use crate::shm::meet::guest::{Guest, MOST};

/// How long the end of a peer is not taken note of while its own channel may still wait to be accepted.
const BEHIND: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(in crate::shm) struct Listening {
    sock: OwnedFd,
    /// A descriptor that gives its place away where one is needed for a moment.
    spare: Spare<OwnedFd>,
    /// Connections that are no channels yet.
    guests: Strangers<(), Guest>,
    /// Since when there are connections that wait to be accepted, as far as is known.
    behind: Option<Instant>,
    /// A peer has many successors that wait for its end: no more are accepted.
    many_successors: bool,
}

impl Listening {
    /// `reserve`: what the descriptor in reserve is a copy of.
    pub(in crate::shm) fn new(sock: OwnedFd, reserve: BorrowedFd<'_>) -> io::Result<Listening> {
        let spare = Spare::new(Some(reserve.try_clone_to_owned()?));
        Ok(Listening { sock, spare, guests: Strangers::new(MOST), behind: None, many_successors: false })
    }

    pub(in crate::shm) fn accept(&self) -> io::Result<OwnedFd> {
        socket::accept(&self.sock)
    }

    pub(in crate::shm) fn has_caller(&self) -> bool {
        socket::has_caller(&self.sock)
    }

    /// Whether so many descriptors could be had just now.
    pub(in crate::shm) fn has_room(&self, n: usize) -> bool {
        (0..n).map(|_| self.sock.try_clone()).collect::<Result<Vec<_>, _>>().is_ok()
    }

    /// Receives a packet with its descriptor, for which the reserve makes room.
    pub(in crate::shm) fn recv_fd(
        &mut self,
        sock: &OwnedFd,
        bytes: &mut [u8],
    ) -> io::Result<(usize, Option<OwnedFd>)> {
        self.spare.recv_fd(sock, bytes)
    }

    /// Gives the reserve's place away; `false` if it was given already.
    pub(in crate::shm) fn give_reserve(&mut self) -> bool {
        self.spare.give()
    }

    pub(in crate::shm) fn renew_reserve(&mut self, of: BorrowedFd<'_>) {
        self.spare.renew(|| of.try_clone_to_owned());
    }

    pub(in crate::shm) fn guests(&self) -> &Strangers<(), Guest> {
        &self.guests
    }

    pub(in crate::shm) fn guests_mut(&mut self) -> &mut Strangers<(), Guest> {
        &mut self.guests
    }

    pub(in crate::shm) fn has_many_successors(&self) -> bool {
        self.many_successors
    }

    pub(in crate::shm) fn note_many_successors(&mut self) {
        self.many_successors = true;
    }

    /// `dying`: a peer that has ended is still to be reported.
    pub(in crate::shm) fn note_ends(&mut self, dying: bool) {
        self.many_successors &= dying;
    }

    /// Whether connections may still `wait` to be accepted was found; whether ends wait for these.
    pub(in crate::shm) fn note_waiting(&mut self, wait: bool) -> bool {
        self.behind = if wait { self.behind.or_else(|| Some(Instant::now())) } else { None };
        self.behind.is_some_and(|since| since.elapsed() < BEHIND)
    }

    /// Peers that connect from now on find nothing that listens.
    pub(in crate::shm) fn shut_down(&self) {
        socket::shutdown(&self.sock);
    }

    #[cfg(all(test, not(loom)))]
    pub(in crate::shm) fn sock(&self) -> &OwnedFd {
        &self.sock
    }
}
