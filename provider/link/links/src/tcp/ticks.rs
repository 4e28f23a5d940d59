//! The timer, which ticks while there is something to wait for that no descriptor shows.

use std::io;
use std::time::{Duration, Instant};

use ipc::{Poller, Timer};

use crate::tcp::watched::token;

/// How often calls and guests are looked after.
pub(super) const TICK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Ticks {
    timer: Timer,
    period: Duration,
    /// When all were looked at last, while the timer ticks.
    looked: Instant,
}

impl Ticks {
    pub(super) fn new(poller: &Poller) -> io::Result<Ticks> {
        let timer = Timer::new(Duration::ZERO)?;
        poller.add(&timer, token::TIMER)?;
        Ok(Ticks { timer, period: Duration::ZERO, looked: Instant::now() })
    }

    /// Whether the timer does not tick.
    #[inline]
    pub(super) fn are_off(&self) -> bool {
        self.period.is_zero()
    }

    /// Whether calls and guests are looked after.
    pub(super) fn are_often(&self) -> bool {
        self.period == TICK
    }

    /// The timer ticks at this period from now on; zero: not at all.
    pub(super) fn set(&mut self, period: Duration) {
        if period != self.period && self.timer.set(period).is_ok() {
            (self.period, self.looked) = (period, Instant::now());
        }
    }

    /// The timer ticks at this period from now on, unless it ticks more often; zero changes nothing.
    pub(super) fn at_least(&mut self, period: Duration) {
        if !period.is_zero() && (self.are_off() || period < self.period) {
            self.set(period);
        }
    }

    /// It has ticked, which is seen.
    pub(super) fn clear(&mut self) {
        self.timer.clear();
    }

    /// All are looked at; how long ago they were the last time.
    pub(super) fn restart(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(std::mem::replace(&mut self.looked, now))
    }
}
