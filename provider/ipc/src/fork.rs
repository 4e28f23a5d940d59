//! Descriptors that a forked child does not keep: it has its parent's, and as long as it lives what they refer to does not
//! end, though the parent has ended.

use std::cell::UnsafeCell;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

/// A descriptor that in a forked child refers to nothing (`/dev/null`), under the same number. A child that is made by
/// clone(2) itself, and not by fork(3), keeps it.
#[derive(Debug)]
pub struct Unshared(ManuallyDrop<OwnedFd>);

static ALL: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// The lock on all, from before a fork until after it.
struct Held(UnsafeCell<Option<MutexGuard<'static, Vec<RawFd>>>>);

// SAFETY: it is accessed by the handlers below alone, between `prepare` and `parent` or `child`, in the thread that forks;
// all the while that thread has the lock, so that no other one is there.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

impl Unshared {
    /// Of a descriptor.
    pub fn new(fd: OwnedFd) -> Unshared {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handlers are functions of this library, which libc forgets when it is unloaded.
            unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        });
        ALL.lock().unwrap_or_else(PoisonError::into_inner).push(fd.as_raw_fd());
        Unshared(ManuallyDrop::new(fd))
    }

    /// Another descriptor of the same.
    pub fn try_clone(&self) -> io::Result<Unshared> {
        self.0.try_clone().map(Unshared::new)
    }
}

/// Calls `with` for each that there is, none of which is closed meanwhile. `false`: another thread changes what there is.
pub fn each_unshared(mut with: impl FnMut(BorrowedFd<'_>)) -> bool {
    let all = match ALL.try_lock() {
        Ok(all) => all,
        Err(TryLockError::Poisoned(all)) => all.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    for fd in all.iter() {
        // SAFETY: it is one of an `Unshared`, whose end waits for the lock.
        with(unsafe { BorrowedFd::borrow_raw(*fd) });
    }
    true
}

impl Drop for Unshared {
    fn drop(&mut self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().rposition(|fd| *fd == self.0.as_raw_fd()) {
            all.swap_remove(at);
        }
        // Before the lock is let go of, so that no number is among them that is another descriptor's.
        // SAFETY: nothing uses it any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl Deref for Unshared {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsRawFd for Unshared {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

extern "C" fn prepare() {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: this thread has the lock.
    unsafe { *HELD.0.get() = Some(all) };
}

extern "C" fn parent() {
    // SAFETY: this thread has the lock since `prepare`.
    drop(unsafe { (*HELD.0.get()).take() });
}

/// Calls nothing but what may be called in a child of a process with threads (signal-safety(7)).
extern "C" fn child() {
    // SAFETY: this thread has the lock since `prepare`, when it was its parent's.
    let all = unsafe { (*HELD.0.get()).take() };
    if let Some(fds) = all.as_deref().filter(|fds| !fds.is_empty()) {
        // SAFETY: the path is a C string.
        let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if null >= 0 {
            for fd in fds {
                // SAFETY: each number is that of a descriptor of ours, which stays one: what owns it may close it.
                unsafe { libc::dup3(null, *fd, libc::O_CLOEXEC) };
            }
            // SAFETY: this descriptor was made above.
            unsafe { libc::close(null) };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    /// The other end sees the end as soon as the one process has closed it that is to have it.
    #[test]
    fn a_forked_child_keeps_nothing_open() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = Unshared::new(near.into());
        let copy = near.try_clone().unwrap();
        let (mut until, over) = UnixStream::pair().unwrap();
        // SAFETY: the child calls read(2) and _exit(2) alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(over);
            let _ = until.read(&mut [0]);
            // SAFETY: ends the process without anything else.
            unsafe { libc::_exit(0) };
        }
        drop((near, copy));
        far.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        assert_eq!(far.read(&mut [0]).ok(), Some(0), "the child has it still");
        drop((over, until));
        // SAFETY: no status is asked for.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        assert!(ALL.lock().unwrap().is_empty());
    }
}
