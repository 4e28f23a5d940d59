//! When it is asked whether peers are another program by now.

use std::io;
use std::time::{Duration, Instant};

use ipc::{Poller, Timer};

use crate::shm::meet::token;

/// From one look to the next.
pub(in crate::shm) const EVERY: Duration = Duration::from_secs(1);
/// The same, at the descriptors of one peer that does not answer: each time twice as long, and no longer than
/// this.
const SELDOM: Duration = Duration::from_secs(8);

/// Wakes sleepers for a look, while there are peers.
#[derive(Debug)]
pub(in crate::shm) struct Looks {
    timer: Timer,
    on: bool,
    /// Until when descriptors are left alone.
    pub(in crate::shm) rest: Option<Instant>,
}

/// When the process of one peer is next looked at.
#[derive(Debug)]
pub(in crate::shm) struct Ask {
    pub(in crate::shm) next: Instant,
    pub(in crate::shm) gap: Duration,
    /// It did not listen any more when that was last looked at.
    pub(in crate::shm) missed: bool,
}

impl Ask {
    pub(in crate::shm) fn new() -> Ask {
        Ask { next: Instant::now() + EVERY, gap: EVERY, missed: false }
    }

    pub(in crate::shm) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    pub(in crate::shm) fn asked(&mut self, now: Instant) {
        self.gap = (self.gap * 2).min(SELDOM);
        self.next = now + self.gap;
    }
}

impl Looks {
    pub(in crate::shm) fn new(poller: &Poller) -> io::Result<Looks> {
        let timer = Timer::new(Duration::ZERO)?;
        poller.add(&timer, token::EXECUTED)?;
        Ok(Looks { timer, on: false, rest: None })
    }

    pub(in crate::shm) fn set(&mut self, on: bool) {
        if self.on != on {
            self.on = self.timer.set(if on { EVERY } else { Duration::ZERO }).is_ok() == on;
        }
    }

    pub(in crate::shm) fn taken(&self) {
        self.timer.clear();
    }
}
