use hmem::Span;
use wire::RmaSeg;

pub use crate::error::Error;

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
    /// A group of an endpoint, for collective operations.
    GroupId;
}

impl GroupId {
    /// As what an application has of a group: no other group of the domain ever has it.
    pub fn number(self) -> u64 {
        self.0.into()
    }

    /// What has that number, if anything.
    pub fn of(number: u64) -> Option<GroupId> {
        number.try_into().ok().map(GroupId)
    }
}

/// A send that is being cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cancelling(pub(crate) u64);

bitflags::bitflags! {
    /// What is wanted of one operation. The provider has already merged the endpoint's defaults in.
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
        /// A part of a collective operation: the engine's own, which completes in no queue and no counter.
        const PART = 1 << 6;
    }
}

bitflags::bitflags! {
    /// What a completion is of. A provider whose interface has a bit for each of these passes them on as they
    /// are, where the values are the same.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct What: u32 {
        /// Message without a tag.
        const MSG = 1 << 1;
        /// Tagged message.
        const TAGGED = 1 << 3;
        /// RMA.
        const RMA = 1 << 2;
        /// Atomic.
        const ATOMIC = 1 << 4;
        /// The local side sent.
        const SEND = 1 << 11;
        /// The local side received.
        const RECV = 1 << 10;
        /// Initiated here, reads the peer's memory.
        const READ = 1 << 8;
        /// Initiated here, writes the peer's memory.
        const WRITE = 1 << 9;
        /// A peer read memory here.
        const REMOTE_READ = 1 << 12;
        /// A peer wrote memory here.
        const REMOTE_WRITE = 1 << 13;
        /// `data` is remote CQ data.
        const REMOTE_CQ_DATA = 1 << 17;
        /// The multi-receive buffer is given back with this entry.
        const MULTI_RECV = 1 << 16;
        /// The message was claimed by a peek.
        const CLAIM = 1 << 27;
        /// Collective operation.
        const COLLECTIVE = 1 << 6;
        /// A part of one, of which the application has no completion.
        const PART = 1 << 28;
    }
}

impl What {
    /// A message of this side's.
    #[inline(always)]
    pub(crate) fn sent(tagged: bool) -> What {
        What::SEND | if tagged { What::TAGGED } else { What::MSG }
    }

    /// An RMA of this side's.
    #[inline(always)]
    pub(crate) fn rma(write: bool) -> What {
        What::RMA | if write { What::WRITE } else { What::READ }
    }

    /// An atomic of this side's; `fetches`: it gets what was there.
    #[inline(always)]
    pub(crate) fn atomic(fetches: bool) -> What {
        What::ATOMIC | if fetches { What::READ } else { What::WRITE }
    }
}

/// The completion of one operation, for the application.
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
    /// Messages that wait for a receive now, and nothing that is to be reported.
    Kept,
    /// A message, whose completion was reported in place of an entry of the queue.
    Message,
    /// Something else: the queue may have entries of it.
    Other,
    /// Only [`crate::Domain::progress_for`] can say.
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
    /// It stays.
    Leave,
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

/// A collective operation to post. The result, in its parts, is the reduction's or what others contribute.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Which one.
    pub kind: collective::Kind,
    /// The root, of those that have one.
    pub root: FiAddr,
    /// Elements: of a slice where the operation has slices, of the buffer where it has none.
    pub count: usize,
    /// What they are.
    pub datatype: hmem::Datatype,
    /// How they are reduced, where they are.
    pub op: Option<hmem::AtomicOp>,
    /// What this member contributes.
    pub input: Span,
    /// Where the result goes; for a broadcast what the root contributes, too.
    pub result: Span,
    /// Comes back with the completion.
    pub ctx: Ctx,
    /// What is wanted.
    pub flags: OpFlags,
}

/// A join that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The group.
    pub group: GroupId,
    /// Of the call.
    pub ctx: Ctx,
    /// Why it failed.
    pub err: Option<Error>,
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
