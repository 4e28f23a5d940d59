//! A descriptor that is readable while there is work that no other descriptor shows.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};

use crate::cvt;

/// An eventfd(2) that its owner sets and clears.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    rung: bool,
}

impl Bell {
    /// One that is not readable.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: eventfd(2) touches no memory.
        let fd = cvt(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: a descriptor just made, which nothing else owns.
        Ok(Bell { fd: unsafe { OwnedFd::from_raw_fd(fd) }, rung: false })
    }

    /// Makes it readable.
    pub fn notify(&mut self) {
        self.rung = true;
        let one = 1u64;
        // SAFETY: write(2) reads these bytes and nothing else.
        unsafe { libc::write(self.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }

    /// Makes it unreadable.
    pub fn clear(&mut self) {
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
