//! Which user and process is at the other end of a unix socket, by the kernel's word.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::{cvt, pidfd};

/// The process at the other end of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Cred {
    pub uid: u32,
    /// 0 if it is not visible in our pid namespace.
    pub pid: i32,
}

impl Cred {
    pub fn of(fd: &impl AsRawFd) -> io::Result<Cred> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `cred` is a valid place of `len` bytes.
        cvt(unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut cred).cast(),
                &mut len,
            )
        })?;
        Ok(Cred { uid: cred.uid, pid: cred.pid })
    }

    /// Whether other users have its uid too, as this user namespace shows them.
    pub fn is_of_many(&self) -> bool {
        self.uid == overflow_uid() && !every_uid_is_mapped()
    }

    /// Whether it runs as our user: `sock` is where these come from.
    ///
    /// The kernel reports a uid as this user namespace maps it, and each uid without a mapping as the
    /// overflow uid. So that one may stand for any user, and is this process's only if the kernel, which
    /// compares users themselves, allows a signal to the process.
    pub fn user(&self, sock: &OwnedFd) -> User {
        // SAFETY: geteuid(2) cannot fail and touches no memory.
        let me = unsafe { libc::geteuid() };
        match self.uid == me {
            false => User::Other,
            true if !other_uids_coincide() || may_signal(sock) => User::Ours,
            true => User::Unknown,
        }
    }
}

/// Which user a peer runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Ours,
    Other,
    /// This user namespace shows it with the same uid, and others too.
    Unknown,
}

/// What to do about [`User::Unknown`].
pub const UNMAPPED: &str = "in this user namespace that uid stands for every user without a mapping: \
    map the user (unshare --map-current-user, --map-root-user or --map-user; /etc/subuid)";

/// Whether other users than ours have our uid, as this user namespace shows them.
pub fn other_uids_coincide() -> bool {
    // SAFETY: geteuid(2) cannot fail and touches no memory.
    unsafe { libc::geteuid() == overflow_uid() && !every_uid_is_mapped() }
}

/// What stands for a uid without a mapping.
fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(65534)
}

/// Whether this user namespace maps every uid there is, as the first one does; no if that is not known.
fn every_uid_is_mapped() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

/// Whether this process may signal the process at the other end of a socket; no if it is not known which that
/// is.
///
/// kill(2): its real or saved uid has to be our real or effective one, in the kernel's own terms. A
/// capability serves instead only inside our own user namespace.
fn may_signal(sock: &OwnedFd) -> bool {
    // Its number would not do: it may be another process's by now.
    let Ok(life) = pidfd::of_peer(sock) else { return false };
    let (fd, info) = (life.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: signal 0 sends none, and nothing is read from the null pointer.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, info, 0) == 0 }
}
