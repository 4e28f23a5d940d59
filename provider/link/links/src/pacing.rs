//! Congestion control of connections within the host, which are not paced.
//!
//! BBR sends by a timer, at the rate of a path between hosts. A socket that has had BBR when its connection
//! was made is paced whatever algorithm it gets then, so that a socket gets `reno` before it listens or
//! connects, and the host's again once its ends are found to have two addresses. Where the host has another
//! algorithm nothing is changed: one that needs ECN (DCTCP) has to be there when the connection is made, too.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};

use ipc::socket::socket;
use ipc::{Unshared, cvt};

/// Bytes of a name (TCP_CA_NAME_MAX).
const ROOM: usize = 16;

/// An algorithm for congestion control, by its name, which is followed by zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control([u8; ROOM]);

const RENO: Control = Control(*b"reno\0\0\0\0\0\0\0\0\0\0\0\0");

impl Control {
    /// That of a socket.
    fn of(fd: &OwnedFd) -> Option<Control> {
        let (mut name, mut len) = ([0; ROOM], ROOM as libc::socklen_t);
        let (at, what) = (name.as_mut_ptr().cast(), libc::TCP_CONGESTION);
        // SAFETY: `name` is a valid place of `len` bytes.
        cvt(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, what, at, &mut len) }).ok()?;
        Some(Control(name))
    }

    fn is_paced(&self) -> bool {
        self.0.starts_with(b"bbr")
    }

    /// Where the kernel refuses it, the socket is as it was.
    fn set(&self, fd: &OwnedFd) {
        let (at, len) = (self.0.as_ptr().cast(), ROOM as libc::socklen_t);
        // SAFETY: the name has `len` bytes.
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, at, len) };
    }
}

/// A connection that this socket is about to make, or to accept, is not paced: what it had, if that paces.
pub(crate) fn unpace(fd: &OwnedFd) -> Option<Control> {
    let had = Control::of(fd).filter(Control::is_paced)?;
    RENO.set(fd);
    Some(had)
}

/// What sockets of this host have, if that paces.
pub(crate) fn usual() -> io::Result<Option<Control>> {
    let fd = Unshared::make(|| socket(libc::AF_INET, libc::SOCK_STREAM))?;
    Ok(unpace(&fd))
}

/// A connection is there, or is being made: between two addresses it has what it would have had, unless its
/// route has its own.
pub(crate) fn pace_between(ends: Option<(SocketAddr, SocketAddr)>, fd: &OwnedFd, usual: Control) {
    let is_between = ends.is_some_and(|(own, other)| own.ip() != other.ip());
    if is_between && Control::of(fd) == Some(RENO) {
        usual.set(fd);
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    /// The algorithm of a connection within the host, and of another one.
    pub(crate) fn near_and_far() -> (Option<Control>, Option<Control>) {
        let far = of(&Unshared::make(|| socket(libc::AF_INET, libc::SOCK_STREAM)).unwrap());
        (if far.is_some_and(|far| far.is_paced()) { Some(RENO) } else { far }, far)
    }

    pub(crate) fn of(fd: &OwnedFd) -> Option<Control> {
        Control::of(fd)
    }
}
