//! The descriptors that an endpoint watches.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};

use ipc::cvt;

/// Numbers of descriptors.
pub(super) mod token {
    use link_api::PeerId;

    pub(crate) const LISTENER: u64 = 0;
    pub(crate) const TIMER: u64 = 1;
    pub(crate) const BELL: u64 = 2;
    pub(crate) const GUEST: u64 = 1;
    pub(crate) const CALL: u64 = 2;
    pub(crate) const CHANNEL: u64 = 3;

    pub(crate) fn guest(at: usize) -> u64 {
        GUEST << 32 | at as u64
    }

    pub(crate) fn call(peer: PeerId) -> u64 {
        CALL << 32 | u64::from(peer.0)
    }

    pub(crate) fn channel(peer: PeerId) -> u64 {
        CHANNEL << 32 | u64::from(peer.0)
    }
}

/// A descriptor that is readable while there is something to do which no other one tells of.
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    rung: bool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        // SAFETY: eventfd(2) touches no memory.
        let fd = cvt(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: a descriptor just made, which nothing else owns.
        Ok(Bell { fd: unsafe { OwnedFd::from_raw_fd(fd) }, rung: false })
    }

    pub(super) fn ring(&mut self) {
        self.rung = true;
        let one = 1u64;
        // SAFETY: write(2) reads these bytes and nothing else.
        unsafe { libc::write(self.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    pub(super) fn clear(&mut self) {
        if !std::mem::take(&mut self.rung) {
            return;
        }
        let mut times = 0u64;
        // SAFETY: a valid place of so many bytes.
        unsafe { libc::read(self.as_raw_fd(), (&raw mut times).cast(), size_of_val(&times)) };
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}
