//! The process at the other end of a socket, and its end.

use std::io;
use std::os::fd::OwnedFd;

use ipc::{pidfd, socket};

/// A process. Its sockets show its end too, but not while a process forked from it holds copies of them.
#[derive(Debug)]
pub struct Life {
    pid: i32,
    fd: OwnedFd,
}

/// The process is no more.
#[derive(Clone, Copy, Debug)]
pub struct Ended;

impl Life {
    /// The process of this number, by a descriptor of it (pidfd_open(2)).
    pub fn of(pid: i32, fd: OwnedFd) -> Life {
        Life { pid, fd }
    }

    /// Watches the process at the other end of a socket, whichever process holds the socket later. `Err`: it
    /// has ended. `None`: the kernel cannot (it came with Linux 5.3, and with 6.5 for processes of other pid
    /// namespaces), or lacks descriptors.
    pub fn watch(sock: &OwnedFd, pid: i32) -> Result<Option<Life>, Ended> {
        let got = match pidfd::of_peer(sock) {
            Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) && pid > 0 => pidfd::open(pid),
            other => other,
        };
        match got.map(|fd| Life { pid, fd }) {
            Ok(life) if life.has_ended() => Err(Ended),
            Ok(life) => Ok(Some(life)),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Err(Ended),
            Err(_) => Ok(None),
        }
    }

    /// Its number; 0 where it is not visible here.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Readable once all of the process has ended.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        socket::readable(&self.fd, libc::POLLIN)
    }

    /// The same process by another descriptor.
    pub fn try_clone(&self) -> io::Result<Life> {
        Ok(Life { pid: self.pid, fd: self.fd.try_clone()? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_process_is_seen_by_its_descriptor() {
        let (mine, theirs) = UnixStream::pair().unwrap();
        let own = std::process::id() as i32;
        let life = Life::watch(&mine.into(), own).unwrap();
        assert!(life.is_none_or(|life| !life.has_ended() && life.pid() == own), "this process has ended");
        drop(theirs);
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let Ok(fd) = pidfd::open(child.id() as i32) else {
            eprintln!("skipped: no pidfds here");
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        };
        let life = Life::of(child.id() as i32, fd);
        assert!(!life.has_ended() && !life.try_clone().unwrap().has_ended());
        // Its input ends, and so does it.
        drop(child.stdin.take());
        while !life.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
