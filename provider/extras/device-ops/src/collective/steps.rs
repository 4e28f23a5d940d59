//! What a rank computes, and sends and receives, for one piece of all blocks.

use std::ops::Range;

use super::Shares;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// All ranks get all results.
    Allreduce,
    /// The rank of that number gets them.
    Reduce(usize),
    /// Each rank gets those of its block.
    ReduceScatter,
    /// Each rank gets those of itself and the ranks before it.
    Scan,
    /// Each rank but the first gets those of the ranks before it.
    Exscan,
}

/// Addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Of this rank's contribution: all elements.
    pub from: u64,
    /// Of the results; the same in place. It is not used where the rank gets none.
    pub to: u64,
    /// Of what is received from others, and computed for them.
    pub slots: u64,
}

impl Buffers {
    /// Whether the results go where the contribution is.
    pub fn is_in_place(&self) -> bool {
        self.from == self.to
    }
}

/// Something to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `to[i] = a[i] op b[i]`
    Reduce {
        /// Where to; it may be one of the operands.
        to: u64,
        /// The operand of the ranks before.
        a: u64,
        /// That of the next one.
        b: u64,
        /// Elements.
        count: u64,
    },
    /// `to[i] = from[i]`
    Copy {
        /// Where to.
        to: u64,
        /// Where from.
        from: u64,
        /// Elements.
        count: u64,
    },
}

/// A message to or from a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub rank: usize,
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len: u64,
}

/// Whose part it is, and how memory is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// Bytes from one element to the next.
    pub(super) extent: u64,
    /// Bytes from one slot to the next.
    pub(super) stride: u64,
}

/// One rank's part.
#[derive(Clone, Debug)]
pub(super) struct Round {
    pub(super) what: What,
    pub(super) place: Place,
    pub(super) buffers: Buffers,
}

/// What goes out, and what comes in.
type Messages = (Vec<Message>, Vec<Message>);

impl Round {
    fn slot(&self, rank: usize) -> u64 {
        self.buffers.slots + rank as u64 * self.place.stride
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.place.rank;
        (0..self.place.ranks).filter(move |rank| *rank != own)
    }

    /// Elements of a buffer, as a message to or from a rank.
    fn elements(&self, rank: usize, buffer: u64, of: &Range<u64>) -> Option<Message> {
        let Place { extent, .. } = self.place;
        let (at, len) = (buffer + of.start * extent, (of.end - of.start) * extent);
        (len > 0).then_some(Message { rank, at, len })
    }

    /// What this rank has to reduce of a rank's, in its own piece.
    fn contribution(&self, rank: usize, own: &Range<u64>) -> u64 {
        if rank == self.place.rank {
            self.buffers.from + own.start * self.place.extent
        } else {
            self.slot(rank)
        }
    }

    /// The sum of the ranks up to that one.
    fn prefix(&self, rank: usize, own: &Range<u64>) -> u64 {
        if rank == 0 { self.contribution(0, own) } else { self.slot(rank) }
    }

    /// Where the results of this rank's own piece go, if it keeps them.
    fn kept(&self, shares: &Shares, own: &Range<u64>) -> Option<u64> {
        let first = match self.what {
            What::Allreduce => 0,
            What::Reduce(root) if root == self.place.rank => 0,
            // In place this is where others' contributions are.
            What::ReduceScatter if !self.buffers.is_in_place() => shares.of(self.place.rank).start,
            _ => return None,
        };
        Some(self.buffers.to + (own.start - first) * self.place.extent)
    }

    /// Contributions go to the owners of these elements.
    pub(super) fn contributions(&self, shares: &Shares, of: Range<u64>) -> Messages {
        let from = self.buffers.from;
        let sends = self.others().filter_map(|rank| self.elements(rank, from, &shares.piece(rank, &of)));
        let own = shares.piece(self.place.rank, &of);
        let receives = self.others().filter_map(|rank| self.elements(rank, self.slot(rank), &from_0(&own)));
        (sends.collect(), receives.collect())
    }

    /// What is computed of them.
    pub(super) fn steps(&self, shares: &Shares, of: Range<u64>) -> Vec<Step> {
        let own = shares.piece(self.place.rank, &of);
        let (count, own_rank) = (own.end - own.start, self.place.rank);
        if count == 0 {
            return Vec::new();
        }
        let kept = self.kept(shares, &own);
        // The result of all ranks is not wanted of MPI_Exscan.
        let last = self.place.ranks - 1 - usize::from(self.what == What::Exscan);
        let (mut steps, mut before) = (Vec::new(), self.contribution(0, &own));
        for rank in 1..=last {
            let to = kept.filter(|_| rank == last).unwrap_or_else(|| self.slot(rank));
            steps.push(Step::Reduce { to, a: before, b: self.contribution(rank, &own), count });
            before = to;
        }
        let here = self.buffers.to + own.start * self.place.extent;
        let copy = match self.what {
            What::ReduceScatter if kept.is_none() => Some((self.buffers.to, before)),
            What::Scan => Some((here, self.prefix(own_rank, &own))),
            What::Exscan if own_rank > 0 => Some((here, self.prefix(own_rank - 1, &own))),
            _ => None,
        };
        if let Some((to, from)) = copy.filter(|(to, from)| to != from) {
            steps.push(Step::Copy { to, from, count });
        }
        steps
    }

    /// Results go to the ranks that want them.
    pub(super) fn results(&self, shares: &Shares, of: Range<u64>) -> Messages {
        let (rank, own) = (self.place.rank, shares.piece(self.place.rank, &of));
        let last = self.place.ranks - 1;
        let result = |to: usize| match self.what {
            What::Allreduce => self.kept(shares, &own),
            What::Reduce(root) => (to == root).then(|| self.slot(last)),
            What::ReduceScatter => None,
            What::Scan => Some(self.prefix(to, &own)),
            What::Exscan => to.checked_sub(1).map(|before| self.prefix(before, &own)),
        };
        let message = |to: usize| self.elements(to, result(to)?, &from_0(&own));
        let sends = self.others().filter_map(message).collect();
        let gets = match self.what {
            What::Allreduce | What::Scan => true,
            What::Reduce(root) => root == rank,
            What::ReduceScatter => false,
            What::Exscan => rank > 0,
        };
        let all = self.others().filter(|_| gets);
        let to = self.buffers.to;
        (sends, all.filter_map(|rank| self.elements(rank, to, &shares.piece(rank, &of))).collect())
    }
}

/// As many, from 0 on.
fn from_0(of: &Range<u64>) -> Range<u64> {
    0..of.end - of.start
}
