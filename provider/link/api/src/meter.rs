//! What is counted of an endpoint's traffic where a report is requested.

use wire::Addr;

/// How the bytes of an operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// With the frame that announces them.
    Eager,
    /// One side copied them in a call ([`crate::RmaLink::access`]).
    Direct,
    /// Both sides copied pieces of them.
    Cooperative,
    /// A device or a network adapter copied them ([`crate::RmaLink::start`]).
    Device,
    /// In frames of their own, since no side could reach the other's memory.
    Frames,
    /// The processor, in memory that both sides have mapped.
    Mapped,
}

impl How {
    /// All, in the order of their numbers.
    pub const ALL: [How; 6] =
        [How::Eager, How::Direct, How::Cooperative, How::Device, How::Frames, How::Mapped];
}

/// Which side began an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// This one: a message that was sent, an access to a peer's memory.
    Ours,
    /// The peer: a message that has come, an access that this side had a part in.
    Theirs,
}

/// Something that a path turned out not to be able to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fallback {
    /// The peer's memory cannot be accessed in the call, ever.
    Peer,
    /// This piece of memory cannot.
    Memory,
}

/// Counts what an endpoint does.
pub trait Meter: std::fmt::Debug + Send {
    /// The way to a peer: the link's name, and words for people. Called before the first count of it, and
    /// when it changes.
    fn path(&mut self, peer: &Addr, link: &'static str, words: String);

    /// An operation with this peer is done, of so many bytes. `false`: nothing is known of the peer yet, and
    /// nothing was counted: [`Meter::path`] is to come first.
    fn count(&mut self, peer: &Addr, side: Side, how: How, bytes: usize) -> bool;

    /// Bytes have to go another way than the path promised.
    fn fell_back(&mut self, peer: &Addr, why: Fallback);
}
