//! Descriptors that a forked child does not keep: it has its parent's, and as long as it lives what they
//! refer to does not end, though the parent has ended.

use std::cell::UnsafeCell;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};

/// A descriptor that in a forked child refers to nothing (`/dev/null`), under the same number, or is closed
/// there where no such thing can be opened. A child that is made by clone(2) itself, and not by fork(3),
/// keeps it.
#[derive(Debug)]
pub struct Unshared(ManuallyDrop<OwnedFd>);

/// One of all: its number, and whether it is [`Unshared::mark`]ed.
#[derive(Clone, Copy, Debug)]
struct One {
    fd: RawFd,
    marked: bool,
}

static ALL: Mutex<Vec<One>> = Mutex::new(Vec::new());

/// The lock on all, from before a fork until after it.
struct Held(UnsafeCell<Option<MutexGuard<'static, Vec<One>>>>);

// SAFETY: it is accessed by the handlers below alone, between `prepare` and `parent` or `child`, in the
// thread that forks; all the while that thread has the lock, so that no other one is there.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

impl Unshared {
    /// Of a descriptor. A fork by another thread between its making and this call leaves it to the child: see
    /// [`Unshared::make`].
    pub fn new(fd: OwnedFd) -> Unshared {
        let mut all = Unshared::lock();
        Unshared::register(&mut all, fd)
    }

    /// Of a descriptor that `make` makes, during which no fork(3) of another thread begins. `make` may
    /// neither block nor make another one of these.
    pub fn make(make: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<Unshared> {
        let mut all = Unshared::lock();
        make().map(|fd| Unshared::register(&mut all, fd))
    }

    fn lock() -> MutexGuard<'static, Vec<One>> {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handlers are functions of this library, which libc forgets when it is unloaded.
            unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
        });
        ALL.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(all: &mut Vec<One>, fd: OwnedFd) -> Unshared {
        all.push(One { fd: fd.as_raw_fd(), marked: false });
        Unshared(ManuallyDrop::new(fd))
    }

    /// From now on it is one of [`each_marked`].
    pub fn mark(&self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = all.iter_mut().rfind(|one| one.fd == self.0.as_raw_fd()) {
            one.marked = true;
        }
    }

    /// Another descriptor of the same, which is not marked.
    pub fn try_clone(&self) -> io::Result<Unshared> {
        Unshared::make(|| self.0.try_clone())
    }
}

/// Calls `with` for each that is marked, none of which is closed meanwhile. `false`: another thread changes
/// what there is.
pub fn each_marked(mut with: impl FnMut(BorrowedFd<'_>)) -> bool {
    let all = match ALL.try_lock() {
        Ok(all) => all,
        Err(TryLockError::Poisoned(all)) => all.into_inner(),
        Err(TryLockError::WouldBlock) => return false,
    };
    // `child` leaves -1 for what it has closed.
    for one in all.iter().filter(|one| one.marked && one.fd >= 0) {
        // SAFETY: it is one of an `Unshared`, whose end waits for the lock.
        with(unsafe { BorrowedFd::borrow_raw(one.fd) });
    }
    true
}

impl Drop for Unshared {
    fn drop(&mut self) {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is not among them was closed by `child`, and its number may be another descriptor's.
        let Some(at) = all.iter().rposition(|one| one.fd == self.0.as_raw_fd()) else { return };
        all.swap_remove(at);
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
    if let Some(mut fds) = unsafe { (*HELD.0.get()).take() } {
        give_up(&mut fds);
    }
}

/// Has all of these refer to nothing. Where the process has no descriptor left, some are closed to have one.
fn give_up(fds: &mut [One]) {
    if fds.is_empty() {
        return;
    }
    let (mut null, mut closed) = (nothing(), 0);
    while null < 0 && closed < fds.len() {
        close(fds[closed].fd);
        closed += 1;
        null = nothing();
    }
    for (at, One { fd, .. }) in fds.iter_mut().enumerate().filter(|(_, one)| one.fd != null) {
        // SAFETY: each number is that of a descriptor of ours, or of one that was closed above, and this
        // process has one thread. It stays one: what owns it may close it.
        if null >= 0 && unsafe { libc::dup3(null, *fd, libc::O_CLOEXEC) } == *fd {
            continue;
        }
        // As of a number beyond a limit that was lowered since.
        if at >= closed {
            close(*fd);
        }
        *fd = -1;
    }
    if null >= 0 && fds.iter().all(|one| one.fd != null) {
        close(null);
    }
}

/// A descriptor of nothing; of an object in memory where there is no such file.
fn nothing() -> RawFd {
    // SAFETY: the path is a C string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null >= 0 {
        return null;
    }
    // SAFETY: eventfd(2) touches no memory.
    unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }
}

fn close(fd: RawFd) {
    // SAFETY: a descriptor of ours, which nothing uses any more: see `Drop`.
    unsafe { libc::close(fd) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    /// A forked child that lives until this is dropped.
    struct Child(libc::pid_t, Option<UnixStream>);

    impl Child {
        fn fork() -> Child {
            let (mut until, over) = UnixStream::pair().unwrap();
            // SAFETY: the child calls close(2), read(2) and _exit(2) alone.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(over);
                let _ = until.read(&mut [0]);
                // SAFETY: ends the process without anything else.
                unsafe { libc::_exit(0) };
            }
            assert!(child > 0, "{}", io::Error::last_os_error());
            Child(child, Some(over))
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            self.1 = None;
            // SAFETY: no status is asked for.
            assert_eq!(unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) }, self.0);
        }
    }

    fn ends(far: &mut UnixStream) -> bool {
        far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        far.read(&mut [0]).ok() == Some(0)
    }

    /// The limit and the registered descriptors are of a process: each of these tests has one of its own.
    fn by_itself(name: &str, test: impl FnOnce()) {
        const CHILD: &str = "STRAIT_TEST_FORK";
        if std::env::var_os(CHILD).is_some() {
            return test();
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("fork::tests::{name}")]).env(CHILD, "1");
        assert!(child.status().unwrap().success());
    }

    fn limit(n: libc::rlim_t) {
        let limit = libc::rlimit { rlim_cur: n, rlim_max: 512 };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    }

    /// The other end sees the end as soon as the one process has closed it that is to have it.
    #[test]
    fn a_forked_child_keeps_nothing_open() {
        by_itself("a_forked_child_keeps_nothing_open", || {
            let (near, mut far) = UnixStream::pair().unwrap();
            let near = Unshared::new(near.into());
            let copy = near.try_clone().unwrap();
            let child = Child::fork();
            drop((near, copy));
            assert!(ends(&mut far), "the child has it still");
            drop(child);
            assert!(ALL.lock().unwrap().is_empty());
        });
    }

    #[test]
    fn nor_where_there_is_no_descriptor_left() {
        by_itself("nor_where_there_is_no_descriptor_left", || {
            let mut pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
            let mut near: Vec<_> =
                pairs.drain(..).map(|(near, far)| (Unshared::new(near.into()), far)).collect();
            limit(256);
            let (until, over) = UnixStream::pair().unwrap();
            let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
            assert!(all.len() > 100);
            let mut until = until;
            // SAFETY: the child calls functions of signal-safety(7) alone.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(over);
                // Each number is a descriptor's still, so that none is given to another file before its owner
                // closes it.
                let kept = near.iter().all(|(fd, _)| {
                    // SAFETY: plain numbers.
                    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) >= 0 }
                });
                let _ = until.read(&mut [0]);
                // SAFETY: ends the process without anything else.
                unsafe { libc::_exit(i32::from(!kept)) };
            }
            for (near, mut far) in near.drain(..) {
                drop(near);
                assert!(ends(&mut far), "the child has it still");
            }
            drop((over, until));
            let mut status = 0;
            // SAFETY: a valid place for the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "a number was free in the child");
        });
    }

    /// As of descriptors beyond a limit that was lowered: their numbers cannot be made to refer to anything
    /// else.
    #[test]
    fn one_that_cannot_be_replaced_is_closed_and_not_once_more_by_its_owner() {
        by_itself("one_that_cannot_be_replaced_is_closed_and_not_once_more_by_its_owner", || {
            let (near, mut far) = UnixStream::pair().unwrap();
            // SAFETY: a new descriptor.
            let high = unsafe {
                use std::os::fd::FromRawFd as _;
                OwnedFd::from_raw_fd(libc::fcntl(near.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 200))
            };
            let (number, high) = (high.as_raw_fd(), Unshared::new(high));
            drop(near);
            limit(100);
            // SAFETY: the child calls functions of signal-safety(7), and locks a mutex that its one thread
            // has let go of.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: plain numbers; another file gets the number, which its former owner leaves alone.
                let good = unsafe {
                    let closed = libc::fcntl(number, libc::F_GETFD) < 0;
                    limit(512);
                    let other = libc::fcntl(far.as_raw_fd(), libc::F_DUPFD, number) == number;
                    drop(high);
                    closed && other && libc::fcntl(number, libc::F_GETFD) >= 0
                };
                // SAFETY: ends the process without anything else.
                unsafe { libc::_exit(i32::from(!good)) };
            }
            drop(high);
            assert!(ends(&mut far), "the child has it still");
            let mut status = 0;
            // SAFETY: a valid place for the status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        });
    }

    /// A child has none of its parent's: they are nothing there, or closed.
    #[test]
    fn what_is_marked_is_found_until_it_is_closed() {
        by_itself("what_is_marked_is_found_until_it_is_closed", || {
            let found = || {
                let mut found = Vec::new();
                assert!(each_marked(|fd| found.push(fd.as_raw_fd())));
                found
            };
            let (one, other) = UnixStream::pair().unwrap();
            let (one, other) = (Unshared::new(one.into()), Unshared::new(other.into()));
            assert!(found().is_empty());
            other.mark();
            let copy = other.try_clone().unwrap();
            assert_eq!(found(), [other.as_raw_fd()]);
            let mut closed = [One { fd: -1, marked: true }];
            std::mem::swap(&mut ALL.lock().unwrap()[0], &mut closed[0]);
            assert_eq!(found(), [other.as_raw_fd()], "one that is closed");
            std::mem::swap(&mut ALL.lock().unwrap()[0], &mut closed[0]);
            drop((one, other));
            assert!(found().is_empty());
            drop(copy);
        });
    }

    /// Another thread's fork waits for a descriptor that is being made, or comes before it. Where it is made
    /// first and registered later, the child has it.
    #[test]
    fn a_fork_while_one_is_made_leaves_nothing_to_the_child() {
        by_itself("a_fork_while_one_is_made_leaves_nothing_to_the_child", || {
            for under_lock in [true, false] {
                // There are handlers from the first one on.
                drop(Unshared::new(UnixStream::pair().unwrap().0.into()));
                let forked = AtomicBool::new(false);
                let (near, mut far) = UnixStream::pair().unwrap();
                let (near, far) = (OwnedFd::from(near), &mut far);
                std::thread::scope(|scope| {
                    let fork = || {
                        let child = Child::fork();
                        forked.store(true, Ordering::SeqCst);
                        child
                    };
                    let mut thread = None;
                    let mut wait = |most: Duration| {
                        thread = Some(scope.spawn(fork));
                        let start = Instant::now();
                        while !forked.load(Ordering::SeqCst) && start.elapsed() < most {
                            std::thread::yield_now();
                        }
                    };
                    let near = if under_lock {
                        let made = Unshared::make(|| {
                            wait(Duration::from_millis(200));
                            assert!(!forked.load(Ordering::SeqCst), "it was forked meanwhile");
                            Ok(near)
                        });
                        made.unwrap()
                    } else {
                        wait(Duration::from_secs(20));
                        Unshared::new(near)
                    };
                    let child = thread.unwrap().join().unwrap();
                    drop(near);
                    far.set_read_timeout(Some(Duration::from_millis(if under_lock { 20_000 } else { 200 })))
                        .unwrap();
                    assert_eq!(far.read(&mut [0]).ok() == Some(0), under_lock);
                    drop(child);
                });
            }
        });
    }
}
