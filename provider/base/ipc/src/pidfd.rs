//! Descriptors of processes; and descriptors taken from them.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::cvt;

/// A descriptor of the process at the other end of a socket, with Linux 6.5 or later.
pub fn of_peer(sock: &OwnedFd) -> io::Result<OwnedFd> {
    let mut raw: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    let place = (&raw mut raw).cast();
    // SAFETY: `raw` is a valid place of `len` bytes.
    cvt(unsafe {
        libc::getsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERPIDFD, place, &mut len)
    })?;
    // SAFETY: a descriptor just made, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// A descriptor of the process `pid` (pidfd_open(2)), with Linux 5.3 or later.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers go in, and a new descriptor comes out.
    unsafe {
        let raw = cvt(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int)?;
        Ok(OwnedFd::from_raw_fd(raw))
    }
}

/// A copy of descriptor `fd` of the process `pid`, where the kernel allows that (pidfd_getfd(2)).
pub fn fetch(pid: i32, fd: RawFd) -> io::Result<OwnedFd> {
    let process = open(pid)?;
    // SAFETY: plain numbers go in, and a new descriptor comes out.
    unsafe {
        let copy = cvt(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) as libc::c_int)?;
        Ok(OwnedFd::from_raw_fd(copy))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_fetched_from_a_process_that_allows_it() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let pid = std::process::id() as i32;
        match fetch(pid, file.as_raw_fd()) {
            Ok(copy) => assert_ne!(copy.as_raw_fd(), file.as_raw_fd()),
            Err(e) => assert!(matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)), "{e}"),
        }
        assert!(fetch(pid, -1).is_err() && fetch(-1, 0).is_err());
    }
}
