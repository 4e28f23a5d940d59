//! Sleeping until a descriptor is readable.

use std::io;
use std::os::fd::RawFd;

use ipc::{Bell, Poller};

use crate::tcp::watched::token;

/// What a sleeper waits for, and whether there may be one.
#[derive(Debug)]
pub(super) struct Sleep {
    poller: Poller,
    /// For what is found where no one polls.
    bell: Bell,
    armed: bool,
    /// It was armed before the look that is under way, which something may have woken a sleeper for.
    slept: bool,
}

impl Sleep {
    pub(super) fn new() -> io::Result<Sleep> {
        let (poller, bell) = (Poller::new()?, Bell::new()?);
        poller.add(&bell, token::BELL)?;
        Ok(Sleep { poller, bell, armed: false, slept: false })
    }

    #[inline(always)]
    pub(super) fn poller(&self) -> &Poller {
        &self.poller
    }

    pub(super) fn fd(&self) -> RawFd {
        self.poller.fd()
    }

    /// The next poll is the one that disarms; `armed`: until then there is nothing to poll for.
    pub(super) fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// There is something to poll for that no descriptor shows.
    #[inline]
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }

    /// A poll begins, and has heard the bell.
    #[inline]
    pub(super) fn begin_poll(&mut self) {
        self.begin();
        self.bell.clear();
    }

    /// A look begins; whether it was armed.
    #[inline]
    pub(super) fn begin(&mut self) -> bool {
        self.slept = std::mem::take(&mut self.armed);
        self.slept
    }

    /// Whether it was armed before the look that is under way, which something may have woken a sleeper for.
    #[inline]
    pub(super) fn has_slept(&self) -> bool {
        self.slept
    }

    /// Wakes a sleeper.
    pub(super) fn wake(&mut self) {
        self.bell.notify();
    }
}
