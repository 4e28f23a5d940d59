//! Collectives that compute nothing, and of which a rank knows its own blocks alone: what it copies, sends
//! and receives.
//!
//! Sender and receiver of a block know its length, and no other rank has to.

use super::phase::{ALIGN, Copy, Phase};
use super::steps::Message;

/// A block of a rank's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The first byte.
    pub at: u64,
    /// How many.
    pub len: u64,
}

/// One rank's part.
#[derive(Clone, Debug)]
pub struct Vectors {
    rank: usize,
    /// What goes to each rank, and what comes from each.
    sends: Vec<Block>,
    receives: Vec<Block>,
    /// Where what is received in place waits for its place, and the most bytes of a block at once.
    slots: Option<(u64, u64)>,
}

impl Vectors {
    /// That of rank `rank`: what it sends to each rank, and what it receives from each, which is elsewhere.
    /// `None` without another rank.
    pub fn new(rank: usize, sends: Vec<Block>, receives: Vec<Block>) -> Option<Vectors> {
        let is_one = sends.len() == receives.len() && sends.len() > 1 && rank < sends.len();
        is_one.then_some(Vectors { rank, sends, receives, slots: None })
    }

    /// That of rank `rank` which receives what it sends a block for where that block is. Each rank has `room`
    /// bytes for what it receives, the same number at all. `None` where a block has none of it.
    pub fn in_place(rank: usize, blocks: Vec<Block>, room: usize) -> Option<Vectors> {
        let piece = (room / blocks.len().max(1)) as u64 / ALIGN * ALIGN;
        let slots = (piece > 0).then_some((0, piece))?;
        let receives = blocks.clone();
        Some(Vectors { slots: Some(slots), ..Vectors::new(rank, blocks, receives)? })
    }

    /// Bytes that it needs for what it receives.
    pub fn room(&self) -> usize {
        let Some((_, piece)) = self.slots else { return 0 };
        let all = self.others().map(|(_, block)| block.len.min(piece).next_multiple_of(ALIGN));
        all.sum::<u64>() as usize
    }

    /// The same with that memory.
    pub fn with_slots(mut self, at: u64) -> Vectors {
        self.slots = self.slots.map(|(_, piece)| (at, piece));
        self
    }

    /// What comes from each other rank.
    fn others(&self) -> impl Iterator<Item = (usize, &Block)> {
        self.receives.iter().enumerate().filter(|(rank, _)| *rank != self.rank)
    }

    /// What the rank does.
    pub fn phases(&self) -> Vec<Phase> {
        if let Some((slots, piece)) = self.slots {
            return self.phases_in_place(slots, piece);
        }
        let (from, to) = (self.sends[self.rank], self.receives[self.rank]);
        let own = Copy { to: to.at, from: from.at, len: from.len.min(to.len) };
        let own = (own.len > 0 && own.to != own.from).then_some(own);
        let message = |(rank, block): (usize, &Block)| {
            (block.len > 0 && rank != self.rank).then_some(Message { rank, at: block.at, len: block.len })
        };
        let [sends, receives] = [&self.sends, &self.receives]
            .map(|blocks| blocks.iter().enumerate().filter_map(message).collect::<Vec<_>>());
        let phases = [Phase::Copy(own.into_iter().collect()), Phase::Exchange(sends, receives)];
        phases.into_iter().filter(|phase| !phase.is_empty()).collect()
    }

    /// Pieces of all blocks at once: two ranks exchange as many of theirs, whose blocks are as long.
    fn phases_in_place(&self, slots: u64, piece: u64) -> Vec<Phase> {
        let (mut phases, mut begin) = (Vec::new(), 0);
        loop {
            let (mut sends, mut receives, mut copies, mut slot) = (Vec::new(), Vec::new(), Vec::new(), slots);
            for (rank, block) in self.others() {
                let len = block.len.saturating_sub(begin).min(piece);
                if len > 0 {
                    let at = block.at + begin;
                    sends.push(Message { rank, at, len });
                    receives.push(Message { rank, at: slot, len });
                    copies.push(Copy { to: at, from: slot, len });
                }
                slot += block.len.min(piece).next_multiple_of(ALIGN);
            }
            if sends.is_empty() {
                return phases;
            }
            phases.push(Phase::Exchange(sends, receives));
            phases.push(Phase::Copy(copies));
            begin += piece;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// What is done to a rank's phases.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Flaw {
        None,
        /// What is received in place is written over what is still to be sent.
        NoSlots,
        /// The rank's own block is not copied.
        NotCopied,
        /// The last message that a rank sends is left out.
        LeftOut,
    }

    /// Lengths by sender and receiver, and the room of a rank in place.
    #[derive(Clone, Debug)]
    struct Case {
        lengths: Vec<Vec<u64>>,
        room: Option<usize>,
    }

    /// Bytes are named: sender, receiver, number.
    type Byte = (usize, usize, u64);

    const NONE: Byte = (usize::MAX, 0, 0);
    /// Between two blocks.
    const GAP: u64 = 3;

    /// Blocks with gaps between them, from there on; and what follows them.
    fn blocks(lengths: impl Iterator<Item = u64>, at: u64) -> (Vec<Block>, u64) {
        let mut next = at;
        let block = |len| {
            let at = next + GAP;
            next = at + len;
            Block { at, len }
        };
        (lengths.map(block).collect(), next)
    }

    struct Rank {
        memory: Vec<Byte>,
        receives: Vec<Block>,
        phases: Vec<Phase>,
        done: usize,
        is_sent: bool,
    }

    fn rank_of(case: &Case, rank: usize, flaw: Flaw) -> Rank {
        let ranks = case.lengths.len();
        let sent = (0..ranks).map(|to| case.lengths[rank][to]);
        let (sends, end) = blocks(sent, 0);
        let (part, receives, slots) = match case.room {
            Some(room) => (Vectors::in_place(rank, sends.clone(), room), sends.clone(), end + GAP),
            None => {
                let (receives, last) = blocks((0..ranks).map(|from| case.lengths[from][rank]), end);
                (Vectors::new(rank, sends.clone(), receives.clone()), receives, last)
            }
        };
        let part = part.unwrap().with_slots(slots);
        let mut memory = vec![NONE; slots as usize + part.room()];
        for (to, block) in sends.iter().enumerate() {
            (0..block.len).for_each(|n| memory[(block.at + n) as usize] = (rank, to, n));
        }
        let mut phases = part.phases();
        match flaw {
            Flaw::NotCopied => phases.retain(|phase| !matches!(phase, Phase::Copy(_))),
            Flaw::LeftOut => phases.iter_mut().for_each(|phase| {
                if let Phase::Exchange(sends, _) = phase {
                    sends.pop();
                }
            }),
            Flaw::NoSlots => {
                let own = Vectors { slots: None, ..part };
                phases = own.phases();
            }
            Flaw::None => {}
        }
        Rank { memory, receives, phases, done: 0, is_sent: false }
    }

    /// Runs all ranks, as far ahead of each other as messages let them, the last one first.
    fn run(case: &Case, flaw: Flaw) -> Result<(), String> {
        let ranks = case.lengths.len();
        let mut all: Vec<_> = (0..ranks).map(|rank| rank_of(case, rank, flaw)).collect();
        let mut ways: HashMap<(usize, usize), Vec<Vec<Byte>>> = HashMap::new();
        let mut went = true;
        while std::mem::take(&mut went) {
            for (me, rank) in all.iter_mut().enumerate().rev() {
                let Some(phase) = rank.phases.get(rank.done).cloned() else { continue };
                match phase {
                    Phase::Copy(copies) => {
                        for Copy { to, from, len } in copies {
                            rank.memory.copy_within(from as usize..(from + len) as usize, to as usize);
                        }
                    }
                    Phase::Exchange(sends, receives) => {
                        // A message may still be under way when another one comes.
                        let are_apart =
                            |a: &Message, b: &Message| a.at + a.len <= b.at || b.at + b.len <= a.at;
                        if !sends.iter().all(|sent| receives.iter().all(|got| are_apart(sent, got))) {
                            return Err(format!("rank {me} receives where it sends"));
                        }
                        if !std::mem::replace(&mut rank.is_sent, true) {
                            went = true;
                            for Message { rank: to, at, len } in sends {
                                let data = rank.memory[at as usize..(at + len) as usize].to_vec();
                                ways.entry((me, to)).or_default().push(data);
                            }
                        }
                        let is_here =
                            |m: &Message| ways.get(&(m.rank, me)).is_some_and(|way| !way.is_empty());
                        if !receives.iter().all(is_here) {
                            continue;
                        }
                        for Message { rank: from, at, len } in receives {
                            let data = ways.get_mut(&(from, me)).map(|way| way.remove(0)).unwrap_or_default();
                            if data.len() as u64 != len {
                                return Err(format!("{} bytes for {len}", data.len()));
                            }
                            rank.memory[at as usize..(at + len) as usize].copy_from_slice(&data);
                        }
                        rank.is_sent = false;
                    }
                    Phase::Compute(_) => return Err("nothing is computed".to_owned()),
                }
                rank.done += 1;
                went = true;
            }
        }
        if all.iter().any(|rank| rank.done < rank.phases.len()) {
            return Err("a rank waits".to_owned());
        }
        if ways.values().any(|way| !way.is_empty()) {
            return Err("a message without a receive".to_owned());
        }
        for (me, rank) in all.iter().enumerate() {
            for (from, block) in rank.receives.iter().enumerate() {
                let wanted: Vec<Byte> = (0..block.len).map(|n| (from, me, n)).collect();
                let got = &rank.memory[block.at as usize..(block.at + block.len) as usize];
                if got != wanted {
                    return Err(format!("rank {me} has {got:?} of rank {from}"));
                }
                let gap = &rank.memory[(block.at - GAP) as usize..block.at as usize];
                if gap.iter().any(|byte| *byte != NONE) {
                    return Err(format!("rank {me}: written before the block of rank {from}"));
                }
            }
        }
        Ok(())
    }

    fn cases() -> impl Strategy<Value = Case> {
        (2usize..6).prop_flat_map(|ranks| {
            let len = prop_oneof![Just(0u64), 0u64..900];
            let lengths = proptest::collection::vec(proptest::collection::vec(len, ranks), ranks);
            (lengths, proptest::option::of(1usize..6)).prop_map(move |(mut lengths, room)| {
                if room.is_some() {
                    // Two ranks have as much for each other.
                    let of = lengths.clone();
                    for (a, row) in lengths.iter_mut().enumerate() {
                        row.iter_mut().enumerate().take(a).for_each(|(b, len)| *len = of[b][a]);
                    }
                }
                Case { lengths, room: room.map(|pieces| pieces * ranks * ALIGN as usize / 2 + ranks * 256) }
            })
        })
    }

    proptest! {
        #[test]
        fn each_rank_gets_its_blocks_and_no_gap_is_written(case in cases()) {
            prop_assert_eq!(run(&case, Flaw::None), Ok(()));
        }
    }

    #[test]
    fn flaws_are_found() {
        let case = |room| Case { lengths: vec![vec![700; 3]; 3], room };
        for (flaw, case) in [
            (Flaw::NoSlots, case(Some(768))),
            (Flaw::NotCopied, case(None)),
            (Flaw::NotCopied, case(Some(768))),
            (Flaw::LeftOut, case(None)),
            (Flaw::LeftOut, case(Some(1536))),
        ] {
            assert_eq!(run(&case, Flaw::None), Ok(()));
            assert!(run(&case, flaw).is_err(), "{flaw:?} of {case:?} is not found");
        }
    }

    #[test]
    fn what_has_no_room_or_no_other_rank_is_not_made() {
        let blocks = |ranks| vec![Block { at: 256, len: 9 }; ranks];
        assert!(Vectors::new(0, blocks(1), blocks(1)).is_none());
        assert!(Vectors::new(2, blocks(2), blocks(2)).is_none());
        assert!(Vectors::new(0, blocks(2), blocks(3)).is_none());
        assert!(Vectors::in_place(0, blocks(2), 511).is_none());
        assert_eq!(Vectors::in_place(0, blocks(3), 1 << 20).map(|of| of.room()), Some(512));
    }
}
