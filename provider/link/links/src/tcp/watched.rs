//! The descriptors that an endpoint watches.

/// Numbers of descriptors.
pub(super) mod token {
    use link_api::PeerId;

    pub(crate) const LISTENER: u64 = 0;
    pub(crate) const TIMER: u64 = 1;
    pub(crate) const BELL: u64 = 2;
    pub(crate) const FURTHER: u64 = 3;
    pub(crate) const GUEST: u64 = 1;
    pub(crate) const CALL: u64 = 2;
    pub(crate) const CHANNEL: u64 = 3;

    /// Behind those of rails.
    pub(crate) const PROMISE: u64 = CHANNEL + wire::session::MOST_RAILS as u64;

    pub(crate) fn guest(at: usize) -> u64 {
        GUEST << 32 | at as u64
    }

    pub(crate) fn promise(at: usize) -> u64 {
        PROMISE << 32 | at as u64
    }

    pub(crate) fn call(peer: PeerId) -> u64 {
        CALL << 32 | u64::from(peer.0)
    }

    /// The rail of that number, from 1 on.
    pub(crate) fn rail(peer: PeerId, number: u8) -> u64 {
        (CHANNEL + u64::from(number)) << 32 | u64::from(peer.0)
    }

    pub(crate) fn channel(peer: PeerId) -> u64 {
        CHANNEL << 32 | u64::from(peer.0)
    }
}
