//! A model: elements are the ranks that they are made of, in order, and all ranks run at once. Flaws of the
//! steps have to be found by it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// What is done to the steps before they are executed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// The operands are exchanged.
    Swapped,
    /// Results are copied before they are computed.
    CopiedFirst,
    /// The last rank's contribution is left out.
    LastLeftOut,
}

/// An element: which rank's elements of which number it is made of.
type Element = Vec<(usize, u64)>;

#[derive(Clone, Debug)]
struct Case {
    what: What,
    lengths: Vec<u64>,
    is_even: bool,
    in_place: bool,
    room: usize,
}

impl Case {
    fn ranks(&self) -> usize {
        self.lengths.len()
    }

    fn shares(&self) -> Shares {
        if self.is_even {
            Shares::even(self.lengths.iter().sum(), self.ranks())
        } else {
            Shares::of_lengths(self.lengths.iter().copied()).unwrap()
        }
    }
}

/// One rank: its memory, which has the contribution, the results and the slots.
struct Rank {
    rank: usize,
    memory: Vec<Element>,
    to: HashMap<usize, Sender<Vec<Element>>>,
    from: HashMap<usize, Receiver<Vec<Element>>>,
    flaw: Flaw,
}

impl Rank {
    fn run(&mut self, phases: &[Phase]) -> Result<(), String> {
        phases.iter().try_for_each(|phase| match phase {
            Phase::Exchange(sends, receives) => self.exchange(sends, receives),
            Phase::Compute(steps) => self.compute(steps),
            Phase::Copy(_) => Err("a reduction copies by steps".to_owned()),
        })
    }

    fn exchange(&mut self, sends: &[Message], receives: &[Message]) -> Result<(), String> {
        for message in sends {
            let data = self.memory[message.at as usize..][..message.len as usize].to_vec();
            self.to[&message.rank].send(data).map_err(|why| why.to_string())?;
        }
        for message in receives {
            let got = self.from[&message.rank].recv_timeout(Duration::from_secs(5));
            let got = got.map_err(|why| format!("{message:?}: {why}"))?;
            if got.len() as u64 != message.len {
                return Err(format!("{message:?} has {} elements", got.len()));
            }
            self.memory[message.at as usize..][..got.len()].clone_from_slice(&got);
        }
        Ok(())
    }

    fn compute(&mut self, steps: &[Step]) -> Result<(), String> {
        let mut steps = steps.to_vec();
        match self.flaw {
            Flaw::None | Flaw::Swapped => {}
            Flaw::CopiedFirst => steps.sort_by_key(|step| matches!(step, Step::Reduce { .. })),
            Flaw::LastLeftOut => drop(steps.pop()),
        }
        for step in steps {
            match step {
                Step::Reduce { to, a, b, count } => {
                    let (a, b) = if self.flaw == Flaw::Swapped { (b, a) } else { (a, b) };
                    for i in 0..count {
                        let both = [a + i, b + i].map(|at| self.memory[at as usize].clone());
                        self.memory[(to + i) as usize] = both.concat();
                    }
                }
                Step::Copy { to, from, count } => {
                    let copied = self.memory[from as usize..][..count as usize].to_vec();
                    self.memory[to as usize..][..count as usize].clone_from_slice(&copied);
                }
            }
        }
        Ok(())
    }
}

/// What a rank has to have where its results go; `None` where nothing is written.
fn wanted(case: &Case, rank: usize) -> Option<Vec<Element>> {
    let shares = case.shares();
    let of = |ranks: usize, n: u64| (0..ranks).map(|rank| (rank, n)).collect::<Element>();
    let all = |ranks: usize| (0..shares.count()).map(|n| of(ranks, n)).collect();
    match case.what {
        What::Allreduce => Some(all(case.ranks())),
        What::Reduce(root) => (rank == root).then(|| all(case.ranks())),
        What::ReduceScatter => Some(shares.of(rank).map(|n| of(case.ranks(), n)).collect()),
        What::Scan => Some(all(rank + 1)),
        What::Exscan => (rank > 0).then(|| all(rank)),
    }
}

/// Runs all ranks; in `Err`, what is wrong.
fn run(case: &Case, flaw: Flaw) -> Result<(), String> {
    let (ranks, shares) = (case.ranks(), case.shares());
    let count = shares.count();
    let (mut to, mut from) = (vec![HashMap::new(); ranks], Vec::new());
    from.resize_with(ranks, HashMap::new);
    for (a, to) in to.iter_mut().enumerate() {
        for (b, from) in from.iter_mut().enumerate().filter(|(b, _)| *b != a) {
            let (sender, receiver) = channel();
            to.insert(b, sender);
            from.insert(a, receiver);
        }
    }
    let buffers = Buffers { from: 0, to: if case.in_place { 0 } else { count }, slots: 2 * count };
    let made = |rank| Collective::new(case.what, rank, case.shares(), 1, buffers, case.room);
    if (0..ranks).any(|rank| made(rank).is_none()) {
        return Ok(());
    }
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for ((rank, to), from) in to.into_iter().enumerate().zip(from) {
            let (made, case) = (&made, case);
            running.push(scope.spawn(move || {
                let part = made(rank).ok_or("not made")?.with_slots(2 * count);
                let mut memory: Vec<Element> = (0..count).map(|n| vec![(rank, n)]).collect();
                memory.resize(2 * count as usize + part.room(), vec![(usize::MAX, 0)]);
                let before = memory.clone();
                let mut means = Rank { rank, memory, to, from, flaw };
                means.run(&part.phases())?;
                let at = buffers.to as usize;
                let results = wanted(case, rank);
                let len = results.as_ref().map_or(0, Vec::len);
                if results.is_some_and(|results| means.memory[at..at + len] != results) {
                    return Err(format!("rank {}: wrong results", means.rank));
                }
                let is_kept = |range: std::ops::Range<usize>| means.memory[range.clone()] == before[range];
                let is_untouched = case.in_place || is_kept(0..count as usize);
                // In place what a rank does not get may be changed, but of the collectives without results.
                let is_silent = len > 0 || is_kept(at..at + count as usize);
                if is_untouched && is_silent { Ok(()) } else { Err("written elsewhere".to_owned()) }
            }));
        }
        running.into_iter().try_for_each(|rank| rank.join().map_err(|_| "panicked".to_owned())?)
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let lengths = proptest::collection::vec(0u64..900, 2..6);
    (lengths, 0usize..5, any::<bool>(), any::<bool>(), 256usize..4096, 0usize..6).prop_map(
        |(lengths, what, is_even, in_place, room, root)| {
            let root = root % lengths.len();
            let what =
                [What::Allreduce, What::Reduce(root), What::ReduceScatter, What::Scan, What::Exscan][what];
            let is_even = is_even || what != What::ReduceScatter;
            let room = room + lengths.len() * 256;
            Case { what, lengths, is_even, in_place, room }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn results_are_in_the_order_of_ranks_everywhere(case in cases()) {
        prop_assert_eq!(run(&case, Flaw::None), Ok(()));
    }
}

#[test]
fn flaws_are_found() {
    let case = |what, in_place| Case { what, lengths: vec![200; 3], is_even: true, in_place, room: 4096 };
    for (flaw, case) in [
        (Flaw::Swapped, case(What::Allreduce, false)),
        (Flaw::Swapped, case(What::Scan, true)),
        (Flaw::CopiedFirst, case(What::Scan, false)),
        (Flaw::CopiedFirst, case(What::Exscan, true)),
        (Flaw::LastLeftOut, case(What::Reduce(1), false)),
        (Flaw::LastLeftOut, case(What::ReduceScatter, true)),
    ] {
        assert_eq!(run(&case, Flaw::None), Ok(()));
        assert!(run(&case, flaw).is_err(), "{flaw:?} of {case:?} is not found");
    }
}

#[test]
fn what_has_no_room_or_would_overwrite_itself_is_not_made() {
    let buffers = |to| Buffers { from: 0, to, slots: 0 };
    let made = |what, to, room| Collective::new(what, 0, Shares::even(4096, 2), 4, buffers(to), room);
    assert!(made(What::Allreduce, 0, 2047).is_none() && made(What::Allreduce, 0, 2048).is_some());
    assert!(made(What::ReduceScatter, 0, 2048).is_none() && made(What::ReduceScatter, 9, 2048).is_some());
    assert!(made(What::ReduceScatter, 0, 1 << 20).is_some());
    assert!(Collective::new(What::Scan, 2, Shares::even(9, 2), 4, buffers(0), 1 << 20).is_none());
    assert!(Collective::new(What::Scan, 0, Shares::even(9, 1), 4, buffers(0), 1 << 20).is_none());
}
