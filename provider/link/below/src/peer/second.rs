//! What two ends say of a second connection.

/// A second connection with a peer, besides the first.
#[derive(Debug, Default)]
pub(crate) struct Second {
    /// Both ends can have one.
    may: bool,
    /// What is to be announced of it.
    due: Option<Vec<u8>>,
    /// It was announced, and the peer has said nothing of its own yet.
    awaits_peer: bool,
}

impl Second {
    pub(crate) fn set_may(&mut self, may: bool) {
        self.may = may;
    }

    /// Whether both ends can have one.
    #[inline]
    pub(crate) fn may(&self) -> bool {
        self.may
    }

    /// This is to be announced, and the peer says something of its own then, if it has not.
    pub(crate) fn owe(&mut self, address: Vec<u8>) {
        (self.due, self.awaits_peer) = (Some(address), true);
    }

    /// What is to be announced, which is announced now.
    pub(crate) fn take_due(&mut self) -> Option<Vec<u8>> {
        self.due.take()
    }

    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// The peer has said something of its own.
    pub(crate) fn hear(&mut self) {
        self.awaits_peer = false;
    }

    /// Whether something is to be said, or heard.
    pub(crate) fn is_under_way(&self) -> bool {
        self.is_due() || self.awaits_peer
    }
}
