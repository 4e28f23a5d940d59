//! How much peers may take up here.

use link_api::{Budget, Reservation};

/// Operations under way to one peer, unless the provider knows better; and the most it may say.
const DEPTH: u32 = 4096;
const DEPTH_MOST: u32 = 1 << 16;

/// Beyond twice what waiting messages may take up: offers of a paused peer, and what was in its
/// ring before.
pub(in crate::endpoint) const SLACK: usize = 64 << 20;
/// Bytes of one peer's unexpected messages from which on it runs ahead, and is asked to offer long messages
/// for a while: those that travel inside frames although they are longer than those that always do. A receive
/// that is posted later copies such a message twice, and by memory that is new each time; one that was
/// offered is copied once. So many messages are a while.
pub(in crate::endpoint) const AHEAD: usize = 256 << 10;
pub(in crate::endpoint) const A_WHILE: u16 = 512;
/// Answers that a peer does not take, in bytes: from how many on they are read when they are sent, and
/// from how many on there is no good reason for them.
pub(in crate::endpoint) const OWED_MUCH: usize = 1 << 20;
const OWED_MOST: usize = 1 << 30;
/// Answers that a peer may let lie where those of all peers take up what they may.
const OWED_LITTLE: usize = 64 << 10;
/// Requests in all from which on it is worth counting, and a peer's, for which there is no good reason.
const MANY: usize = 1 << 18;
pub(in crate::endpoint) const MANY_OF_ONE: usize = 2 * DEPTH_MOST as usize;

/// Bytes sent, with so many for each message, after which it is time to look whether a peer would have this
/// side pause: an application that only sends need never make progress while its messages are taken.
pub(in crate::endpoint) const MOST_SINCE_PROGRESS: usize = 1 << 20;
pub(in crate::endpoint) const MESSAGE_COST: usize = 64;

/// What a frame takes up that found no room.
pub(in crate::endpoint) fn cost(frame: &[u8]) -> usize {
    frame.len() + 64
}

/// What all peers together take up, and how many of each thing there may be.
#[derive(Debug)]
pub(in crate::endpoint) struct Quota {
    /// Operations that may be under way to one peer.
    depth: u32,
    /// How many requests there may be before they are counted by peer.
    many: usize,
    /// What answers take up that found no room, of all peers.
    owed: Reservation,
    /// What peers did wrong.
    complaints: Complaints,
}

impl Quota {
    pub(in crate::endpoint) fn new(budget: &Budget) -> Quota {
        Quota { depth: DEPTH, many: MANY, owed: budget.share(), complaints: Complaints::default() }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn depth(&self) -> u32 {
        self.depth
    }

    pub(in crate::endpoint) fn set_depth(&mut self, depth: usize) {
        self.depth = u32::try_from(depth).unwrap_or(u32::MAX).clamp(1, DEPTH_MOST);
    }

    /// Whether so many requests are to be counted by peer.
    #[inline(always)]
    pub(in crate::endpoint) fn is_time_to_count(&self, requests: usize) -> bool {
        requests > self.many
    }

    /// So many requests were counted.
    pub(in crate::endpoint) fn counted(&mut self, requests: usize) {
        self.many = MANY.max(2 * requests);
    }

    /// So much more is owed; the most that may be owed to one peer, and whether what is owed to all is within
    /// its limit.
    pub(in crate::endpoint) fn owe(&mut self, bytes: usize) -> (usize, bool) {
        let is_room = self.owed.add(bytes);
        (if is_room { OWED_MOST } else { OWED_LITTLE }, is_room)
    }

    pub(in crate::endpoint) fn pay(&mut self, bytes: usize) {
        self.owed.sub(bytes);
    }

    /// A peer did something wrong; whether the log has a line.
    pub(in crate::endpoint) fn complain(&mut self, lines: u32) -> bool {
        self.complaints.count(lines).is_some()
    }
}

/// How often something was done.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::endpoint) struct Complaints(u32);

impl Complaints {
    /// Once more: how often that is by now, if it is to have a line.
    pub(in crate::endpoint) fn count(&mut self, first: u32) -> Option<u32> {
        self.0 = self.0.saturating_add(1);
        (self.0 <= first || self.0.is_power_of_two()).then_some(self.0)
    }
}
