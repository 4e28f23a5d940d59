//! The kernel's table of this process's descriptors.
//!
//! The table holds 64 descriptors at first, and is doubled when there is one more than it holds. In a process
//! of several threads the kernel waits for a grace period of RCU then, which was seen to take 12 to 27 ms:
//! five times, and all other peers with it, while connections to a thousand peers are made. So a connection
//! whose descriptor comes near the end of the table has it made much larger, in one go.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// What the table holds at least, as far as is known: in a new process, and once it was made larger.
const FIRST: i32 = 64;
const LARGER: i32 = 1024;
/// How much larger it is made each time after that. A descriptor takes eight bytes in it.
const FACTOR: i32 = 8;

static HELD: AtomicI32 = AtomicI32::new(FIRST);

/// Of the last descriptors that the table holds, this is one of a new connection: the table is made larger
/// before they are used up.
#[inline]
pub(super) fn make_room(fd: &OwnedFd) {
    let held = HELD.load(Ordering::Relaxed);
    if fd.as_raw_fd() >= held / 4 * 3 {
        enlarge(held);
    }
}

#[cold]
fn enlarge(held: i32) {
    let larger = held.saturating_mul(FACTOR).max(LARGER);
    // Another thread does it.
    if HELD.compare_exchange(held, larger, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return;
    }
    let last = i32::try_from(limit.rlim_cur).unwrap_or(i32::MAX).min(larger) - 1;
    // Of an object that is nothing to a peer: a child that is forked meanwhile has the descriptor, too.
    // SAFETY: both make descriptors, which are closed at once, and touch no memory. If there are none, the
    // table grows as it does by itself.
    unsafe {
        let any = libc::eventfd(0, libc::EFD_CLOEXEC);
        for made in [libc::fcntl(any, libc::F_DUPFD_CLOEXEC, last), any] {
            if made >= 0 {
                libc::close(made);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::{File, read_to_string};
    use std::os::fd::FromRawFd as _;

    use super::*;

    fn holds() -> usize {
        let status = read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        line.trim().parse().unwrap()
    }

    #[test]
    fn the_table_is_made_larger_before_it_is_full_and_once() {
        let file = File::open("/dev/null").unwrap();
        let at = |least: i32| {
            // SAFETY: a new descriptor, which nothing else owns.
            unsafe { OwnedFd::from_raw_fd(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least)) }
        };
        let near = at(FIRST / 4 * 3);
        make_room(&near);
        assert!(holds() >= LARGER as usize, "{}", holds());
        assert_eq!(HELD.load(Ordering::Relaxed), LARGER);
        make_room(&near);
        assert_eq!(HELD.load(Ordering::Relaxed), LARGER, "that is enough for now");
    }
}
