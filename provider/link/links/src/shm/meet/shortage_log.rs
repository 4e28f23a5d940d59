//! Log texts for EMFILE, ENFILE and ENOMEM.

use std::fmt;
use std::io;
use std::time::Duration;

use ipc::{MemoryLimit, socket};
use meet::Shortage;
use wire::Addr;

/// What to do about such an error; the second field is the length of a ring, which is mapped.
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

/// Descriptors or memory were short for too long: for how long, the errno, and the length of a ring.
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

/// Logs such an error: the first one as a warning.
pub(in crate::shm) fn log(
    all: &mut Shortage,
    own: Addr,
    what: fmt::Arguments<'_>,
    e: &io::Error,
    ring: usize,
) {
    let level = if all.warns() { log::Level::Warn } else { log::Level::Debug };
    log::log!(level, "{own}: {what}: {e}; {}", Cure(e, ring));
}

/// What peers wait for now; `has_room` says whether so many descriptors could be had.
pub(in crate::shm) fn now(all: &Shortage, has_room: impl Fn(usize) -> bool) -> Option<io::Error> {
    // One that calls takes what is there at once; for one that is called a socket and a segment are made, if
    // not just now.
    let lacks = |no: &i32, n: usize| !matches!(*no, libc::EMFILE | libc::ENFILE) || !has_room(n);
    let calls = all.callers().map(|callers| callers.errno).filter(|no| lacks(no, 1));
    let called = all.called().filter(|no| lacks(no, 2));
    called.or(calls).map(io::Error::from_raw_os_error)
}
