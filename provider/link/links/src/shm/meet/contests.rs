//! Channels under the name of a peer that has one, and lives as far as can be seen.

use std::time::{Duration, Instant};

use ipc::{Poller, Timer};
use meet::Refusals;

use crate::shm::meet::guest::GRACE;
use crate::shm::meet::token;
use crate::shm::peer::Inbound;

/// Most channels kept under a name that another peer has.
const MOST: usize = 16;
/// Between two questions which process has that name.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// A channel under a name that a living peer has.
#[derive(Debug)]
pub(in crate::shm) struct Contested {
    pub(in crate::shm) id: u32,
    pub(in crate::shm) inb: Inbound,
    since: Instant,
    next: Instant,
}

impl Contested {
    pub(in crate::shm) fn new(id: u32, inb: Inbound) -> Contested {
        let now = Instant::now();
        Contested { id, inb, since: now, next: now }
    }
}

/// Those that are not decided on yet.
#[derive(Debug, Default)]
pub(in crate::shm) struct Contests {
    list: Vec<Contested>,
    /// Wakes a sleeper to decide on them, while there are any: no descriptor shows when they differ.
    timer: Option<Timer>,
    refused: Refusals,
}

impl Contests {
    /// One more is refused; whether the log has a line.
    pub(in crate::shm) fn refuse(&mut self) -> bool {
        self.refused.is_logged()
    }

    pub(in crate::shm) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[cfg(all(test, not(loom)))]
    pub(in crate::shm) fn len(&self) -> usize {
        self.list.len()
    }

    #[cfg(all(test, not(loom)))]
    pub(in crate::shm) fn has_timer(&self) -> bool {
        self.timer.is_some()
    }

    /// Whether a channel under the name of this peer is there.
    pub(in crate::shm) fn concerns(&self, id: u32) -> bool {
        self.list.iter().any(|c| c.id == id)
    }

    /// Keeps a channel to be decided on later; or hands it back, if it was kept for long, or there are many.
    pub(in crate::shm) fn keep(&mut self, mut channel: Contested) -> Option<Contested> {
        if channel.since.elapsed() >= GRACE || self.list.len() >= MOST {
            return Some(channel);
        }
        channel.next = Instant::now() + ASK_AGAIN;
        self.list.push(channel);
        None
    }

    /// Those for which the time has come.
    pub(in crate::shm) fn take_due(&mut self) -> Vec<Contested> {
        let now = Instant::now();
        let (due, rest) = std::mem::take(&mut self.list).into_iter().partition(|c| c.next <= now);
        self.list = rest;
        due
    }

    /// All channels, at the end.
    pub(in crate::shm) fn take(&mut self) -> impl Iterator<Item = Inbound> + use<> {
        std::mem::take(&mut self.list).into_iter().map(|c| c.inb)
    }

    /// Has a sleeper wake while there are such channels.
    pub(in crate::shm) fn set_timer(&mut self, poller: &Poller) {
        match &self.timer {
            Some(timer) if self.list.is_empty() => {
                poller.remove(timer);
                self.timer = None;
            }
            Some(timer) => timer.clear(),
            None if self.list.is_empty() => {}
            // Without one they are decided on when something else wakes the sleeper.
            None => {
                let timer = Timer::new(ASK_AGAIN).ok();
                self.timer = timer.filter(|fd| poller.add(fd, token::TIMER).is_ok());
            }
        }
    }
}
