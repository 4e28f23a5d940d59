use std::fmt;

use hmem::Span;
use wire::RmaSeg;

/// An application's address of a peer: its index in the address vector.
pub type FiAddr = u64;

/// No peer in particular, or one the address vector does not know.
pub const ADDR_UNSPEC: FiAddr = u64::MAX;

/// What the application handed in with an operation and gets back with its completion. The engine
/// never looks into it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Ctx(pub usize);

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub(crate) u32);
        impl $name {
            pub(crate) fn at(self) -> usize { self.0 as usize }
        }
    )*};
}

ids! {
    /// An endpoint of a domain.
    EpId;
    /// A receive context: what receives are posted to. Every endpoint has its own, or a shared one.
    RxId;
    /// A completion queue of a domain.
    CqId;
    /// A counter of a domain.
    CntrId;
    /// An address vector of a domain.
    AvId;
}

/// A send that is being cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancelling(pub(crate) u64);

bitflags::bitflags! {
    /// What is wanted of one operation. The door has already merged the endpoint's defaults in.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpFlags: u32 {
        /// Write a queue entry on success (errors are always written).
        const COMPLETION = 1 << 0;
        /// The buffer may be reused when the call returns.
        const INJECT = 1 << 1;
        /// Complete once the bytes are where the target's application finds them.
        const DELIVERY = 1 << 2;
        /// Start only when everything before it, to the same peer, has completed.
        const FENCE = 1 << 3;
        /// The receive buffer takes messages until too little of it is left.
        const MULTI_RECV = 1 << 4;
        /// Of a receive of a shared context, in place of `COMPLETION`: the endpoint that the message comes to
        /// decides ([`crate::Domain::ep_write_every_receive`]).
        const AS_BOUND = 1 << 5;
    }
}

bitflags::bitflags! {
    /// What a completion is of.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct What: u32 {
        /// Message without a tag.
        const MSG = 1 << 0;
        /// Tagged message.
        const TAGGED = 1 << 1;
        /// RMA.
        const RMA = 1 << 2;
        /// Atomic.
        const ATOMIC = 1 << 3;
        /// The local side sent.
        const SEND = 1 << 4;
        /// The local side received.
        const RECV = 1 << 5;
        /// Initiated here, reads the peer's memory.
        const READ = 1 << 6;
        /// Initiated here, writes the peer's memory.
        const WRITE = 1 << 7;
        /// A peer read memory here.
        const REMOTE_READ = 1 << 8;
        /// A peer wrote memory here.
        const REMOTE_WRITE = 1 << 9;
        /// `data` is remote CQ data.
        const REMOTE_CQ_DATA = 1 << 10;
        /// The multi-receive buffer is given back with this entry.
        const MULTI_RECV = 1 << 11;
        /// The message was claimed by a peek.
        const CLAIM = 1 << 12;
    }
}

/// Why an operation failed, or was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Not now: progress, then try again.
    Again,
    /// An argument is out of range or does not fit the object.
    Invalid,
    /// The address is not in the address vector.
    NoAddr,
    /// The buffer or the resource is too small for what was asked.
    TooBig,
    /// The object is still in use.
    Busy,
    /// The message was longer than the buffer.
    Truncated,
    /// Cancelled by the application.
    Cancelled,
    /// No such message (peek).
    NoMessage,
    /// Nothing listens at the peer's address.
    Refused,
    /// The peer ended or closed.
    Reset,
    /// The peer is on a host no link goes to.
    Unreachable,
    /// The peer belongs to another user or speaks another version.
    Denied,
    /// There are no descriptors or no memory to meet the peer with.
    Exhausted,
    /// The target knows no such key.
    BadKey,
    /// The registration does not allow it.
    Access,
    /// Outside the registration.
    Range,
    /// The peer cannot do this.
    Unsupported,
    /// The bytes could not be moved.
    Io,
    /// The target's registered memory is not mapped.
    Fault,
    /// A key is taken.
    KeyInUse,
    /// Nothing of that name or number.
    NotFound,
    /// The completion queue lost an entry.
    Overrun,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Again => "no room now; make progress and try again",
            Error::Invalid => "an argument is out of range for this object",
            Error::NoAddr => "the address is not in the bound address vector; insert it first",
            Error::TooBig => "longer than this object allows; see the limits in its attributes",
            Error::Busy => "still in use; close what refers to it first",
            Error::Truncated => "the message was longer than the posted buffer",
            Error::Cancelled => "cancelled by the application",
            Error::NoMessage => "no such message has arrived",
            Error::Refused => "nothing listens at the peer's address",
            Error::Reset => "the peer process ended, or closed its endpoint",
            Error::Unreachable => "no link leads to the peer, or its host does not answer",
            Error::Denied => "the peer belongs to another user or job, or runs another version of Strait: the log says which",
            Error::Exhausted => {
                "no descriptors or memory, here or at the peer, for a channel to it; raise RLIMIT_NOFILE (ulimit -n)"
            }
            Error::BadKey => "the target has no registration with that key",
            Error::Access => "the target's registration does not allow this access",
            Error::Range => "the range is not inside the target's registration",
            Error::Unsupported => "the target does not support this operation",
            Error::Io => "the bytes could not be moved",
            Error::Fault => {
                "the target has registered this memory, but it is not mapped there, or not for this access"
            }
            Error::KeyInUse => "another registration has that key",
            Error::NotFound => "nothing of that name",
            Error::Overrun => "the completion queue was too small and lost an entry",
        })
    }
}

impl std::error::Error for Error {}

/// What a queue tells the application about one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the operation; zero for what a peer did on its own.
    pub ctx: Ctx,
    /// What kind of operation.
    pub what: What,
    /// Bytes received.
    pub len: usize,
    /// Where they are, for a multi-receive buffer.
    pub buf: u64,
    /// Remote CQ data.
    pub data: u64,
    /// Tag of the message.
    pub tag: u64,
    /// The sender, as far as the address vector knows it.
    pub src: FiAddr,
    /// Why it failed.
    pub err: Option<Error>,
    /// Bytes that found no room, of a truncated message.
    pub olen: usize,
}

impl Completion {
    /// Of nothing.
    pub const BLANK: Completion = Completion {
        ctx: Ctx(0),
        what: What::empty(),
        len: 0,
        buf: 0,
        data: 0,
        tag: 0,
        src: ADDR_UNSPEC,
        err: None,
        olen: 0,
    };
}

/// Where [`crate::Domain::poll_fast`] puts the completion of a message: a function, or a type whose own is
/// always inlined.
pub trait Report {
    fn report(&mut self, entry: &Completion);
}

impl<F: FnMut(&Completion)> Report for F {
    #[inline(always)]
    fn report(&mut self, entry: &Completion) {
        self(entry);
    }
}

/// What [`crate::Domain::poll_fast`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollFast {
    /// Nothing.
    Nothing,
    /// Messages that wait for a receive now, and nothing that is to be told.
    Kept,
    /// A message, whose completion was reported in place of an entry of the queue.
    Message,
    /// Something else: the queue may have entries of it.
    Other,
    /// Only [`crate::Domain::progress_for`] can tell.
    Unknown,
}

/// A message to post.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a> {
    /// The peer.
    pub to: FiAddr,
    /// The bytes.
    pub iov: &'a [Span],
    /// Its tag, if tagged.
    pub tag: Option<u64>,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Comes back with the completion.
    pub ctx: Ctx,
    /// What is wanted.
    pub flags: OpFlags,
}

/// What messages a receive (or a peek) is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// From this peer only, unless [`ADDR_UNSPEC`].
    pub src: FiAddr,
    /// `Some((tag, ignore))`: tagged messages whose tag equals `tag` in the bits that `ignore`
    /// leaves; `None`: messages without a tag.
    pub tag: Option<(u64, u64)>,
}

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub struct Recv<'a> {
    /// For what messages.
    pub pattern: Pattern,
    /// Where to.
    pub iov: &'a [Span],
    /// Comes back with the completion.
    pub ctx: Ctx,
    /// What is wanted.
    pub flags: OpFlags,
}

/// What to do with the message a peek finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// Leave it.
    Look,
    /// Set it aside for [`crate::Domain::claim`] with the same context.
    Claim,
    /// Throw it away.
    Discard,
}

/// An RMA operation to post.
#[derive(Clone, Copy, Debug)]
pub struct Rma<'a> {
    /// The target.
    pub to: FiAddr,
    /// Write, or read.
    pub write: bool,
    /// Memory here.
    pub iov: &'a [Span],
    /// Memory there; as many bytes as here.
    pub remote: &'a [RmaSeg],
    /// Remote CQ data, for writes.
    pub data: Option<u64>,
    /// Comes back with the completion.
    pub ctx: Ctx,
    /// What is wanted.
    pub flags: OpFlags,
}

/// An atomic to post.
#[derive(Clone, Copy, Debug)]
pub struct Atomic<'a> {
    /// The target.
    pub to: FiAddr,
    /// Operation, by `hmem`'s code.
    pub op: hmem::AtomicOp,
    /// Datatype.
    pub datatype: hmem::Datatype,
    /// Operands; empty for an atomic read.
    pub operand: &'a [Span],
    /// Compare values; empty unless `op` compares.
    pub compare: &'a [Span],
    /// Where the old values go; empty if nothing is fetched.
    pub result: &'a [Span],
    /// Memory there.
    pub remote: &'a [RmaSeg],
    /// Remote CQ data.
    pub data: Option<u64>,
    /// Comes back with the completion.
    pub ctx: Ctx,
    /// What is wanted.
    pub flags: OpFlags,
}

bitflags::bitflags! {
    /// What a registration allows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Peers may read it.
        const REMOTE_READ = 1;
        /// Peers may write it.
        const REMOTE_WRITE = 2;
    }
}
