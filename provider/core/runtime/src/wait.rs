//! What a thread sleeps on: an epoll descriptor over the links of the endpoints that feed an
//! object, an eventfd to wake it from this process, and a timer. The descriptors are made when first needed:
//! an application may open more queues than it may have files.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::Error;

/// When a sleeper looks although nothing woke it: so long after a call of another thread that left the links
/// not armed, unless another such call followed.
const SOON: Duration = Duration::from_millis(1);
/// How often in a row such calls keep it from looking.
const MOST: u32 = 100;

/// What the timer is called among the descriptors that are slept on.
const TIMER: u64 = 1;

/// What can be slept on.
#[derive(Debug, Default)]
pub struct Wait {
    fds: OnceLock<Fds>,
    raised: AtomicBool,
    /// A thread is in a blocking call that may sleep here.
    held: AtomicBool,
    /// The timer is set.
    timed: AtomicBool,
    /// A call left the links not armed after the one for which the timer was set.
    stirred: AtomicBool,
    /// Link descriptors, and how many bindings brought each. Its lock is also that of `fds`, of the timer and
    /// of the eventfd: when it is free, the eventfd is readable only if `raised`, and the timer set if
    /// `timed`.
    links: Mutex<Vec<(RawFd, usize)>>,
    /// What blocking calls sleep on, beside an application that sleeps on the descriptor: it has raises, a
    /// timer and a place among the sleepers of its own, so that neither forgets what is to wake the other.
    calls: OnceLock<Arc<Wait>>,
}

#[derive(Debug)]
struct Fds {
    epoll: OwnedFd,
    event: OwnedFd,
    timer: OwnedFd,
}

impl Wait {
    fn fds(&self) -> Result<&Fds, Error> {
        if let Some(fds) = self.fds.get() {
            return Ok(fds);
        }
        let links = self.links();
        if let Some(fds) = self.fds.get() {
            return Ok(fds);
        }
        let fds = Fds::new()?;
        for (fd, _) in links.iter() {
            fds.watch(*fd, 0)?;
        }
        let fds = self.fds.get_or_init(|| fds);
        // An earlier raise has not seen them.
        if self.raised.load(Ordering::SeqCst) {
            fds.notify();
        }
        Ok(fds)
    }

    /// A descriptor that poll(2) finds readable when there is something to look for, provided that
    /// [`Runtime::try_wait`](crate::Runtime::try_wait) was true and nothing was asked since. The caller
    /// does not read, change or close it.
    pub fn fd(&self) -> Result<RawFd, Error> {
        Ok(self.fds()?.epoll.as_raw_fd())
    }

    /// Links that are slept on.
    pub fn attached(&self) -> usize {
        self.links().len()
    }

    #[cfg(test)]
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    fn attach(&self, fd: RawFd) -> Result<(), Error> {
        let mut links = self.links();
        if let Some((_, n)) = links.iter_mut().find(|(f, _)| *f == fd) {
            *n += 1;
            return Ok(());
        }
        if let Some(calls) = self.calls.get() {
            calls.attach(fd)?;
        }
        if let Some(fds) = self.fds.get() {
            fds.watch(fd, 0)
                .inspect_err(|_| self.calls.get().into_iter().for_each(|calls| calls.detach(fd)))?;
        }
        links.push((fd, 1));
        Ok(())
    }

    fn detach(&self, fd: RawFd) {
        let mut links = self.links();
        let Some(at) = links.iter().position(|(f, _)| *f == fd) else { return };
        links[at].1 -= 1;
        if links[at].1 == 0 {
            links.swap_remove(at);
            if let Some(fds) = self.fds.get() {
                fds.forget(fd);
            }
            if let Some(calls) = self.calls.get() {
                calls.detach(fd);
            }
        }
    }

    /// What blocking calls sleep on.
    pub(crate) fn calls(&self) -> &Arc<Wait> {
        if let Some(calls) = self.calls.get() {
            return calls;
        }
        // No link comes or goes meanwhile.
        let links = self.links();
        self.calls.get_or_init(|| {
            let links = links.iter().map(|(fd, _)| (*fd, 1)).collect();
            Arc::new(Wait { links: Mutex::new(links), ..Wait::default() })
        })
    }

    /// Whether this is what is slept on, by the application or by a blocking call.
    pub(crate) fn is_of(&self, wait: &Arc<Wait>) -> bool {
        let own = |all: &Arc<Wait>| std::ptr::eq(self, Arc::as_ptr(all));
        own(wait) || wait.calls.get().is_some_and(own)
    }

    /// The right to lower it and to sleep here, which one blocking call has at a time: a raise wakes a thread
    /// for certain only while no other one lowers it.
    pub(crate) fn hold(&self) -> Option<Held<'_>> {
        (!self.held.swap(true, Ordering::Acquire)).then(|| Held(self))
    }

    fn links(&self) -> MutexGuard<'_, Vec<(RawFd, usize)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that sleep here, or are about to. The descriptor stays readable until
    /// [`Wait::lower`].
    pub fn raise(&self) {
        self.raise_own();
        if let Some(calls) = self.calls.get() {
            calls.raise_own();
        }
    }

    /// Wakes those that sleep on the descriptor, or those in blocking calls.
    pub(crate) fn raise_own(&self) {
        if !self.raised.swap(true, Ordering::SeqCst) {
            let _links = self.links();
            // If it was lowered in between, the look that follows that finds the reason of this raise.
            if let Some(fds) = self.fds.get().filter(|_| self.raised.load(Ordering::SeqCst)) {
                fds.notify();
            }
        }
    }

    /// Forgets earlier raises; to be called before looking for the reason of one, or in the lock of the
    /// domain if each raise and its reason are.
    pub fn lower(&self) {
        self.cancel_poll();
        if self.raised.load(Ordering::SeqCst) {
            let _links = self.links();
            if let Some(fds) = self.fds.get() {
                fds.hush();
            }
            // A raise in between wakes no thread, but its reason is there to be found.
            self.raised.store(false, Ordering::SeqCst);
        }
    }

    /// Another thread's call left the links not armed, so that no peer wakes the thread that sleeps here: it
    /// is to look, once such calls have ceased. Costs a system call for the first of them alone.
    pub(crate) fn poll_soon(&self) {
        if self.timed.load(Ordering::SeqCst) {
            self.stirred.store(true, Ordering::SeqCst);
        } else {
            self.set_timer(SOON);
        }
    }

    /// The links are armed again.
    pub(crate) fn cancel_poll(&self) {
        if self.timed.load(Ordering::SeqCst) {
            self.set_timer(Duration::ZERO);
        }
    }

    fn set_timer(&self, after: Duration) {
        let _links = self.links();
        if let Some(fds) = self.fds.get() {
            self.stirred.store(false, Ordering::SeqCst);
            fds.set_timer(after);
            self.timed.store(!after.is_zero(), Ordering::SeqCst);
        }
    }

    /// Sleeps until a raise or a link's descriptor ends that, at most until the deadline. It may return
    /// earlier: the caller looks, and sleeps again.
    pub fn sleep(&self, until: Deadline) -> Result<(), Error> {
        let fds = self.fds()?;
        for _ in 0..MOST {
            // Rounded up, or the last millisecond would be spun away.
            let ms = until.left().map(|left| left.as_micros().div_ceil(1000));
            let ms = ms.map_or(-1, |ms| c_int::try_from(ms).unwrap_or(c_int::MAX));
            let mut ev = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: there is room for the one event.
            let n = unsafe { libc::epoll_wait(fds.epoll.as_raw_fd(), &raw mut ev, 1, ms) };
            let only_timer = n == 1 && ev.u64 == TIMER && !self.raised.load(Ordering::SeqCst);
            if !only_timer || !self.stirred.load(Ordering::SeqCst) {
                break;
            }
            // Another thread still polls, and wakes this one for what it finds.
            self.set_timer(SOON);
        }
        Ok(())
    }
}

/// See [`Wait::hold`].
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Wait);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}

impl Fds {
    fn new() -> Result<Fds, Error> {
        // SAFETY: no memory is involved.
        let epoll = owned("epoll_create1", unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no memory is involved.
        let event = owned("eventfd", unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is involved.
        let timer = owned("timerfd_create", unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let fds = Fds { epoll, event, timer };
        fds.watch(fds.event.as_raw_fd(), 0)?;
        fds.watch(fds.timer.as_raw_fd(), TIMER)?;
        Ok(fds)
    }

    fn watch(&self, fd: RawFd, token: u64) -> Result<(), Error> {
        let mut ev = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: `ev` is valid during the call.
        let rc = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut ev) };
        if rc == 0 { Ok(()) } else { Err(Error::last("epoll_ctl")) }
    }

    fn forget(&self, fd: RawFd) {
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: EPOLL_CTL_DEL looks at no memory.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Has the timer expire once, or not at all, and forgets that it has.
    fn set_timer(&self, after: Duration) {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let tv_sec = after.as_secs() as libc::time_t;
        let it_value = libc::timespec { tv_sec, tv_nsec: after.subsec_nanos().into() };
        let spec = libc::itimerspec { it_interval: never, it_value };
        // SAFETY: `spec` is read during the call, and nothing is written to NULL.
        unsafe { libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const spec, std::ptr::null_mut()) };
    }

    fn notify(&self) {
        let one = 1u64;
        // SAFETY: eight bytes are read from `one`. It fails only when it rings already.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn hush(&self) {
        let mut n = 0u64;
        // SAFETY: eight bytes are written to `n`.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut n).cast(), 8) };
    }
}

fn owned(call: &'static str, fd: c_int) -> Result<OwnedFd, Error> {
    if fd < 0 {
        return Err(Error::last(call));
    }
    // SAFETY: a descriptor that a system call has just returned: it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An endpoint's link among what a [`Wait`] sleeps on, for as long as this lives. The same link may be there
/// several times, once for each way the endpoint is bound. To be dropped before the link's descriptor is
/// closed.
#[derive(Debug)]
pub struct Attached {
    wait: Arc<Wait>,
    fd: RawFd,
}

impl Attached {
    /// Includes the link that has this descriptor.
    pub fn new(wait: &Arc<Wait>, fd: RawFd) -> Result<Attached, Error> {
        wait.attach(fd)?;
        Ok(Attached { wait: wait.clone(), fd })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.wait.detach(self.fd);
    }
}

/// When a blocking call gives up.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// It does not.
    pub const NEVER: Deadline = Deadline(None);

    /// After so many milliseconds, negative for never, as in poll(2).
    pub fn after_ms(ms: i32) -> Deadline {
        Deadline(u64::try_from(ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms)))
    }

    /// Whether it is time.
    pub fn passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// `None`: for ever.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Whether poll(2) finds the descriptor readable now.
    fn readable(wait: &Wait) -> bool {
        let mut p = libc::pollfd { fd: wait.fd().unwrap(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut p, 1, 0) == 1 }
    }

    /// A raise stands until it is lowered, also one before there was a descriptor.
    #[test]
    fn raise_stands_until_lowered_also_before_the_descriptor() {
        let wait = Wait::default();
        wait.raise();
        assert!(readable(&wait));
        assert!(readable(&wait));
        wait.lower();
        assert!(!readable(&wait));
        wait.raise();
        wait.raise();
        assert!(readable(&wait));
        wait.lower();
        assert!(!readable(&wait));
    }

    #[test]
    fn nothing_is_left_of_a_raise_that_is_lowered_before_it_rings() {
        let wait = Wait::default();
        wait.fd().unwrap();
        thread::scope(|s| {
            let links = wait.links();
            s.spawn(|| wait.raise());
            while !wait.is_raised() {
                thread::yield_now();
            }
            // What `lower` does while it has the lock: nothing has rung yet.
            wait.raised.store(false, Ordering::SeqCst);
            drop(links);
        });
        assert!(!readable(&wait), "it is readable, and there is no raise to be lowered");
    }

    /// A sleeper on the descriptor polls after a call that left the links not armed.
    #[test]
    fn sleeper_on_the_descriptor_polls_after_a_call_left_links_unarmed() {
        let wait = Wait::default();
        let mut p = libc::pollfd { fd: wait.fd().unwrap(), events: libc::POLLIN, revents: 0 };
        wait.poll_soon();
        // SAFETY: one entry.
        assert_eq!(unsafe { libc::poll(&raw mut p, 1, 60_000) }, 1);
        wait.lower();
        assert!(!readable(&wait));
    }

    #[test]
    fn links_are_slept_on_while_they_are_attached() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let wait = Arc::new(Wait::default());
        let before = Attached::new(&wait, ours.as_raw_fd()).unwrap();
        std::io::Write::write_all(&mut &theirs, b"!").unwrap();
        assert!(readable(&wait));
        let twice = Attached::new(&wait, ours.as_raw_fd()).unwrap();
        drop(before);
        assert_eq!((wait.attached(), readable(&wait)), (1, true));
        drop(twice);
        assert_eq!((wait.attached(), readable(&wait)), (0, false));
        let _after = Attached::new(&wait, ours.as_raw_fd()).unwrap();
        assert!(readable(&wait));
    }

    #[test]
    fn what_cannot_be_attached_is_reported_and_is_not_there() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let wait = Arc::new(Wait::default());
        wait.fd().unwrap();
        let refused = Attached::new(&wait, file.as_raw_fd()).unwrap_err();
        assert_eq!(refused, Error::System { call: "epoll_ctl", number: libc::EPERM });
        assert_eq!(wait.attached(), 0);
    }

    #[test]
    fn deadlines() {
        assert!(!Deadline::after_ms(-1).passed());
        assert!(!Deadline::NEVER.passed());
        assert!(!Deadline::after_ms(i32::MAX).passed());
        assert!(Deadline::after_ms(0).passed());
        let wait = Wait::default();
        let until = Deadline::after_ms(1);
        while !until.passed() {
            wait.sleep(until).unwrap();
        }
        wait.raise();
        wait.sleep(Deadline::NEVER).unwrap();
    }
}
