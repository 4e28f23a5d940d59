//! Commands that the engine had no room for, by ring and peer: those of one peer keep their order and wait
//! for each other, and those of another peer, and of other rings, for nothing. A ring has at most as many
//! here as it has slots.

use std::collections::{BTreeMap, VecDeque};

use crate::command::{Command, Work};
use crate::layout::ANY;

/// A ring, and a peer of its commands; of receives, whatever they are from, [`ANY`].
pub(crate) type Lane = (usize, u32);

/// What waits for room.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    lanes: BTreeMap<Lane, VecDeque<u64>>,
}

/// The lane of a command of that ring.
pub(crate) fn lane(ring: usize, command: &Command) -> Lane {
    (ring, if matches!(command.work, Work::Recv { .. }) { ANY } else { command.peer })
}

impl Backlog {
    /// Whether a command of that lane waits.
    pub(crate) fn holds(&self, lane: Lane) -> bool {
        !self.lanes.is_empty() && self.lanes.contains_key(&lane)
    }

    /// One more behind those of its lane.
    pub(crate) fn push(&mut self, lane: Lane, ticket: u64) {
        self.lanes.entry(lane).or_default().push_back(ticket);
    }

    /// The lanes in which something waits.
    pub(crate) fn lanes(&self) -> Vec<Lane> {
        self.lanes.keys().copied().collect()
    }

    /// The first of a lane.
    pub(crate) fn first(&self, lane: Lane) -> Option<u64> {
        self.lanes.get(&lane)?.front().copied()
    }

    /// The first of a lane waits no more.
    pub(crate) fn pop(&mut self, lane: Lane) {
        if let Some(tickets) = self.lanes.get_mut(&lane) {
            tickets.pop_front();
            if tickets.is_empty() {
                self.lanes.remove(&lane);
            }
        }
    }
}
