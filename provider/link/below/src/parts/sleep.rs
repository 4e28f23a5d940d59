//! Sleeping until a descriptor is readable, and the timer for what no descriptor reports.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::Duration;

use ipc::{Bell, Poller, Timer};

use crate::fds::{Fd, is_readable};

/// How often peers that are met, or lost, are tended.
const TICK: Duration = Duration::from_millis(50);
/// How often a provider without a descriptor is polled while this side sleeps: at first, and after so many
/// times in vain.
const POLL: Duration = Duration::from_millis(2);
const IDLE_POLL: Duration = Duration::from_millis(10);
const IDLE: u32 = 50;
/// After so many sleeps in a row that the fabric's descriptor kept from being any, with nothing there, it is
/// not watched.
const RESTLESS: u32 = 50;

/// The descriptors that end a sleep, and whether the endpoint sleeps.
#[derive(Debug)]
pub(crate) struct Sleep {
    poller: Poller,
    timer: Timer,
    period: Duration,
    bell: Bell,
    armed: bool,
    /// A sleeper was woken for what the connections have reported.
    nudged: bool,
    /// How often a sleep has ended with nothing from the fabric.
    vain: u32,
    /// Of these, how many in a row began with its descriptor readable.
    readable: u32,
    /// There is a fabric without a descriptor that would be of use.
    unseen: bool,
    /// Its descriptor, if that is of no use any more, until that was reported.
    worn: Cell<Option<RawFd>>,
}

impl Sleep {
    /// `unseen`: there is a fabric without a descriptor that would be of use.
    pub(crate) fn new(unseen: bool) -> io::Result<Sleep> {
        let (poller, timer, bell) = (Poller::new()?, Timer::new(Duration::ZERO)?, Bell::new()?);
        let period = Duration::ZERO;
        let (armed, nudged, vain, readable, worn) = (false, false, 0, 0, Cell::default());
        Ok(Sleep { poller, timer, period, bell, armed, nudged, vain, readable, unseen, worn })
    }

    /// The descriptor that is readable when any of those that are watched is.
    pub(crate) fn fd(&self) -> RawFd {
        self.poller.fd()
    }

    /// The descriptors of its own.
    pub(crate) fn fds(&self) -> [RawFd; 2] {
        [self.timer.as_raw_fd(), self.bell.as_raw_fd()]
    }

    pub(crate) fn watch(&self, fd: RawFd) -> io::Result<()> {
        self.poller.add(&Fd(fd), 0)
    }

    /// A descriptor of the fabric may be readable for good.
    pub(crate) fn unwatch(&mut self, fd: RawFd) {
        self.poller.remove(&Fd(fd));
        self.worn.set(Some(fd));
    }

    /// A descriptor that is not watched any more, which is reported once.
    pub(crate) fn take_worn(&self) -> Option<RawFd> {
        self.worn.take()
    }

    /// Whether there is a fabric without a descriptor that would be of use.
    #[inline]
    pub(crate) fn is_unseen(&self) -> bool {
        self.unseen
    }

    pub(crate) fn set_unseen(&mut self) {
        self.unseen = true;
    }

    /// A poll disarms. Whether it was armed.
    #[inline]
    pub(crate) fn disarm(&mut self) -> bool {
        let armed = std::mem::take(&mut self.armed);
        self.bell.clear();
        armed
    }

    pub(crate) fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
    }

    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// The connections have reported something, which they do once, if `nudged`; whether they have so far.
    pub(crate) fn nudge(&mut self, nudged: bool) -> bool {
        self.nudged |= nudged;
        self.nudged
    }

    /// Whether the connections have reported something, which is to keep one sleep from beginning.
    pub(crate) fn take_nudge(&mut self) -> bool {
        std::mem::take(&mut self.nudged)
    }

    /// Wakes the sleeper.
    pub(crate) fn wake(&mut self) {
        self.armed = false;
        self.bell.notify();
    }

    /// Whether the last sleep has ended with nothing from the fabric.
    #[inline]
    pub(crate) fn is_vain(&self) -> bool {
        self.vain > 0
    }

    /// A sleep is over: whether something has arrived by the fabric. Returns whether the period changes.
    pub(crate) fn woke(&mut self, found: bool) -> bool {
        self.timer.clear();
        let idle = self.vain >= IDLE;
        self.vain = if found { 0 } else { self.vain.saturating_add(1) };
        idle != (self.vain >= IDLE)
    }

    /// A sleep begins, for which the fabric has said that it has nothing, with this descriptor. Whether that
    /// is readable all the same, time and again with nothing there.
    pub(crate) fn finds_worn(&mut self, fd: Option<RawFd>) -> bool {
        let Some(fd) = fd.filter(|_| self.vain > 0) else {
            self.readable = 0;
            return false;
        };
        self.readable = if is_readable(fd) { self.readable + 1 } else { 0 };
        self.readable >= RESTLESS
    }

    /// Sets the timer: `polls` if the fabric is to be polled, `tends` if peers are to be tended; else to how
    /// often idle ones are looked for, if they are.
    pub(crate) fn set_timer(&mut self, polls: bool, tends: impl FnOnce() -> bool, idle: Option<Duration>) {
        let period = if polls {
            if self.vain < IDLE { POLL } else { IDLE_POLL }
        } else if tends() {
            TICK
        } else {
            idle.unwrap_or(Duration::ZERO)
        };
        if period != self.period && self.timer.set(period).is_ok() {
            self.period = period;
        }
    }
}
