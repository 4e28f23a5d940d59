//! What there is of rails: the ports, how far each is with each peer, and what is to be said and reported.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::RawFd;

use below::{Dest, Did, Keys};
use ipc::Poller;

use super::stages::Stages;

/// The number of a rail in a key, from 1, above the bit of second queue pairs.
const NUMBER: u32 = 33;

/// The key that a registration has, by the number of its rail from 0.
pub(super) fn key_of(at: usize, rkey: u32) -> u64 {
    (at as u64 + 1) << NUMBER | u64::from(rkey)
}

/// Which rail a key is of, from 1.
pub(crate) fn rail_of(key: u64) -> Option<usize> {
    let number = key >> NUMBER;
    (number > 0).then_some(usize::try_from(number).unwrap_or(usize::MAX))
}

/// The number of the first queue pair of a peer.
pub(crate) fn first_of(to: Dest) -> u32 {
    to.0 as u32
}

/// A port besides the first.
#[derive(Debug)]
pub(super) struct Rail<P> {
    pub(super) port: P,
    pub(super) stages: Stages,
    /// Completions that its sends may have, all in all.
    pub(super) all: usize,
    /// Why its device is of no use any more: no peer uses it, and it is not waited for.
    pub(super) is_off: Option<String>,
}

/// Memory that a peer accesses in parts: its registrations, each with its rail, and their keys.
#[derive(Debug, Default)]
pub(super) struct Striped {
    pub(super) registrations: Vec<(usize, u64)>,
    pub(super) keys: Keys,
}

/// The rails of a port, which is a `P` as each of them is.
#[derive(Debug)]
pub(crate) struct Rails<P> {
    pub(super) all: Vec<Rail<P>>,
    /// What is to be said, by the number of the peer's first queue pair.
    pub(super) said: HashMap<u32, VecDeque<Vec<u8>>>,
    /// By the lease, and the number of the peer's first queue pair.
    pub(super) striped: BTreeMap<(u64, u32), Striped>,
    /// What the first port is to do: to report the end of an access, or to end a connection.
    pub(super) did: VecDeque<Found>,
    /// All completion channels, the first port's among them; and what reports events of all devices.
    pub(super) waits: Option<(Poller, Poller)>,
}

/// What has happened on a rail that is the first port's to see to.
#[derive(Debug)]
pub(crate) enum Found {
    /// An access is over.
    Did(Did),
    /// The connection of this first queue pair is of no use, and why.
    Failed(u32, String),
    /// Something is to be said to its peer.
    Says(u32),
}

impl<P> Default for Rails<P> {
    fn default() -> Self {
        Rails {
            all: Vec::new(),
            said: HashMap::new(),
            striped: BTreeMap::new(),
            did: VecDeque::new(),
            waits: None,
        }
    }
}

impl<P> Rails<P> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Descriptors of all ports: of completions, and of events.
    pub(crate) fn waits(&self) -> Option<(RawFd, RawFd)> {
        self.waits.as_ref().map(|(completions, events)| (completions.fd(), events.fd()))
    }

    pub(super) fn say(&mut self, first: u32, rail: usize, what: &[u8]) {
        let mut said = vec![rail as u8 + 1];
        said.extend(what);
        self.said.entry(first).or_default().push_back(said);
    }

    /// What is to be said to a peer next.
    pub(crate) fn next_said(&mut self, first: u32) -> Option<Vec<u8>> {
        if self.said.is_empty() {
            return None;
        }
        let queue = self.said.get_mut(&first)?;
        let said = queue.pop_front();
        if queue.is_empty() {
            self.said.remove(&first);
        }
        said
    }

    /// Whether the peer has yet to say something.
    pub(crate) fn is_awaited(&self, first: u32) -> bool {
        self.all.iter().any(|rail| rail.stages.is_awaited(first))
    }

    /// What the first port is to see to next.
    pub(crate) fn next_found(&mut self) -> Option<Found> {
        self.did.pop_front()
    }
}
