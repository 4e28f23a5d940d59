//! How a link is to be from now on.

use crate::budget::Budget;
use crate::rma::Patience;

/// One setting of a link. A link ignores those that do not concern it; none of them is taken back but by
/// another value of the same.
#[derive(Clone, Copy, Debug)]
pub enum Setting<'a> {
    /// [`Event::Begun`](crate::Event::Begun) may come before [`Event::Frame`](crate::Event::Frame) does. A
    /// link that hands out whole frames alone ignores this.
    Early,
    /// [`Link::send`](crate::Link::send) says [`Sent::Kept`](crate::Sent::Kept) where it is so. A link that
    /// has nothing of a frame in this process once it has taken it ignores this.
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
