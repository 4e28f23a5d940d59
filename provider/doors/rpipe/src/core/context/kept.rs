//! What remains of ends that are closed.

use std::collections::HashSet;

use crate::core::control::Key;
use crate::{Backend, Region};

#[derive(Debug, Default)]
pub(super) struct Kept {
    /// What writers' ends that are closed had, and their readers use; whether they have messages to get from
    /// there.
    regions: Vec<(Key, Region, bool)>,
    /// Ends that were closed, and whose peers were sent `Close` since.
    refused: HashSet<Key>,
}

impl Kept {
    pub(super) fn keep(&mut self, key: Key, region: Region, has_messages: bool) {
        self.regions.push((key, region, has_messages));
    }

    /// Gives back what no reader wants any more: of this stream, or of this peer.
    pub(super) fn unwanted(&mut self, backend: &mut dyn Backend, is_it: impl Fn(&Key) -> bool) {
        while let Some(at) = self.regions.iter().position(|(key, ..)| is_it(key)) {
            let (_, region, _) = self.regions.swap_remove(at);
            let _ = backend.withdraw(region.id);
        }
    }

    /// Whether messages of closed ends are still to be got from here.
    pub(super) fn some_are_wanted(&self) -> bool {
        self.regions.iter().any(|(_, _, has_messages)| *has_messages)
    }

    /// Whether the peer of a closed end is to be sent `Close`: once.
    pub(super) fn refuse(&mut self, key: Key) -> bool {
        self.refused.insert(key)
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }
}
