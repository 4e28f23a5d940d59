//! What an application sleeps on: an epoll descriptor over the links of the endpoints that feed an
//! object, and an eventfd to wake it from this process. The descriptors are made when first needed:
//! an application may open more queues than it may have files.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libc::{c_int, c_void};
use libfabric_sys as fi;

use crate::errno::Errno;

/// How often a sleeper looks around even though nothing woke it: a net, not a mechanism.
const SLICE: Duration = Duration::from_millis(100);

/// What can be slept on.
#[derive(Debug, Default)]
pub(crate) struct Wait {
    fds: OnceLock<Fds>,
    raised: AtomicBool,
    /// Link descriptors, and how many bindings brought each.
    links: Mutex<Vec<(RawFd, usize)>>,
}

#[derive(Debug)]
struct Fds {
    epoll: OwnedFd,
    event: OwnedFd,
}

impl Wait {
    fn fds(&self) -> Result<&Fds, Errno> {
        if let Some(fds) = self.fds.get() {
            return Ok(fds);
        }
        let links = self.links();
        if self.fds.get().is_none() {
            let fds = Fds::new()?;
            for (fd, _) in links.iter() {
                fds.watch(*fd)?;
            }
            let _ = self.fds.set(fds);
            let fds = self.fds.get().ok_or(Errno::OTHER)?;
            // Whoever raised it before may not have seen them.
            if self.raised.load(Ordering::SeqCst) {
                fds.ring();
            }
        }
        self.fds.get().ok_or(Errno::OTHER)
    }

    /// What an application may poll.
    pub(crate) fn fd(&self) -> Result<RawFd, Errno> {
        Ok(self.fds()?.epoll.as_raw_fd())
    }

    /// Includes an endpoint's link. The same descriptor may come several times, once for each way
    /// the endpoint is bound.
    pub(crate) fn attach(&self, fd: RawFd) -> Result<(), Errno> {
        let mut links = self.links();
        if let Some((_, n)) = links.iter_mut().find(|(f, _)| *f == fd) {
            *n += 1;
            return Ok(());
        }
        if let Some(fds) = self.fds.get() {
            fds.watch(fd)?;
        }
        links.push((fd, 1));
        Ok(())
    }

    /// Takes an endpoint's link out again; to be called before the descriptor is closed.
    pub(crate) fn detach(&self, fd: RawFd) {
        let mut links = self.links();
        let Some(at) = links.iter().position(|(f, _)| *f == fd) else { return };
        links[at].1 -= 1;
        if links[at].1 == 0 {
            links.swap_remove(at);
            if let Some(fds) = self.fds.get() {
                fds.forget(fd);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn watched(&self) -> usize {
        self.links().len()
    }

    fn links(&self) -> MutexGuard<'_, Vec<(RawFd, usize)>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever sleeps here, or is about to.
    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::SeqCst) {
            if let Some(fds) = self.fds.get() {
                fds.ring();
            }
        }
    }

    /// Forgets earlier raises; to be called before looking for the reason of one.
    pub(crate) fn lower(&self) {
        if self.raised.load(Ordering::SeqCst) {
            if let Some(fds) = self.fds.get() {
                fds.hush();
            }
            // A raise in between wakes nobody, but its reason is there to be found.
            self.raised.store(false, Ordering::SeqCst);
        }
    }

    /// Sleeps until something happens, at most until the deadline, at most a slice.
    pub(crate) fn sleep(&self, until: Deadline) -> Result<(), Errno> {
        let fds = self.fds()?;
        let left = until.left().unwrap_or(SLICE).min(SLICE);
        // Rounded up, or the last millisecond would be spun away.
        let ms = left.as_micros().div_ceil(1000) as c_int;
        let mut ev = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: there is room for the one event.
        unsafe { libc::epoll_wait(fds.epoll.as_raw_fd(), &raw mut ev, 1, ms) };
        Ok(())
    }
}

impl Fds {
    fn new() -> Result<Fds, Errno> {
        // SAFETY: no memory is involved.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: no memory is involved.
        let event = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let fds = Fds { epoll, event };
        fds.watch(fds.event.as_raw_fd())?;
        Ok(fds)
    }

    fn watch(&self, fd: RawFd) -> Result<(), Errno> {
        let mut ev = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: `ev` is valid during the call.
        let rc = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut ev) };
        if rc == 0 { Ok(()) } else { Err(Errno::last()) }
    }

    fn forget(&self, fd: RawFd) {
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: EPOLL_CTL_DEL looks at no memory.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    fn ring(&self) {
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

fn owned(fd: c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a descriptor a system call has just returned to us, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// How an application wants to wait on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Not at all.
    None,
    /// In blocking calls, or on a descriptor.
    Fd(fi::fi_wait_obj),
    /// In blocking calls that spin and yield.
    Yield,
}

impl Style {
    pub(crate) fn of(object: fi::fi_wait_obj) -> Result<Style, Errno> {
        match object {
            fi::FI_WAIT_NONE => Ok(Style::None),
            fi::FI_WAIT_UNSPEC | fi::FI_WAIT_FD => Ok(Style::Fd(object)),
            fi::FI_WAIT_YIELD => Ok(Style::Yield),
            _ => {
                log::info!("wait object {object} asked; FD, YIELD, NONE and UNSPEC are offered");
                Err(Errno::NOSYS)
            }
        }
    }

    fn code(self) -> fi::fi_wait_obj {
        match self {
            Style::None => fi::FI_WAIT_NONE,
            Style::Yield => fi::FI_WAIT_YIELD,
            Style::Fd(_) => fi::FI_WAIT_FD,
        }
    }

    /// `FI_GETWAIT` and `FI_GETWAITOBJ` of fi_control(3).
    ///
    /// # Safety
    /// `arg` is as the command demands, or NULL.
    pub(crate) unsafe fn control(self, wait: &Wait, command: c_int, arg: *mut c_void) -> Result<(), Errno> {
        match (command, self) {
            (fi::FI_GETWAIT, Style::Fd(_)) => {
                // SAFETY: the caller's promise: an `int` for a descriptor.
                unsafe { crate::ffi::put(arg.cast::<c_int>(), wait.fd()?) }
            }
            (fi::FI_GETWAIT, _) => Err(Errno::NODATA),
            // SAFETY: the caller's promise: an `enum fi_wait_obj`.
            (fi::FI_GETWAITOBJ, _) => unsafe { crate::ffi::put(arg.cast(), self.code()) },
            _ => Err(Errno::NOSYS),
        }
    }
}

/// When a blocking call gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) const NEVER: Deadline = Deadline(None);

    /// Of a timeout in milliseconds, negative for never.
    pub(crate) fn after(ms: c_int) -> Deadline {
        Deadline(u64::try_from(ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms)))
    }

    pub(crate) fn passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// `None`: for ever.
    fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }
}
