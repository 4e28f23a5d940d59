//! Waiting for a descriptor.

use std::os::fd::RawFd;
use std::time::Duration;

/// Whether this descriptor is readable, or becomes so within that time.
#[allow(unsafe_code)]
pub fn is_readable(fd: RawFd, within: Duration) -> bool {
    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `one` is one valid pollfd, and poll(2) takes any number for a descriptor.
    unsafe { libc::poll(&mut one, 1, ms) == 1 }
}
