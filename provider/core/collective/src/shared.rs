//! Collective operations by memory that all members have mapped, as steps of each member.
//!
//! In a step a member puts bytes into its own slot ([`Plan::put`]), takes from slots of members below it in a
//! tree ([`Plan::before`]), publishes the step, and takes from slots of others ([`Plan::after`]). To take
//! something of a member is to wait until that member has published the step. What is longer than a slot goes
//! in pieces, each by steps of its own.
//!
//! | operation | how |
//! |---|---|
//! | barrier | each member waits for all; of more than [`FLAT`] by a tree to the first, for which all wait |
//! | broadcast | all take from the root |
//! | allreduce, reduce, short | each member, or the root, reduces all inputs; of more than [`FLAT`] a tree |
//! | allreduce, reduce, long | each member reduces a slice of all inputs |
//! | allgather, gather, scatter, all to all, reduce-scatter | each member takes what is its own |

use crate::{Kind, Part, Place, Shape};

/// Up to so many members wait for each other without a tree.
pub const FLAT: usize = 8;
/// Members below another one in a tree.
const ARITY: usize = 4;
/// Up to so many bytes are reduced by a tree.
const TREE: usize = 512;
/// Up to so many bytes are read at most to reduce whole inputs, beyond those of one other member.
const WHOLE: usize = 4096;
/// What of different members' is written by one is as many bytes apart, or a multiple.
const LINE: usize = 64;
/// Up to so many slots long a buffer, or all slices of one, goes by slots.
const LONGEST: usize = 64;

/// How an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// All wait for all.
    Barrier,
    /// By way of the first.
    BarrierTree,
    Broadcast,
    /// Each member that has a result reduces all inputs.
    Whole,
    Tree,
    /// Two steps for each piece.
    InSlices,
    AllGather,
    Gather,
    Scatter,
    /// With a reduction or without.
    Exchange,
}

/// Bytes that go from this member's memory into its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    pub from: Part,
    /// Where in the slot.
    pub at: usize,
}

/// What becomes of bytes of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing: the member is waited for.
    Wait,
    Copy(Part),
    Reduce(Part),
    /// They are reduced into the same bytes of this member's slot.
    ReduceHere,
}

/// What a member takes of another one's slot, or of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    pub member: usize,
    /// The slot is that of the step before.
    pub earlier: bool,
    pub at: usize,
    pub len: usize,
    pub then: Use,
}

/// What one member does in an operation by shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    shape: Shape,
    way: Way,
    /// Bytes of a slice, or of the buffer where there are none.
    bytes: usize,
    /// Bytes of it that one piece has at most.
    piece: usize,
    pieces: usize,
}

impl Plan {
    /// With slots of so many bytes. `None`: messages serve better, or the sizes overflow.
    pub fn new(shape: Shape, slot: usize) -> Option<Plan> {
        let bytes = shape.checked_bytes()?;
        let Shape { kind, members, size, .. } = shape;
        if !size.is_power_of_two() || size > LINE || slot % LINE != 0 {
            return None;
        }
        let is_flat = members <= FLAT;
        let way = match kind {
            Kind::Barrier if is_flat => Way::Barrier,
            Kind::Barrier => Way::BarrierTree,
            Kind::Broadcast => Way::Broadcast,
            Kind::AllReduce | Kind::Reduce
                if is_flat && bytes.saturating_mul(members.saturating_sub(2)) <= WHOLE =>
            {
                Way::Whole
            }
            Kind::AllReduce | Kind::Reduce if !is_flat && bytes <= TREE => Way::Tree,
            Kind::AllReduce | Kind::Reduce => Way::InSlices,
            Kind::AllGather => Way::AllGather,
            Kind::Gather => Way::Gather,
            Kind::Scatter => Way::Scatter,
            Kind::AllToAll | Kind::ReduceScatter => Way::Exchange,
        };
        let (piece, whole) = match way {
            Way::Scatter | Way::Exchange => (slot / members / LINE * LINE, bytes * members),
            _ => (slot, bytes),
        };
        if (piece == 0 && bytes > 0) || whole > slot * LONGEST {
            return None;
        }
        let piece = piece.min(bytes);
        let pieces = if piece == 0 { 1 } else { bytes.div_ceil(piece) };
        Some(Plan { shape, way, bytes, piece, pieces })
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Steps of all members.
    pub fn steps(&self) -> usize {
        self.pieces * self.steps_each()
    }

    fn steps_each(&self) -> usize {
        if self.way == Way::InSlices { 2 } else { 1 }
    }

    fn piece_of(&self, step: usize) -> usize {
        step / self.steps_each()
    }

    /// Whether a step is the second one of its piece.
    fn is_second(&self, step: usize) -> bool {
        self.way == Way::InSlices && step % 2 == 1
    }

    /// The first byte of a piece, and how many it has.
    fn bounds(&self, step: usize) -> (usize, usize) {
        let first = self.piece_of(step) * self.piece;
        (first, self.piece.min(self.bytes - first))
    }

    /// Bytes of a slot that are in use in this step, at any member.
    pub fn used(&self, step: usize) -> usize {
        let (_, len) = self.bounds(step);
        match self.way {
            Way::Scatter | Way::Exchange => (self.shape.members - 1) * self.piece + len,
            _ => len,
        }
    }

    fn is_root(&self) -> bool {
        self.shape.rank == self.shape.root
    }

    /// Whether no member finishes this step before all have published it.
    pub fn is_joint(&self, step: usize) -> bool {
        match self.way {
            Way::Barrier | Way::BarrierTree | Way::AllGather | Way::Exchange => true,
            Way::Whole | Way::Tree => self.shape.kind == Kind::AllReduce,
            Way::InSlices => !self.is_second(step) || self.shape.kind == Kind::AllReduce,
            Way::Broadcast | Way::Gather | Way::Scatter => false,
        }
    }

    /// Whether this member publishes this step: others wait for it.
    pub fn publishes(&self, _step: usize) -> bool {
        match self.way {
            Way::Broadcast | Way::Scatter => self.is_root(),
            _ => true,
        }
    }

    /// The `k`-th thing that goes into this member's slot.
    pub fn put(&self, step: usize, k: usize) -> Option<Put> {
        let (first, len) = self.bounds(step);
        match self.way {
            Way::Barrier | Way::BarrierTree => None,
            Way::Broadcast => {
                (k == 0 && self.is_root()).then(|| Put { from: Part::new(Place::Result, first, len), at: 0 })
            }
            Way::Whole | Way::Tree | Way::InSlices | Way::AllGather | Way::Gather => {
                let puts = k == 0 && !self.is_second(step);
                puts.then(|| Put { from: Part::new(Place::Input, first, len), at: 0 })
            }
            Way::Scatter | Way::Exchange => {
                let puts = k < self.shape.members && self.publishes(step);
                let from = Part::new(Place::Input, k * self.bytes + first, len);
                puts.then(|| Put { from, at: k * self.piece })
            }
        }
    }

    /// The member's number in a tree, counted from its root on.
    fn in_tree(&self) -> usize {
        let Shape { members, rank, .. } = self.shape;
        (rank + members - self.tree_root()) % members
    }

    fn tree_root(&self) -> usize {
        if self.shape.kind == Kind::Reduce { self.shape.root } else { 0 }
    }

    /// The `k`-th thing that is taken before this member publishes.
    pub fn before(&self, step: usize, k: usize) -> Option<Take> {
        if !matches!(self.way, Way::BarrierTree | Way::Tree) || k >= ARITY {
            return None;
        }
        let Shape { members, .. } = self.shape;
        let child = self.in_tree() * ARITY + 1 + k;
        if child >= members {
            return None;
        }
        let (_, len) = self.bounds(step);
        let then = if self.way == Way::Tree { Use::ReduceHere } else { Use::Wait };
        Some(Take { member: (child + self.tree_root()) % members, earlier: false, at: 0, len, then })
    }

    /// The `k`-th thing that is taken after that.
    pub fn after(&self, step: usize, k: usize) -> Option<Take> {
        let Shape { kind, members, rank, root, .. } = self.shape;
        let (first, len) = self.bounds(step);
        let of_piece = |member, then| Some(Take { member, earlier: false, at: 0, len, then });
        let result = Part::new(Place::Result, first, len);
        let has_result = kind != Kind::Reduce || self.is_root();
        match self.way {
            Way::Barrier => (k < members).then(|| Take::wait(k)),
            Way::BarrierTree => (k == 0).then(|| Take::wait(0)),
            Way::Broadcast if k == 0 && !self.is_root() => of_piece(root, Use::Copy(result)),
            Way::Broadcast => None,
            Way::Whole if k < members && has_result => {
                of_piece(k, if k == 0 { Use::Copy(result) } else { Use::Reduce(result) })
            }
            Way::Whole => None,
            Way::Tree if k == 0 && has_result => of_piece(self.tree_root(), Use::Copy(result)),
            Way::Tree => None,
            Way::InSlices if k >= members => None,
            Way::InSlices if !self.is_second(step) => {
                let (at, len) = self.slice(len, rank);
                let then = if k == rank { Use::Wait } else { Use::ReduceHere };
                Some(Take { member: k, earlier: false, at, len, then })
            }
            Way::InSlices => {
                let (at, len) = self.slice(len, k);
                let then = Use::Copy(Part::new(Place::Result, first + at, len));
                has_result.then_some(Take { member: k, earlier: true, at, len, then })
            }
            Way::AllGather | Way::Gather => {
                let takes = k < members && (self.way == Way::AllGather || self.is_root());
                let into = Part::new(Place::Result, k * self.bytes + first, len);
                takes.then_some(Take { member: k, earlier: false, at: 0, len, then: Use::Copy(into) })
            }
            Way::Scatter => {
                let at = rank * self.piece;
                let then = Use::Copy(result);
                (k == 0).then_some(Take { member: root, earlier: false, at, len, then })
            }
            Way::Exchange => {
                let at = rank * self.piece;
                let then = match kind {
                    Kind::AllToAll => Use::Copy(Part::new(Place::Result, k * self.bytes + first, len)),
                    _ if k == 0 => Use::Copy(result),
                    _ => Use::Reduce(result),
                };
                (k < members).then_some(Take { member: k, earlier: false, at, len, then })
            }
        }
    }

    /// Which bytes of a piece of so many a member reduces: whole lines, and so whole elements.
    fn slice(&self, len: usize, rank: usize) -> (usize, usize) {
        let lines = len.div_ceil(LINE);
        let bound = |rank: usize| (lines * rank / self.shape.members * LINE).min(len);
        (bound(rank), bound(rank + 1) - bound(rank))
    }
}

impl Take {
    fn wait(member: usize) -> Take {
        Take { member, earlier: false, at: 0, len: 0, then: Use::Wait }
    }
}
