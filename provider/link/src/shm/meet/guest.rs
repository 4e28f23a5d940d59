//! Connections that are no channels yet.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Most connections that are kept without a hello.
const MOST: usize = 64;

/// How long one is kept, at least.
pub(in crate::shm) const GRACE: Duration = Duration::from_secs(3);

/// A connection whose hello is still to come, or waits for descriptors or memory.
#[derive(Debug)]
pub(in crate::shm) struct Guest {
    pub(in crate::shm) sock: OwnedFd,
    pub(in crate::shm) pid: i32,
    since: Instant,
    /// It has said hello, and waits for this side.
    pub(in crate::shm) kept: bool,
    /// What it said, if it was received.
    pub(in crate::shm) said: Option<(Vec<u8>, Option<OwnedFd>)>,
}

impl Guest {
    pub(in crate::shm) fn new(sock: OwnedFd, pid: i32) -> Guest {
        Guest { sock, pid, since: Instant::now(), kept: false, said: None }
    }

    pub(in crate::shm) fn waits(&self) -> Duration {
        self.since.elapsed()
    }

    #[cfg(all(test, not(loom)))]
    pub(in crate::shm) fn age(&mut self, by: Duration) {
        self.since -= by;
    }
}

/// Those connections, each at a place of its own as long as it is one.
#[derive(Debug, Default)]
pub(in crate::shm) struct Guests(Vec<Option<Guest>>);

impl Guests {
    pub(in crate::shm) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::shm) fn places(&self) -> std::ops::Range<usize> {
        0..self.0.len()
    }

    pub(in crate::shm) fn iter(&self) -> impl Iterator<Item = &Guest> {
        self.0.iter().flatten()
    }

    #[cfg(all(test, not(loom)))]
    pub(in crate::shm) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Guest> {
        self.0.iter_mut().flatten()
    }

    pub(in crate::shm) fn get(&self, place: usize) -> Option<&Guest> {
        self.0.get(place)?.as_ref()
    }

    /// Takes out the one at this place.
    pub(in crate::shm) fn take(&mut self, place: usize) -> Option<Guest> {
        self.0.get_mut(place)?.take()
    }

    /// Takes out all of them.
    pub(in crate::shm) fn take_all(&mut self) -> impl Iterator<Item = Guest> + use<> {
        std::mem::take(&mut self.0).into_iter().flatten()
    }

    /// Takes out the oldest that has said nothing, if there are as many as are kept.
    pub(in crate::shm) fn take_surplus(&mut self) -> Option<Guest> {
        if self.iter().count() < MOST {
            return None;
        }
        let silent = |g: &&mut Option<Guest>| g.as_ref().is_some_and(|g| !g.kept);
        self.0.iter_mut().filter(silent).min_by_key(|g| g.as_ref().map(|g| g.since)).and_then(Option::take)
    }

    /// A place that is free.
    pub(in crate::shm) fn free_place(&mut self) -> usize {
        self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        })
    }

    pub(in crate::shm) fn put(&mut self, place: usize, guest: Guest) {
        self.0[place] = Some(guest);
    }

    /// Gives up the places behind the last guest.
    pub(in crate::shm) fn trim(&mut self) {
        let used = self.0.iter().rposition(Option::is_some).map_or(0, |at| at + 1);
        self.0.truncate(used);
    }
}
