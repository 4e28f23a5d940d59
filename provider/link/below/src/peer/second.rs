//! What two ends say of further connections.

use std::collections::VecDeque;

/// Further connections with a peer, besides the first.
#[derive(Debug, Default)]
pub(crate) struct Second {
    /// Both ends can have a second one; and rails.
    may: bool,
    may_rails: bool,
    /// What is to be announced of them.
    due: VecDeque<Vec<u8>>,
}

impl Second {
    pub(crate) fn set_may(&mut self, may: bool, may_rails: bool) {
        (self.may, self.may_rails) = (may, may && may_rails);
    }

    /// Whether both ends can have a second one.
    #[inline]
    pub(crate) fn may(&self) -> bool {
        self.may
    }

    /// Whether both ends can have rails.
    pub(crate) fn may_rails(&self) -> bool {
        self.may_rails
    }

    /// This is to be announced.
    pub(crate) fn owe(&mut self, address: Vec<u8>) {
        self.due.push_back(address);
    }

    /// What is to be announced next, which is announced now.
    pub(crate) fn take_due(&mut self) -> Option<Vec<u8>> {
        self.due.pop_front()
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}
