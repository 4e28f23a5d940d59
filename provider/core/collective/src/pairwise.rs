//! Exchanges in which each member has a message for each other one: in step `i` a member sends to the one
//! `i` above it, and receives from the one `i` below it.

use crate::{Part, Place, Round, WINDOW};

/// How a buffer is cut among the members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slices {
    members: usize,
    /// Elements, and bytes of each.
    count: usize,
    size: usize,
}

impl Slices {
    /// A slice of so many bytes for each.
    pub(crate) fn even(members: usize, bytes: usize) -> Slices {
        Slices { members, count: members, size: bytes }
    }

    /// So many elements in all; slices differ by one at most.
    pub(crate) fn of_whole(members: usize, count: usize, size: usize) -> Slices {
        Slices { members, count, size }
    }

    fn start(&self, member: usize) -> usize {
        let (each, extra) = (self.count / self.members, self.count % self.members);
        (each * member + extra.min(member)) * self.size
    }

    fn part(&self, place: Place, member: usize) -> Part {
        let start = self.start(member);
        Part::new(place, start, self.start(member + 1) - start)
    }

    fn longest(&self) -> usize {
        self.count.div_ceil(self.members) * self.size
    }
}

/// One member of an exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    rank: usize,
    slices: Slices,
}

impl Exchange {
    pub(crate) fn new(rank: usize, slices: Slices) -> Exchange {
        Exchange { rank, slices }
    }

    fn members(&self) -> usize {
        self.slices.members
    }

    /// Rounds that an exchange takes, beside what is copied first.
    pub(crate) fn rounds(&self) -> usize {
        (self.members() - 1).div_ceil(WINDOW)
    }

    /// The members above and below in each step of round `n`, which is at least 1; `None`: there is none.
    fn steps(&self, n: usize) -> Option<impl Iterator<Item = (usize, usize)> + use<>> {
        let (rank, members) = (self.rank, self.members());
        let first = 1 + (n - 1) * WINDOW;
        let steps = first..(first + WINDOW).min(members);
        (n <= self.rounds())
            .then(|| steps.map(move |i| ((rank + i) % members, (rank + members - i) % members)))
    }

    /// Room for what is received and yet to be reduced.
    pub(crate) fn scratch(&self) -> usize {
        self.slices.longest() * WINDOW.min(self.members() - 1)
    }

    /// The reduced slice goes to the front of the result (`to_front`), or to its own place there.
    pub(crate) fn reduce_scatter(&self, n: usize, to_front: bool) -> Option<Round> {
        let (mut round, slices) = (Round::default(), &self.slices);
        let own = slices.part(Place::Input, self.rank);
        let into = if to_front { Part::new(Place::Result, 0, own.len) } else { own.of(Place::Result) };
        if n == 0 {
            round.copy(into, own);
            return Some(round);
        }
        let longest = slices.longest();
        for (i, (above, below)) in self.steps(n)?.enumerate() {
            let room = Part::new(Place::Scratch, i * longest, own.len);
            round.send(above, slices.part(Place::Input, above));
            round.receive(below, room);
            round.reduce(into, room);
        }
        Some(round)
    }

    /// The slices of all results, each of which is at its member (`copies`: in its input).
    pub(crate) fn allgather(&self, n: usize, copies: bool) -> Option<Round> {
        let (mut round, slices) = (Round::default(), &self.slices);
        let own = slices.part(Place::Result, self.rank);
        if n == 0 {
            if copies {
                round.copy(own, Part::new(Place::Input, 0, own.len));
            }
            return Some(round);
        }
        for (above, below) in self.steps(n)? {
            round.send(above, own);
            round.receive(below, slices.part(Place::Result, below));
        }
        Some(round)
    }

    pub(crate) fn all_to_all(&self, n: usize) -> Option<Round> {
        let (mut round, slices) = (Round::default(), &self.slices);
        if n == 0 {
            round.copy(slices.part(Place::Result, self.rank), slices.part(Place::Input, self.rank));
            return Some(round);
        }
        for (above, below) in self.steps(n)? {
            round.send(above, slices.part(Place::Input, above));
            round.receive(below, slices.part(Place::Result, below));
        }
        Some(round)
    }

    pub(crate) fn scatter(&self, n: usize, root: usize) -> Option<Round> {
        let (mut round, slices) = (Round::default(), &self.slices);
        let own = Part::new(Place::Result, 0, slices.longest());
        match (n, self.rank == root) {
            (0, true) => round.copy(own, slices.part(Place::Input, root)),
            (0, false) => round.receive(root, own),
            (_, true) => {
                self.steps(n)?.for_each(|(above, _)| round.send(above, slices.part(Place::Input, above)));
            }
            (_, false) => return None,
        }
        Some(round)
    }

    pub(crate) fn gather(&self, n: usize, root: usize) -> Option<Round> {
        let (mut round, slices) = (Round::default(), &self.slices);
        let own = Part::new(Place::Input, 0, slices.longest());
        match (n, self.rank == root) {
            (0, true) => round.copy(slices.part(Place::Result, root), own),
            (0, false) => round.send(root, own),
            (_, true) => {
                self.steps(n)?.for_each(|(_, below)| round.receive(below, slices.part(Place::Result, below)));
            }
            (_, false) => return None,
        }
        Some(round)
    }
}
