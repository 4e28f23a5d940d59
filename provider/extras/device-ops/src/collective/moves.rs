//! Collectives that compute nothing: what a rank copies, sends and receives.
//!
//! A block goes from the rank that has it to the rank that wants it in one message, of memory as it is. The
//! root of a broadcast sends each rank a block of its own, which that rank sends on to the others: so the
//! root sends less than two times the data, whatever the number of ranks.

use super::Shares;
use super::phase::{Copy, Phase};
use super::steps::Message;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// All ranks get the root's data.
    Bcast(usize),
    /// The root gets a block of each rank.
    Gather(usize),
    /// Each rank gets a block of the root's.
    Scatter(usize),
    /// All ranks get a block of each rank.
    Allgather,
    /// Each rank gets a block of each rank.
    Alltoall,
}

/// Messages that go out, and those that come in.
type Exchange = (Vec<Message>, Vec<Message>);

/// One rank's part.
#[derive(Clone, Debug)]
pub struct Moves {
    what: Move,
    rank: usize,
    /// In bytes. They are the ranks', one behind another in memory of all ranks' data.
    blocks: Shares,
    from: u64,
    to: u64,
}

impl Moves {
    /// That of rank `rank`. At `from` is the rank's block, or in those where a rank sends different blocks
    /// the blocks of all; at `to` is room for what it gets. A broadcast has one address, which is both. In
    /// place they name the block in the memory of all. `None` without another rank, and of an exchange of
    /// all with all in place.
    pub fn new(what: Move, rank: usize, blocks: Shares, from: u64, to: u64) -> Option<Moves> {
        let ranks = blocks.ranks();
        let root = match what {
            Move::Bcast(root) | Move::Gather(root) | Move::Scatter(root) => root,
            Move::Allgather => 0,
            Move::Alltoall if from == to => return None,
            Move::Alltoall => 0,
        };
        (ranks > 1 && rank < ranks && root < ranks).then_some(Moves { what, rank, blocks, from, to })
    }

    /// Where a rank's block is in the memory of all.
    fn at(&self, all: u64, rank: usize) -> u64 {
        all + self.blocks.of(rank).start
    }

    fn message(&self, rank: usize, at: u64, block: usize) -> Option<Message> {
        let of = self.blocks.of(block);
        let len = of.end - of.start;
        (len > 0).then_some(Message { rank, at, len })
    }

    fn others(&self, but: usize) -> impl Iterator<Item = usize> {
        let own = self.rank;
        (0..self.blocks.ranks()).filter(move |rank| *rank != own && *rank != but)
    }

    /// What the rank does.
    pub fn phases(&self) -> Vec<Phase> {
        let own = self.own().map(|own| Phase::Copy(vec![own]));
        let exchanges =
            self.exchanges().into_iter().map(|(sends, receives)| Phase::Exchange(sends, receives));
        own.into_iter().chain(exchanges).filter(|phase| !phase.is_empty()).collect()
    }

    /// What the rank copies of its own data.
    fn own(&self) -> Option<Copy> {
        let Moves { rank, from, to, .. } = *self;
        let (to, from) = match self.what {
            Move::Bcast(_) => return None,
            Move::Gather(root) if root == rank => (self.at(to, rank), from),
            Move::Scatter(root) if root == rank => (to, self.at(from, rank)),
            Move::Gather(_) | Move::Scatter(_) => return None,
            Move::Allgather => (self.at(to, rank), from),
            Move::Alltoall => (self.at(to, rank), self.at(from, rank)),
        };
        let len = self.message(rank, 0, rank)?.len;
        (to != from).then_some(Copy { to, from, len })
    }

    /// What it sends and receives, one exchange after another.
    fn exchanges(&self) -> Vec<Exchange> {
        let Moves { rank, from, to, .. } = *self;
        let all = self.blocks.ranks();
        // The messages to other ranks of their blocks, and those from them of theirs.
        let each = |at: u64| self.others(all).filter_map(|r| self.message(r, self.at(at, r), r)).collect();
        let own = |at: u64, but: usize| self.others(but).filter_map(|r| self.message(r, at, rank)).collect();
        match self.what {
            Move::Bcast(root) if root == rank => {
                let both = |r| [self.message(r, self.at(to, root), root), self.message(r, self.at(to, r), r)];
                vec![(self.others(all).flat_map(both).flatten().collect(), Vec::new())]
            }
            Move::Bcast(root) => {
                let of_root = [root, rank].map(|block| self.message(root, self.at(to, block), block));
                let of_others = self.others(root).filter_map(|r| self.message(r, self.at(to, r), r));
                vec![
                    (Vec::new(), of_root.into_iter().flatten().collect()),
                    (own(self.at(to, rank), root), of_others.collect()),
                ]
            }
            Move::Gather(root) if root == rank => vec![(Vec::new(), each(to))],
            Move::Scatter(root) if root == rank => vec![(each(from), Vec::new())],
            Move::Gather(root) => vec![(self.message(root, from, rank).into_iter().collect(), Vec::new())],
            Move::Scatter(root) => vec![(Vec::new(), self.message(root, to, rank).into_iter().collect())],
            Move::Allgather => vec![(own(from, all), each(to))],
            Move::Alltoall => vec![(each(from), each(to))],
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    /// What is done to a rank's messages before they go.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Flaw {
        None,
        /// The rank's own block is not copied.
        NotCopied,
        /// The first message of the last exchange is left out at both ends.
        LeftOut,
        /// Messages to a rank overtake each other.
        Overtaken,
    }

    #[derive(Clone, Debug)]
    struct Case {
        what: Move,
        lengths: Vec<u64>,
        in_place: bool,
    }

    /// Bytes are named: of which rank, and the number of it there.
    type Byte = (usize, u64);

    const NONE: Byte = (usize::MAX, 0);

    impl Case {
        fn blocks(&self) -> Shares {
            Shares::of_lengths(self.lengths.iter().copied()).unwrap()
        }

        /// Where a rank's two buffers are: `from` at 0, `to` behind it.
        fn buffers(&self, rank: usize) -> (u64, u64) {
            let (blocks, to) = (self.blocks(), self.blocks().count());
            let own = blocks.of(rank).start;
            match self.what {
                Move::Bcast(_) => (to, to),
                Move::Gather(root) if self.in_place && root == rank => (to + own, to),
                Move::Allgather if self.in_place => (to + own, to),
                Move::Scatter(root) if self.in_place && root == rank => (0, own),
                _ => (0, to),
            }
        }

        /// What is at `to` in the end.
        fn wanted(&self, rank: usize) -> Option<Vec<Byte>> {
            let blocks = self.blocks();
            let of = |r: usize, block: usize| blocks.of(block).map(move |n| (r, n));
            let firsts = |r: usize| (0..blocks.of(r).end - blocks.of(r).start).map(move |n| (r, n));
            let all = || (0..blocks.ranks()).flat_map(firsts).collect();
            match self.what {
                Move::Bcast(root) => Some((0..blocks.count()).map(|n| (root, n)).collect()),
                Move::Gather(root) => (root == rank).then(all),
                Move::Allgather => Some(all()),
                Move::Scatter(root) => Some(of(root, rank).collect()),
                Move::Alltoall => Some((0..blocks.ranks()).flat_map(|r| of(r, rank)).collect()),
            }
        }

        fn memory(&self, rank: usize) -> Vec<Byte> {
            let count = self.blocks().count();
            let mut memory = vec![NONE; 2 * count as usize];
            let (from, to) = self.buffers(rank);
            let own = self.blocks().of(rank);
            let len = match self.what {
                Move::Bcast(root) if root != rank => 0,
                Move::Scatter(root) if root != rank => 0,
                Move::Gather(_) | Move::Allgather => own.end - own.start,
                _ => count,
            };
            let at = if matches!(self.what, Move::Bcast(_)) { to } else { from };
            for n in 0..len {
                memory[(at + n) as usize] = (rank, n);
            }
            memory
        }
    }

    fn run(case: &Case, flaw: Flaw) -> Result<(), String> {
        let ranks = case.lengths.len();
        let part = |rank| {
            let (from, to) = case.buffers(rank);
            Moves::new(case.what, rank, case.blocks(), from, to).ok_or("not made")
        };
        let parts = (0..ranks).map(part).collect::<Result<Vec<_>, _>>()?;
        let mut memory: Vec<_> = (0..ranks).map(|rank| case.memory(rank)).collect();
        for (part, memory) in parts.iter().zip(&mut memory) {
            if let Some(Copy { to, from, len }) = part.own().filter(|_| flaw != Flaw::NotCopied) {
                memory.copy_within(from as usize..(from + len) as usize, to as usize);
            }
        }
        let mut ways: HashMap<(usize, usize), VecDeque<Vec<Byte>>> = HashMap::new();
        let exchanges: Vec<_> = parts.iter().map(Moves::exchanges).collect();
        for n in 0..exchanges.iter().map(Vec::len).max().unwrap_or(0) {
            for (rank, (sends, _)) in
                exchanges.iter().enumerate().filter_map(|(r, all)| Some((r, all.get(n)?)))
            {
                let is_left_out = flaw == Flaw::LeftOut && rank == ranks - 1;
                for Message { rank: to, at, len } in sends.iter().skip(usize::from(is_left_out)) {
                    let data = memory[rank][*at as usize..(at + len) as usize].to_vec();
                    let way = ways.entry((rank, *to)).or_default();
                    if flaw == Flaw::Overtaken { way.push_front(data) } else { way.push_back(data) }
                }
            }
            for (rank, (_, receives)) in
                exchanges.iter().enumerate().filter_map(|(r, all)| Some((r, all.get(n)?)))
            {
                for Message { rank: from, at, len } in receives {
                    let Some(data) = ways.get_mut(&(*from, rank)).and_then(VecDeque::pop_front) else {
                        return Err(format!("rank {rank} waits for {from}"));
                    };
                    if data.len() as u64 != *len {
                        return Err(format!("{} bytes for {len}", data.len()));
                    }
                    memory[rank][*at as usize..(at + len) as usize].copy_from_slice(&data);
                }
            }
        }
        if ways.values().any(|way| !way.is_empty()) {
            return Err("a message without a receive".to_owned());
        }
        for (rank, memory) in memory.iter().enumerate() {
            let (to, before) = (case.buffers(rank).1 as usize, case.memory(rank));
            let wanted = case.wanted(rank).unwrap_or_default();
            let end = to + wanted.len();
            if memory[to..end] != wanted {
                return Err(format!("rank {rank} has {:?}, not {wanted:?}", &memory[to..end]));
            }
            if memory[..to] != before[..to] || memory[end..] != before[end..] {
                return Err(format!("rank {rank}: written elsewhere"));
            }
        }
        Ok(())
    }

    fn cases() -> impl Strategy<Value = Case> {
        let lengths = proptest::collection::vec(0u64..20, 2..7);
        (lengths, 0usize..5, 0usize..6, any::<bool>()).prop_map(|(mut lengths, what, root, in_place)| {
            let root = root % lengths.len();
            let all =
                [Move::Bcast(root), Move::Gather(root), Move::Scatter(root), Move::Allgather, Move::Alltoall];
            let what = all[what];
            if what == Move::Alltoall {
                let len = lengths[0].max(1);
                lengths.fill(len);
            }
            Case { what, lengths, in_place }
        })
    }

    proptest! {
        #[test]
        fn each_rank_gets_its_blocks_and_nothing_else_is_written(case in cases()) {
            prop_assert_eq!(run(&case, Flaw::None), Ok(()));
        }
    }

    #[test]
    fn flaws_are_found() {
        let case = |what, in_place| Case { what, lengths: vec![5, 5, 5], in_place };
        for (flaw, case) in [
            (Flaw::NotCopied, case(Move::Allgather, false)),
            (Flaw::NotCopied, case(Move::Alltoall, false)),
            (Flaw::NotCopied, case(Move::Scatter(1), false)),
            (Flaw::LeftOut, case(Move::Bcast(0), false)),
            (Flaw::LeftOut, case(Move::Gather(0), true)),
            (Flaw::Overtaken, case(Move::Bcast(1), false)),
        ] {
            assert_eq!(run(&case, Flaw::None), Ok(()));
            assert!(run(&case, flaw).is_err(), "{flaw:?} of {case:?} is not found");
        }
    }

    #[test]
    fn what_would_overwrite_itself_or_has_no_root_is_not_made() {
        let made = |what, to| Moves::new(what, 0, Shares::even(640, 2), 0, to).is_some();
        assert!(made(Move::Alltoall, 640) && !made(Move::Alltoall, 0));
        assert!(made(Move::Bcast(1), 0) && !made(Move::Bcast(2), 0));
        assert!(Moves::new(Move::Allgather, 0, Shares::even(640, 1), 0, 640).is_none());
        assert!(Moves::new(Move::Allgather, 2, Shares::even(640, 2), 0, 640).is_none());
    }
}
