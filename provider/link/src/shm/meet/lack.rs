//! What is said where descriptors or memory lack.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use ipc::{MemoryLimit, socket};
use wire::Addr;

/// What to do about a lack of that sort; what is mapped of a channel is as long as its ring.
pub(in crate::shm) struct Cure<'a>(pub(in crate::shm) &'a io::Error, pub(in crate::shm) usize);

impl fmt::Display for Cure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.raw_os_error() == Some(libc::ENOMEM) {
            return MemoryLimit(self.1).fmt(f);
        }
        let limit = socket::descriptor_limit();
        write!(
            f,
            "a peer takes up to 3 descriptors, of which this process may have {limit}: raise RLIMIT_NOFILE (ulimit -n)"
        )
    }
}

/// That a lack lasted too long: for how long, of what (an errno), and how many bytes that would be.
pub(in crate::shm) struct Lack(
    pub(in crate::shm) Duration,
    pub(in crate::shm) Option<i32>,
    pub(in crate::shm) usize,
);

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = io::Error::from_raw_os_error(self.1.unwrap_or(libc::EMFILE));
        write!(f, "no channel for {} ms: {why}; {}", self.0.as_millis(), Cure(&why, self.2))
    }
}

/// That peers cannot be met for want of descriptors or memory.
#[derive(Debug, Default)]
pub(in crate::shm) struct Shortage {
    /// Of peers that call: since when, and what the last one found lacking, as an errno.
    since: Option<Instant>,
    calls: Option<i32>,
    /// What a peer that is called last found lacking.
    called: Option<i32>,
    warned: bool,
}

impl Shortage {
    /// The log has a line at the first time, aloud.
    fn log(&mut self, own: Addr, what: fmt::Arguments<'_>, e: &io::Error, ring: usize) {
        let level = if self.warned { log::Level::Debug } else { log::Level::Warn };
        self.warned = true;
        log::log!(level, "{own}: {what}: {e}; {}", Cure(e, ring));
    }

    /// A peer that calls cannot be met; for how long that has been so.
    pub(in crate::shm) fn of_caller(&mut self, own: Addr, e: &io::Error, ring: usize) -> Duration {
        self.log(own, format_args!("cannot accept a peer yet"), e, ring);
        self.calls = e.raw_os_error();
        self.since.get_or_insert_with(Instant::now).elapsed()
    }

    /// A peer cannot be called for want of `what`.
    pub(in crate::shm) fn of_called(&mut self, own: Addr, what: &str, e: &io::Error, ring: usize) {
        self.log(own, format_args!("could not make {what} to reach a peer"), e, ring);
        self.called = e.raw_os_error();
    }

    /// A peer that calls could be met.
    pub(in crate::shm) fn is_over(&mut self) {
        (self.since, self.calls) = (None, None);
    }

    /// A peer is called once more.
    pub(in crate::shm) fn tries_again(&mut self) {
        self.called = None;
    }

    /// What callers have found lacking for `waited`, of a ring of that length.
    pub(in crate::shm) fn of_callers(&self, waited: Duration, ring: usize) -> Lack {
        Lack(waited, self.calls, ring)
    }

    pub(in crate::shm) fn of_calls(&self, waited: Duration, ring: usize) -> Lack {
        Lack(waited, self.called, ring)
    }

    /// Since when callers lack something, which is over now: they are refused.
    pub(in crate::shm) fn end(&mut self, ring: usize) -> Lack {
        let waited = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        Lack(waited, self.calls.take(), ring)
    }

    /// What peers wait for now; `has_room` says whether so many descriptors could be had.
    pub(in crate::shm) fn now(&self, has_room: impl Fn(usize) -> bool) -> Option<io::Error> {
        // One that calls takes what is there at once; for one that is called a socket and a segment are made,
        // if not just now.
        let lacks = |no: &i32, n: usize| !matches!(*no, libc::EMFILE | libc::ENFILE) || !has_room(n);
        let calls = self.calls.filter(|no| lacks(no, 1));
        let called = self.called.filter(|no| lacks(no, 2));
        called.or(calls).map(io::Error::from_raw_os_error)
    }

    #[cfg(all(test, not(loom)))]
    pub(in crate::shm) fn was_ever(&self) -> bool {
        self.warned || self.since.is_some()
    }
}
