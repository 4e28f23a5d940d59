//! Descriptors that are readable every so often (timerfd_create(2)).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::cvt;

/// A timer.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// One that is readable every so often; never, if that is zero.
    pub fn new(every: Duration) -> io::Result<Timer> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: timerfd_create(2) touches no memory.
        let fd = cvt(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: a descriptor just made, which nothing else owns.
        let timer = Timer(unsafe { OwnedFd::from_raw_fd(fd) });
        timer.set(every)?;
        Ok(timer)
    }

    /// From now on it is readable every so often; never, if that is zero.
    pub fn set(&self, every: Duration) -> io::Result<()> {
        let time = libc::timespec { tv_sec: every.as_secs() as _, tv_nsec: every.subsec_nanos() as _ };
        let spec = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: `spec` is a valid setting, and the pointer for the old one is NULL.
        cvt(unsafe { libc::timerfd_settime(self.as_raw_fd(), 0, &spec, std::ptr::null_mut()) })?;
        Ok(())
    }

    /// Until the next time it is not readable.
    pub fn clear(&self) {
        let mut times = 0u64;
        // SAFETY: a valid place of so many bytes. That nothing is there is of no interest.
        unsafe { libc::read(self.as_raw_fd(), (&raw mut times).cast(), size_of_val(&times)) };
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Poller;

    #[test]
    fn a_timer_is_readable_after_its_time_and_until_it_is_cleared() {
        let (poller, timer) = (Poller::new().unwrap(), Timer::new(Duration::ZERO).unwrap());
        poller.add(&timer, 1).unwrap();
        assert!(poller.ready::<1>().is_empty());
        timer.set(Duration::from_millis(1)).unwrap();
        while poller.ready::<1>().is_empty() {
            std::thread::yield_now();
        }
        timer.set(Duration::from_secs(1000)).unwrap();
        timer.clear();
        assert!(poller.ready::<1>().is_empty());
        // Nothing to clear does not block.
        timer.clear();
    }
}
