//! A device's use of a registration, as that lists it.

/// Takes memory from a device: when it returns, the device accesses it no more.
pub(super) type Revoke = Box<dyn FnOnce() + Send>;

/// One device's use of a registration.
pub(super) struct Import {
    id: u64,
    /// `None`: a thread calls it.
    revoke: Option<Revoke>,
}

impl Import {
    pub(super) fn new(id: u64, revoke: Revoke) -> Import {
        Import { id, revoke: Some(revoke) }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// No thread revokes it.
    pub(super) fn is_idle(&self) -> bool {
        self.revoke.is_some()
    }

    /// What revokes it, which the caller calls.
    pub(super) fn take(&mut self) -> Option<Revoke> {
        self.revoke.take()
    }
}
