//! Descriptors of processes, readable at their end; and descriptors taken from processes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::{cvt, socket};

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

/// Watches the process at the other end of a socket: a descriptor that is readable once all of it has
/// ended, whichever process holds the socket by then. `Err`: it has ended. `None`: the kernel cannot (it
/// came with Linux 5.3, and with 6.5 for processes of other pid namespaces), or lacks descriptors.
pub fn watch(sock: &OwnedFd, pid: i32) -> Result<Option<OwnedFd>, Ended> {
    let got = match of_peer(sock) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) && pid > 0 => {
            // SAFETY: pidfd_open(2) touches no memory of ours; the descriptor is new.
            unsafe {
                cvt(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int)
                    .map(|raw| OwnedFd::from_raw_fd(raw))
            }
        }
        other => other,
    };
    match got {
        Ok(fd) if has_ended(&fd) => Err(Ended),
        Ok(fd) => Ok(Some(fd)),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Err(Ended),
        Err(_) => Ok(None),
    }
}

/// The process is no more.
#[derive(Clone, Copy, Debug)]
pub struct Ended;

/// Whether the process of a descriptor of [`watch`] has ended.
pub fn has_ended(life: &OwnedFd) -> bool {
    socket::readable(life, libc::POLLIN)
}

/// A copy of descriptor `fd` of the process `pid`, where the kernel allows that (pidfd_getfd(2)).
pub fn fetch(pid: i32, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers go in, and new descriptors come out.
    unsafe {
        let process = cvt(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int)?;
        let process = OwnedFd::from_raw_fd(process);
        let copy = cvt(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) as libc::c_int)?;
        Ok(OwnedFd::from_raw_fd(copy))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_process_is_told_by_its_descriptor() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let own = std::process::id() as i32;
        let life = watch(&mine.into(), own).unwrap();
        assert!(life.is_none_or(|life| !has_ended(&life)), "this process has ended");
        drop(theirs);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        // SAFETY: plain numbers.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) } as RawFd;
        if raw < 0 {
            eprintln!("skipped: no pidfds here");
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
        // SAFETY: a new descriptor.
        let life = unsafe { OwnedFd::from_raw_fd(raw) };
        assert!(!has_ended(&life));
        // Its input ends, and so does it.
        drop(child.stdin.take());
        while !has_ended(&life) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

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
