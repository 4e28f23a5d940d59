//! The rounds of one member, one after the other.

use crate::pairwise::{Exchange, Slices};
use crate::tree::{Doubling, Tree};
use crate::{Kind, LONG, Part, Place, Round, Shape};

/// How an operation is done.
#[derive(Clone, Copy, Debug)]
enum Way {
    Barrier,
    Broadcast,
    Reduce,
    Doubling,
    ReduceScatter,
    /// A reduce-scatter into the result's slice, and an allgather of that.
    InSlices,
    Bruck,
    AllGather,
    AllToAll,
    Scatter,
    Gather,
    /// [`Schedule::rounds`].
    Rounds,
}

/// What one member does in an operation.
#[derive(Clone, Debug)]
pub struct Schedule {
    shape: Shape,
    /// Bytes of a slice.
    bytes: usize,
    way: Way,
    next: usize,
    rounds: Vec<Round>,
}

/// Rounds of dissemination and of Bruck's allgather.
fn log2_up(members: usize) -> usize {
    members.next_power_of_two().trailing_zeros() as usize
}

impl Schedule {
    /// `None`: the sizes overflow, or a number is not a member's.
    pub fn new(shape: Shape) -> Option<Schedule> {
        let bytes = shape.checked_bytes()?;
        let way = match shape.kind {
            Kind::Barrier => Way::Barrier,
            Kind::Broadcast => Way::Broadcast,
            Kind::Reduce => Way::Reduce,
            Kind::AllReduce if bytes >= LONG && shape.count >= shape.members => Way::InSlices,
            Kind::AllReduce => Way::Doubling,
            Kind::ReduceScatter => Way::ReduceScatter,
            Kind::AllGather if bytes * shape.members >= LONG => Way::AllGather,
            Kind::AllGather => Way::Bruck,
            Kind::AllToAll => Way::AllToAll,
            Kind::Scatter => Way::Scatter,
            Kind::Gather => Way::Gather,
        };
        Some(Schedule { shape, bytes, way, next: 0, rounds: Vec::new() })
    }

    /// These rounds, whose bytes are of the caller's input and result.
    pub(crate) fn of_rounds(shape: Shape, rounds: Vec<Round>) -> Schedule {
        Schedule { shape, bytes: 0, way: Way::Rounds, next: 0, rounds }
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes that the operation needs beside the caller's.
    pub fn scratch(&self) -> usize {
        match self.way {
            Way::Doubling => self.bytes,
            Way::Reduce => self.tree().scratch(self.bytes),
            Way::ReduceScatter | Way::InSlices => self.exchange(self.slices()).scratch(),
            Way::Bruck => self.bytes * self.shape.members,
            _ => 0,
        }
    }

    /// The next round; `None`: the operation is over. A round may have nothing to do.
    pub fn next_round(&mut self) -> Option<Round> {
        let n = self.next;
        self.next += 1;
        match self.way {
            Way::Barrier => self.dissemination(n),
            Way::Broadcast => self.tree().broadcast(n, self.bytes),
            Way::Reduce => self.tree().reduce(n, self.bytes),
            Way::Doubling => self.doubling().round(n, self.bytes),
            Way::ReduceScatter => self.exchange(self.slices()).reduce_scatter(n, true),
            Way::InSlices => self.in_slices(n),
            Way::Bruck => self.bruck(n),
            Way::AllGather => self.exchange(self.slices()).allgather(n, true),
            Way::AllToAll => self.exchange(self.slices()).all_to_all(n),
            Way::Scatter => self.exchange(self.slices()).scatter(n, self.shape.root),
            Way::Gather => self.exchange(self.slices()).gather(n, self.shape.root),
            Way::Rounds => self.rounds.get_mut(n).map(std::mem::take),
        }
    }

    fn tree(&self) -> Tree {
        Tree::new(&self.shape)
    }

    fn doubling(&self) -> Doubling {
        Doubling::new(&self.shape)
    }

    /// How the buffers are cut.
    fn slices(&self) -> Slices {
        let Shape { members, count, size, .. } = self.shape;
        match self.way {
            Way::InSlices => Slices::of_whole(members, count, size),
            _ => Slices::even(members, self.bytes),
        }
    }

    fn exchange(&self, slices: Slices) -> Exchange {
        Exchange::new(self.shape.rank, slices)
    }

    /// In round `n` each member hears of those that the last rounds' senders have heard of.
    fn dissemination(&self, n: usize) -> Option<Round> {
        let Shape { members, rank, .. } = self.shape;
        if n >= log2_up(members) {
            return None;
        }
        let (mut round, nothing, far) = (Round::default(), Part::new(Place::Scratch, 0, 0), 1 << n);
        round.send((rank + far) % members, nothing);
        round.receive((rank + members - far) % members, nothing);
        Some(round)
    }

    fn in_slices(&self, n: usize) -> Option<Round> {
        let exchange = self.exchange(self.slices());
        let first = exchange.rounds() + 1;
        if n < first { exchange.reduce_scatter(n, false) } else { exchange.allgather(n - first + 1, false) }
    }

    /// After round `n` a member has the inputs of the `2^n` members from itself on.
    fn bruck(&self, n: usize) -> Option<Round> {
        let (Shape { members, rank, .. }, one) = (self.shape, self.bytes);
        let mut round = Round::default();
        let scratch = |at: usize, many: usize| Part::new(Place::Scratch, at * one, many * one);
        if n == 0 {
            round.copy(scratch(0, 1), Part::new(Place::Input, 0, one));
            return Some(round);
        }
        let last = log2_up(members);
        if n <= last {
            let have = 1 << (n - 1);
            let many = have.min(members - have);
            round.send((rank + members - have) % members, scratch(0, many));
            round.receive((rank + have) % members, scratch(have, many));
            return Some(round);
        }
        if n > last + 1 {
            return None;
        }
        // What is there begins with this member's.
        let result = |at: usize, many: usize| Part::new(Place::Result, at * one, many * one);
        round.copy(result(rank, members - rank), scratch(0, members - rank));
        round.copy(result(0, rank), scratch(members - rank, rank));
        Some(round)
    }
}
