//! Peers that receives wait for, and that have no channel.
//!
//! The end of a peer that was never met is not seen. So a peer that a receive names is looked for after
//! a while, in the way in which a send would: then there is a channel, the end of which is seen, or the peer
//! is given up after the time that a send would take.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use ipc::{Poller, cvt};

use super::token;

/// How long such a peer is left alone: most call by then.
pub(super) const GRACE: Duration = Duration::from_millis(500);

/// Those that are waited for.
#[derive(Debug, Default)]
pub(super) struct Expected {
    peers: Vec<(u32, Instant)>,
    /// Wakes a sleeper now and then, while there are any.
    timer: Option<OwnedFd>,
}

impl Expected {
    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(super) fn forget(&mut self, id: u32) {
        self.peers.retain(|(i, _)| *i != id);
    }

    /// One more; `poller` watches the timer.
    pub(super) fn add(&mut self, id: u32, poller: &Poller) {
        if self.peers.iter().any(|(i, _)| *i == id) {
            return;
        }
        if self.timer.is_none() {
            // Without one a sleeper hears of it later.
            self.timer = timer(GRACE).ok().filter(|fd| poller.add(fd, token::TIMER).is_ok());
        }
        self.peers.push((id, Instant::now()));
    }

    /// Those that are waited for, and since when; taken out, to be put back.
    pub(super) fn take(&mut self) -> Vec<(u32, Instant)> {
        if let Some(timer) = &self.timer {
            let mut times = 0u64;
            let len = mem::size_of_val(&times);
            // SAFETY: a valid place of so many bytes. That nothing is there is of no interest.
            unsafe { libc::read(timer.as_raw_fd(), (&raw mut times).cast(), len) };
        }
        mem::take(&mut self.peers)
    }

    /// Puts back those that are waited for still.
    pub(super) fn put_back(&mut self, mut peers: Vec<(u32, Instant)>, poller: &Poller) {
        self.peers.append(&mut peers);
        if self.is_empty() {
            if let Some(timer) = self.timer.take() {
                poller.remove(&timer);
            }
        }
    }
}

/// A descriptor that is readable every so often; never, if that is zero.
pub(super) fn timer(every: Duration) -> io::Result<OwnedFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: timerfd_create(2) touches no memory.
    let fd = cvt(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
    // SAFETY: a descriptor just made, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_timer(&fd, every)?;
    Ok(fd)
}

/// Has a timer be readable every so often; never, if that is zero.
pub(super) fn set_timer(timer: &OwnedFd, every: Duration) -> io::Result<()> {
    let time = libc::timespec { tv_sec: every.as_secs() as _, tv_nsec: every.subsec_nanos() as _ };
    let spec = libc::itimerspec { it_interval: time, it_value: time };
    // SAFETY: `spec` is a valid setting, and no old one is asked for.
    cvt(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &spec, ptr::null_mut()) })?;
    Ok(())
}
