//! Binomial trees, and recursive doubling.

use crate::{Part, Place, Round, Shape};

/// A member of a binomial tree. Counted from the root on, the parent of a member is the one without its
/// lowest bit, and its children have one of the lower bits beside its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    members: usize,
    root: usize,
    /// This member's number from the root on.
    from_root: usize,
}

impl Tree {
    pub(crate) fn new(&Shape { members, rank, root, .. }: &Shape) -> Tree {
        Tree { members, root, from_root: (rank + members - root) % members }
    }

    fn parent(&self) -> Option<usize> {
        let at = self.from_root;
        (at > 0).then(|| self.member(at & (at - 1)))
    }

    /// The nearest first: those have the fewest below them.
    fn children(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let Tree { members, from_root, .. } = *self;
        let bits = if from_root > 0 { from_root.trailing_zeros() } else { usize::BITS - 1 };
        let tree = *self;
        (0..bits)
            .map(|bit| 1usize << bit)
            .take_while(move |bit| from_root + bit < members)
            .map(move |bit| tree.member(from_root + bit))
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn member(&self, from_root: usize) -> usize {
        (from_root + self.root) % self.members
    }

    pub(crate) fn broadcast(&self, n: usize, bytes: usize) -> Option<Round> {
        let (mut round, whole) = (Round::default(), Part::new(Place::Result, 0, bytes));
        match n {
            0 => self.parent().into_iter().for_each(|parent| round.receive(parent, whole)),
            1 => self.children().rev().for_each(|child| round.send(child, whole)),
            _ => return None,
        }
        Some(round)
    }

    /// Room for what a child has, and below the root for what is reduced so far.
    pub(crate) fn scratch(&self, bytes: usize) -> usize {
        match (self.children().next(), self.parent()) {
            (None, _) => 0,
            (Some(_), None) => bytes,
            (Some(_), Some(_)) => 2 * bytes,
        }
    }

    pub(crate) fn reduce(&self, n: usize, bytes: usize) -> Option<Round> {
        let mut round = Round::default();
        let (input, room) = (Part::new(Place::Input, 0, bytes), Part::new(Place::Scratch, 0, bytes));
        let parent = self.parent();
        let leaf = self.children().next().is_none();
        let sum = match parent {
            None => input.of(Place::Result),
            Some(_) if leaf => input,
            Some(_) => Part::new(Place::Scratch, bytes, bytes),
        };
        if n == 0 {
            if sum != input {
                round.copy(sum, input);
            }
            return Some(round);
        }
        if let Some(child) = self.children().nth(n - 1) {
            round.receive(child, room);
            round.reduce(sum, room);
            return Some(round);
        }
        round.send(parent.filter(|_| n - 1 == self.children().count())?, sum);
        Some(round)
    }
}

/// A member of an allreduce by recursive doubling. Where the members are no power of two, each of the first
/// ones with an even number leaves its part to the next one, which sends it the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubling {
    rank: usize,
    /// Members beyond a power of two.
    beyond: usize,
    /// Rounds among the others.
    rounds: usize,
}

impl Doubling {
    pub(crate) fn new(&Shape { members, rank, .. }: &Shape) -> Doubling {
        let rounds = members.ilog2();
        Doubling { rank, beyond: members - (1 << rounds), rounds: rounds as usize }
    }

    /// Whether the member leaves its part to the next one, or takes the part of the one before.
    fn folds(&self) -> Option<bool> {
        (self.rank < 2 * self.beyond).then_some(self.rank % 2 == 0)
    }

    pub(crate) fn round(&self, n: usize, bytes: usize) -> Option<Round> {
        let mut round = Round::default();
        let (result, room) = (Part::new(Place::Result, 0, bytes), Part::new(Place::Scratch, 0, bytes));
        let (leaves, takes) = (self.folds() == Some(true), self.folds() == Some(false));
        if n == 0 {
            round.copy(result, result.of(Place::Input));
        } else if n == 1 {
            if leaves {
                round.send(self.rank + 1, result);
            } else if takes {
                round.receive(self.rank - 1, room);
                round.reduce(result, room);
            }
        } else if n < self.rounds + 2 {
            if !leaves {
                let own = if takes { self.rank / 2 } else { self.rank - self.beyond };
                let other = own ^ 1 << (n - 2);
                let other = if other < self.beyond { 2 * other + 1 } else { other + self.beyond };
                round.send(other, result);
                round.receive(other, room);
                round.reduce(result, room);
            }
        } else if n == self.rounds + 2 {
            if leaves {
                round.receive(self.rank + 1, result);
            } else if takes {
                round.send(self.rank - 1, result);
            }
        } else {
            return None;
        }
        Some(round)
    }
}
