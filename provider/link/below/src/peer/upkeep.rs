//! What is to be done for a peer later, and the lists that it is in.

/// What is to be done for a peer later, and the lists of [`Peers`](crate::parts::peers::Peers) that it is in.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// The message that there is room again found no room itself.
    room_due: bool,
    /// A send has just found no room.
    full: bool,
    /// A send found no way, or no room.
    wants: bool,
    /// It is among the peers that are restless.
    listed: bool,
}

impl Upkeep {
    /// Of the same peer at another time: the lists that it is in.
    pub(crate) fn carry(&self) -> Upkeep {
        Upkeep { room_due: false, full: false, wants: self.wants, listed: self.listed }
    }

    /// Whether there is something to do.
    pub(crate) fn is_due(&self) -> bool {
        self.room_due || self.full
    }

    /// Whether the message that there is room again is still to be sent.
    pub(crate) fn set_room_due(&mut self, due: bool) {
        self.room_due = due;
    }

    /// Whether the message that there is room again was still to be sent.
    pub(crate) fn take_room_due(&mut self) -> bool {
        std::mem::take(&mut self.room_due)
    }

    /// Whether a send has just found no room.
    pub(crate) fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Whether a send has just found no room.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// A send found no way, or no room; `false` if one had before.
    pub(crate) fn want(&mut self) -> bool {
        !std::mem::replace(&mut self.wants, true)
    }

    /// What a send found lacking is there now, if `served`; whether a send still waits for it.
    pub(crate) fn serve(&mut self, served: bool) -> bool {
        self.wants &= !served;
        self.wants
    }

    /// It is among the peers that are restless; `false` if it was before.
    pub(crate) fn list(&mut self) -> bool {
        !std::mem::replace(&mut self.listed, true)
    }

    /// Whether it is among the peers that are restless.
    pub(crate) fn set_listed(&mut self, listed: bool) {
        self.listed = listed;
    }
}
