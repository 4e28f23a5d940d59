//! Memory that the members of a group on one host have in common, for collective operations.
//!
//! Each member has [`SLOTS`] slots, which it alone writes. An operation is made of steps, which have one
//! number at all members and go through the slots in turn. In a step a member fills its slot, publishes the
//! step, and takes what it needs of the slots of members that have published it. A slot is filled anew when
//! all members have finished the step before the last one that it was filled for: so members may take from
//! the slots of the step before, too.
//!
//! The members are untrusted as any peer: whatever they write, a word is a step that was published or is not,
//! and bytes are copied out before they are used.

use std::fmt::Debug;
use std::io;

use hmem::{AtomicOp, Datatype, NotApplied, Span};

use crate::path::PeerId;

/// Slots of each member.
pub const SLOTS: u64 = 4;

/// Bytes of a slot that travel with the word which publishes it.
pub const INLINE: usize = 112;

/// Most members of a group that has such memory.
pub const MOST_MEMBERS: usize = 256;

/// By what name the memory of a group is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupName {
    /// The number of the endpoint that made it.
    pub maker: u64,
    /// Which of the maker's it is.
    pub number: u64,
}

/// How the memory of a group is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// Members.
    pub members: usize,
    /// Which one this endpoint is.
    pub rank: usize,
    /// Bytes of a slot.
    pub slot: usize,
}

impl GroupShape {
    /// Whether such memory is allowed.
    pub fn is_valid(&self) -> bool {
        (2..=MOST_MEMBERS).contains(&self.members)
            && self.rank < self.members
            && self.slot % 4096 == 0
            && (4096..=1 << 24).contains(&self.slot)
    }
}

/// Some bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InSlot {
    /// Whose.
    pub member: usize,
    /// Filled in this step.
    pub step: u64,
    /// Bytes of it that are in use in that step, the same at all members.
    pub used: usize,
    /// The first of these bytes.
    pub at: usize,
    /// How many.
    pub len: usize,
}

/// Whether a member has published a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Not yet.
    Awaited,
    /// It has.
    Here,
    /// It has published a step of another operation under this number, or a number that cannot be.
    Wrong,
}

/// What has come of a request for memory that another member made.
#[derive(Debug)]
pub enum Opening {
    /// Nothing yet: to be called again, in later calls of progress.
    Pending,
    /// It is here.
    Open(Box<dyn GroupMemory>),
    /// It does not come; why.
    Denied(String),
}

/// Makes memory of groups, and requests that of others.
pub trait GroupLink {
    /// Whether memory can be shared with this peer.
    fn shares(&self, peer: PeerId) -> bool;

    /// Makes memory of a group, and offers it to these peers alone, by the channels that they have to this
    /// endpoint.
    fn create(&mut self, shape: GroupShape, to: &[PeerId]) -> io::Result<(GroupName, Box<dyn GroupMemory>)>;

    /// Requests what that peer offers by this name.
    fn open(&mut self, shape: GroupShape, maker: PeerId, name: GroupName) -> Opening;

    /// The offer ends, or the request. Memory that is here stays.
    fn withdraw(&mut self, name: GroupName);
}

/// The memory of a group, as one member has it mapped.
pub trait GroupMemory: Debug + Send {
    /// This member has filled its slot for this step; `print` says what the operation is, the same at all
    /// members.
    fn publish(&self, step: u64, print: u64);

    /// Whether that member has published this step.
    fn arrival(&self, member: usize, step: u64, print: u64) -> Arrival;

    /// This member takes nothing more of this step and those before.
    fn finish(&self, step: u64);

    /// The last step that this member says to have finished. It may be any number.
    fn finished(&self, member: usize) -> u64;

    /// Copies memory of this process, of [`InSlot::len`] bytes, to a slot of this member. `false`: it could
    /// not be read.
    fn put(&self, to: InSlot, from: Span) -> bool;

    /// Copies from a slot. `false`: the memory could not be written.
    fn get(&self, from: InSlot, into: Span) -> bool;

    /// Reduces what is in a slot into memory of this process; `None`: into the same bytes of this member's
    /// slot of that step.
    fn reduce(&self, from: InSlot, into: Option<Span>, by: (AtomicOp, Datatype)) -> Result<(), NotApplied>;

    /// After a step was published or finished: whether members may sleep.
    fn may_sleep(&self) -> bool;

    /// The next member from `from` on that sleeps, which is to be woken by a frame. It is taken for awake
    /// from now on.
    fn wake_next(&self, from: usize) -> Option<usize>;

    /// This member is to be woken from now on. The words are to be polled once more before it sleeps.
    fn sleep(&self);
}
