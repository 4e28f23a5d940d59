//! Peers that receives wait for, and that have no channel.
//!
//! The end of a peer that was never met is not seen. So a peer that a receive names is looked for after
//! a while, in the way in which a send would: then there is a channel, the end of which is seen, or the peer
//! is given up after the time that a send would take.

use std::mem;
use std::time::{Duration, Instant};

use ipc::{Poller, Timer};

use crate::shm::meet::token;

/// How long such a peer is left alone: most call by then.
pub(in crate::shm) const GRACE: Duration = Duration::from_millis(500);

/// Those that are waited for.
#[derive(Debug, Default)]
pub(in crate::shm) struct Expected {
    peers: Vec<(u32, Instant)>,
    /// Wakes a sleeper now and then, while there are any.
    timer: Option<Timer>,
}

impl Expected {
    pub(in crate::shm) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(in crate::shm) fn forget(&mut self, id: u32) {
        self.peers.retain(|(i, _)| *i != id);
    }

    /// One more; `poller` watches the timer.
    pub(in crate::shm) fn add(&mut self, id: u32, poller: &Poller) {
        if self.peers.iter().any(|(i, _)| *i == id) {
            return;
        }
        if self.timer.is_none() {
            // Without one a sleeper is woken later.
            self.timer = Timer::new(GRACE).ok().filter(|fd| poller.add(fd, token::TIMER).is_ok());
        }
        self.peers.push((id, Instant::now()));
    }

    /// Those that are waited for, and since when; taken out, to be put back.
    pub(in crate::shm) fn take(&mut self) -> Vec<(u32, Instant)> {
        if let Some(timer) = &self.timer {
            timer.clear();
        }
        mem::take(&mut self.peers)
    }

    /// Puts back those that are waited for still.
    pub(in crate::shm) fn put_back(&mut self, mut peers: Vec<(u32, Instant)>, poller: &Poller) {
        self.peers.append(&mut peers);
        if self.is_empty() {
            if let Some(timer) = self.timer.take() {
                poller.remove(&timer);
            }
        }
    }
}
