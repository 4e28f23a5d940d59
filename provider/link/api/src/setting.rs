//! How a link is to be from now on.

use std::time::Duration;

use crate::budget::Budget;

/// One setting of a link. A link ignores those that do not concern it; none of them is taken back but by
/// another value of the same.
#[derive(Clone, Copy, Debug)]
pub enum Setting<'a> {
    /// [`Event::Begun`](crate::Event::Begun) may come before [`Event::Frame`](crate::Event::Frame) does. A
    /// link that hands out whole frames alone ignores this.
    Early,
    /// [`FrameLink::send`](crate::FrameLink::send) says [`Sent::Kept`](crate::Sent::Kept) where it is so. A
    /// link that has nothing of a frame in this process once it has taken it ignores this.
    Kept,
    /// What the link keeps of frames that are not whole is counted here. Where that is used up, frames stay
    /// where they are. A link that keeps no parts of frames in memory of this process, or a fixed amount,
    /// ignores this.
    Budget(&'a Budget),
    /// Whether peers of this host may come by this link, as they may at first: if not, another link serves
    /// them, and a caller of this host, or under a name of this host, is refused before anything of it is
    /// handed out. A link whose callers are never of this host ignores this; what holds the links refuses
    /// such peers as well.
    ServeHost(bool),
    /// How long the calls that take memory back may wait, each by itself, for a peer that is inside an
    /// access.
    Patience(Patience),
    /// Memory of devices goes in frames alone. To be set before any peer is known.
    StageDevices,
}

/// How long a call waits for a peer that is inside an access of memory which is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A second; then the log says which peer.
    Second,
    /// Not at all: the caller calls again.
    Retried,
    /// Not at all, and the caller does not call again: the log says which peer.
    Final,
}

impl Patience {
    /// The longest time.
    pub fn time(self) -> Duration {
        match self {
            Patience::Second => Duration::from_secs(1),
            Patience::Retried | Patience::Final => Duration::ZERO,
        }
    }
}
