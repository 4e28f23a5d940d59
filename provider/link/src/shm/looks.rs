//! When it is asked whether peers are another program by now.

use std::io;
use std::time::{Duration, Instant};

use ipc::{Poller, Timer};

use super::token;

/// From one look to the next.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// The same, at the descriptors of one peer that does not answer: each time twice as long, and no longer than this.
const SELDOM: Duration = Duration::from_secs(8);

/// Wakes sleepers for a look, while there are peers.
#[derive(Debug)]
pub(super) struct Looks {
    timer: Timer,
    on: bool,
    /// Until when descriptors are left alone.
    pub(super) rest: Option<Instant>,
}

/// When the process of one peer is next looked at.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) next: Instant,
    pub(super) gap: Duration,
    /// It did not listen any more when that was last looked at.
    pub(super) missed: bool,
}

impl Ask {
    pub(super) fn new() -> Ask {
        Ask { next: Instant::now() + EVERY, gap: EVERY, missed: false }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    pub(super) fn asked(&mut self, now: Instant) {
        self.gap = (self.gap * 2).min(SELDOM);
        self.next = now + self.gap;
    }
}

impl Looks {
    pub(super) fn new(poller: &Poller) -> io::Result<Looks> {
        let timer = Timer::new(Duration::ZERO)?;
        poller.add(&timer, token::LOOK)?;
        Ok(Looks { timer, on: false, rest: None })
    }

    pub(super) fn set(&mut self, on: bool) {
        if self.on != on {
            self.on = self.timer.set(if on { EVERY } else { Duration::ZERO }).is_ok() == on;
        }
    }

    pub(super) fn taken(&self) {
        self.timer.clear();
    }
}
