//! Peers that have ended, whose last frames are still to be read.

use std::collections::VecDeque;

use crate::shm::pace::REST;

/// Those peers, the one whose turn it is first.
#[derive(Debug, Default)]
pub(super) struct Ends {
    dying: VecDeque<u32>,
    /// So many polls are for peers that live, before one for these.
    others_first: u32,
}

impl Ends {
    pub(super) fn is_empty(&self) -> bool {
        self.dying.is_empty()
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.dying.len()
    }

    pub(super) fn add(&mut self, id: u32) {
        self.dying.push_back(id);
    }

    /// The one whose turn it is in this poll.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u32> {
        let id = *self.dying.front()?;
        if self.others_first > 0 {
            self.others_first -= 1;
            return None;
        }
        Some(id)
    }

    /// The next one has its turn.
    pub(super) fn rotate(&mut self) {
        self.dying.rotate_left(1);
    }

    /// Nothing more comes of the one whose turn it is.
    pub(super) fn remove_first(&mut self) {
        self.dying.pop_front();
    }

    /// A frame that this one has left was put back, as there is no memory for it: others have their turn
    /// before it is found again.
    #[cold]
    pub(super) fn pass(&mut self, id: u32) {
        if self.dying.front() == Some(&id) {
            self.dying.rotate_left(1);
            self.others_first = REST;
        }
    }
}
