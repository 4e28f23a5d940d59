//! Collective operations among numbered members, as rounds of messages, reductions and copies.
//!
//! A [`Schedule`] is what one member does: in each [`Round`] it sends and receives all of
//! [`Round::transfers`], in any order between different members, and when all of these are done it runs
//! [`Round::locals`] one after the other. Between two members messages match in the order of the rounds.
//! Nothing here knows an endpoint, memory or a datatype: the caller maps a [`Part`] to memory, and reduces.
//!
//! | operation | short | long |
//! |---|---|---|
//! | barrier | dissemination | |
//! | broadcast, reduce | binomial tree | the same |
//! | allreduce | recursive doubling | reduce-scatter and allgather, pairwise |
//! | allgather | Bruck's | pairwise |
//! | all to all, reduce-scatter | pairwise | the same |
//! | scatter, gather | from and to the root | the same |
//!
//! Members that share memory do without messages ([`Plan`]), those of several hosts inside each host
//! ([`Layers`]).
//!
//! Pairwise exchanges have [`WINDOW`] messages under way in each direction.

#![forbid(unsafe_code)]

mod hosts;
mod pairwise;
mod run;
mod schedule;
mod shared;
mod tree;

pub use hosts::{Hosts, Layers};
pub use run::{Run, Sequence, Slots};
pub use schedule::Schedule;
pub use shared::{FLAT, Plan, Put, Take, Use};

/// Messages of a pairwise exchange that are under way at a time, in each direction.
pub const WINDOW: usize = 16;

/// From so many bytes of the whole result on an allreduce or allgather takes the way for long ones.
pub const LONG: usize = 32 << 10;

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No member goes on before all have come.
    Barrier,
    /// The root's result part goes to that of all others.
    Broadcast,
    /// Slice `i` of each input goes to member `i`.
    AllToAll,
    /// The inputs are reduced, and each member has the result.
    AllReduce,
    /// Each member has all inputs, one after the other.
    AllGather,
    /// The inputs are reduced, and member `i` has slice `i`.
    ReduceScatter,
    /// The inputs are reduced, and the root has the result.
    Reduce,
    /// Slice `i` of the root's input goes to member `i`.
    Scatter,
    /// The root has all inputs, one after the other.
    Gather,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 9] = [
        Kind::Barrier,
        Kind::Broadcast,
        Kind::AllToAll,
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::Reduce,
        Kind::Scatter,
        Kind::Gather,
    ];

    /// Whether the operation reduces.
    pub fn reduces(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce)
    }

    /// Whether one member is different from the others.
    pub fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Scatter | Kind::Gather)
    }
}

/// An operation as one member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub kind: Kind,
    /// Members.
    pub members: usize,
    /// This member's number, below [`Shape::members`].
    pub rank: usize,
    /// The root's, where there is one.
    pub root: usize,
    /// Elements: of a slice where the operation has slices, of the buffer where it has none.
    pub count: usize,
    /// Bytes of an element.
    pub size: usize,
}

impl Shape {
    /// Bytes of a slice, or of the buffer where there are none. `None`: the sizes overflow, or a number is
    /// not a member's.
    pub fn checked_bytes(&self) -> Option<usize> {
        let bytes = self.count.checked_mul(self.size)?;
        bytes.checked_mul(self.members.checked_add(2)?)?;
        (self.rank < self.members && self.root < self.members).then_some(bytes)
    }

    /// Bytes that this member's input and result have. To be asked of shapes alone whose sizes are checked.
    pub fn lengths(&self) -> (usize, usize) {
        let one = self.count * self.size;
        let all = one * self.members;
        let of_root = |bytes| if self.rank == self.root { bytes } else { 0 };
        match self.kind {
            Kind::Barrier => (0, 0),
            Kind::Broadcast => (0, one),
            Kind::AllToAll => (all, all),
            Kind::AllReduce => (one, one),
            Kind::AllGather => (one, all),
            Kind::ReduceScatter => (all, one),
            Kind::Reduce => (one, of_root(one)),
            Kind::Scatter => (of_root(all), one),
            Kind::Gather => (one, of_root(all)),
        }
    }
}

/// Which memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// What the caller contributes: read alone.
    Input,
    /// Where the caller wants the result.
    Result,
    /// The operation's own, of [`Schedule::scratch`] bytes.
    Scratch,
}

/// Some bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub place: Place,
    pub at: usize,
    pub len: usize,
}

impl Part {
    pub(crate) fn new(place: Place, at: usize, len: usize) -> Part {
        Part { place, at, len }
    }

    /// The same bytes of another place.
    pub(crate) fn of(self, place: Place) -> Part {
        Part { place, ..self }
    }
}

/// A message to or from a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub member: usize,
    /// Sent, or received.
    pub sends: bool,
    pub part: Part,
}

/// What a member does with its own memory. Both parts have one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    Copy { into: Part, from: Part },
    Reduce { into: Part, from: Part },
}

/// Messages that are under way at a time, and what is done once all have arrived and left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    pub transfers: Vec<Transfer>,
    pub locals: Vec<Local>,
}

impl Round {
    pub(crate) fn send(&mut self, member: usize, part: Part) {
        self.transfers.push(Transfer { member, sends: true, part });
    }

    pub(crate) fn receive(&mut self, member: usize, part: Part) {
        self.transfers.push(Transfer { member, sends: false, part });
    }

    pub(crate) fn copy(&mut self, into: Part, from: Part) {
        self.locals.push(Local::Copy { into, from });
    }

    pub(crate) fn reduce(&mut self, into: Part, from: Part) {
        self.locals.push(Local::Reduce { into, from });
    }
}
