//! How much peers may take up here.

/// Operations under way to one peer, unless the door knows better; and the most it may say.
pub(super) const DEPTH: u32 = 4096;
pub(super) const DEPTH_MOST: u32 = 1 << 16;

/// Beyond twice what waiting messages may take up: offers of a paused peer, and what was in its
/// ring before.
pub(super) const SLACK: usize = 64 << 20;
/// Answers that a peer does not take, in bytes: from how many on they are read when they are sent, and
/// from how many on there is no good reason for them.
pub(super) const OWED_MUCH: usize = 1 << 20;
pub(super) const OWED_MOST: usize = 1 << 30;
/// Answers that a peer may let lie where those of all peers take up what they may.
pub(super) const OWED_LITTLE: usize = 64 << 10;
/// Requests in all from which on it is worth counting, and a peer's, for which there is no good reason.
pub(super) const MANY: usize = 1 << 18;
pub(super) const MANY_OF_ONE: usize = 2 * DEPTH_MOST as usize;

/// Bytes sent, with so many for each message, after which it is time to look whether a peer would have this side
/// pause: an application that only sends need never make progress while its messages are taken.
pub(super) const MOST_SINCE_PROGRESS: usize = 1 << 20;
pub(super) const MESSAGE_COST: usize = 64;

/// What a frame takes up that found no room.
pub(super) fn cost(frame: &[u8]) -> usize {
    frame.len() + 64
}

/// How often something was done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Complaints(u32);

impl Complaints {
    /// Once more: how often that is by now, if it is to have a line.
    pub(super) fn count(&mut self, first: u32) -> Option<u32> {
        self.0 = self.0.saturating_add(1);
        (self.0 <= first || self.0.is_power_of_two()).then_some(self.0)
    }
}
