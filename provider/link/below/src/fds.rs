//! Descriptors that others own.

use std::os::fd::{AsRawFd, RawFd};

use ipc::Poller;

/// A descriptor of something else's.
#[derive(Debug)]
pub struct Fd(pub RawFd);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Whether a descriptor can be watched by one that is watched itself, as this link's are. Linux allows but a
/// few levels, and some providers have most of them.
pub fn is_shallow(fd: RawFd) -> bool {
    let chain = || {
        let (inner, outer) = (Poller::new()?, Poller::new()?);
        inner.add(&Fd(fd), 0)?;
        outer.add(&Fd(inner.fd()), 0)
    };
    chain().is_ok()
}

/// Whether it is readable now.
pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `one` is one valid pollfd.
    unsafe { libc::poll(&mut one, 1, 0) == 1 }
}
