//! Operations that are not over, as they are listed for a person.

use wire::Addr;

/// What an operation is that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingKind {
    /// A posted receive that no message has matched.
    Receive,
    /// A message that no posted receive has matched.
    Unexpected,
    /// A matched message whose bytes are on their way.
    Arriving,
    /// Started here.
    Send,
    Read,
    Write,
    Atomic,
    /// Started by a peer: it reads, or writes, memory of this process.
    ServedRead,
    ServedWrite,
}

impl PendingKind {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            PendingKind::Receive => "receive",
            PendingKind::Unexpected => "unexpected",
            PendingKind::Arriving => "arriving",
            PendingKind::Send => "send",
            PendingKind::Read => "read",
            PendingKind::Write => "write",
            PendingKind::Atomic => "atomic",
            PendingKind::ServedRead => "served read",
            PendingKind::ServedWrite => "served write",
        }
    }
}

/// An operation that is not over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub kind: PendingKind,
    /// What distinguishes it from others of its kind in the domain, for as long as it is pending.
    pub name: (u32, u64),
    /// The endpoint of this process; `None`: any of those that share a receive context.
    pub endpoint: Option<Addr>,
    /// `None`: a receive from any peer.
    pub peer: Option<Addr>,
    /// The tag, and the bits of it that do not count.
    pub tag: Option<(u64, u64)>,
    /// Bytes, and how many of them have moved.
    pub len: usize,
    pub done: usize,
    /// What it waits for, where that is known.
    pub state: &'static str,
}
