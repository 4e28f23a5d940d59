//! How a peer could be connected to so far.

use std::time::{Duration, Instant};

use meet::Life;

/// Between two attempts.
const RETRY: Duration = Duration::from_millis(1);
/// The same where each leaves a connection in a queue that no process empties: other callers find it full,
/// and do not know that.
const RETRY_ORPHANED: Duration = Duration::from_millis(20);

/// What a channel is opened for. A receive that waits for a peer and a send each have the result
/// when their time is over: a send may be tried seldom, and receives be posted again as often as that.
#[derive(Clone, Copy)]
pub(in crate::shm) enum Purpose {
    Receive = 0,
    Send = 1,
}

/// A socket that a process has listened on, and does not have any more.
#[derive(Debug)]
pub(in crate::shm) struct Deserted {
    pub(in crate::shm) socket: u64,
    pub(in crate::shm) process: Life,
}

#[derive(Debug, Default)]
pub(in crate::shm) struct Reach {
    /// It was connected to before.
    reached: bool,
    /// Since when it is tried, for each purpose; and from when on again.
    first_try: [Option<Instant>; 2],
    next_try: Option<Instant>,
    /// The socket on which it listened, and which its process does not have any more.
    deserted: Option<Deserted>,
    /// What listens under its name was an ended process's, and a process forked from that one holds it, when
    /// that was last seen.
    orphaned: bool,
    /// Its address is not this host's, and the log says so.
    far: bool,
}

impl Reach {
    /// Whether it is too early for another attempt.
    pub(in crate::shm) fn is_too_early(&self, now: Instant) -> bool {
        self.next_try.is_some_and(|t| now < t)
    }

    pub(in crate::shm) fn was_reached(&self) -> bool {
        self.reached
    }

    /// There is a channel.
    pub(in crate::shm) fn is_reached(&mut self) {
        self.reached = true;
        self.first_try = [None; 2];
        self.next_try = None;
    }

    /// An attempt failed; for how long they have.
    pub(in crate::shm) fn failed(&mut self, now: Instant, purpose: Purpose) -> Duration {
        now - *self.first_try[purpose as usize].get_or_insert(now)
    }

    /// The time begins anew.
    pub(in crate::shm) fn begin_anew(&mut self, now: Instant, purpose: Purpose) {
        self.first_try[purpose as usize] = Some(now);
    }

    /// It is given up.
    pub(in crate::shm) fn give_up(&mut self, purpose: Purpose) {
        self.first_try[purpose as usize] = None;
        self.next_try = None;
    }

    /// The next attempt is not at once: each may leave a connection in the peer's queue that is closed
    /// already.
    pub(in crate::shm) fn pause(&mut self, now: Instant) {
        self.next_try = Some(now + if self.orphaned { RETRY_ORPHANED } else { RETRY });
    }

    pub(in crate::shm) fn is_orphaned(&self) -> bool {
        self.orphaned
    }

    pub(in crate::shm) fn set_orphaned(&mut self, orphaned: bool) {
        self.orphaned = orphaned;
    }

    pub(in crate::shm) fn deserted(&self) -> Option<&Deserted> {
        self.deserted.as_ref()
    }

    pub(in crate::shm) fn set_deserted(&mut self, deserted: Option<Deserted>) {
        self.deserted = deserted;
    }

    /// Its address is not this host's; whether the log is to say so.
    pub(in crate::shm) fn is_far(&mut self) -> bool {
        !std::mem::replace(&mut self.far, true)
    }
}
