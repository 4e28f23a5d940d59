//! Members whose messages are queues, and whose elements are numbers of 8 bytes that are added.

use std::collections::{HashMap, VecDeque};

use collective::{Kind, Local, Part, Place, Round, Schedule, Shape, Transfer};

/// Element `at` of the input of a member.
pub fn element(rank: usize, at: usize) -> u64 {
    (rank as u64 + 1) * 1_000_003 + at as u64 * 17
}

fn input(shape: &Shape, rank: usize) -> Vec<u64> {
    let (len, _) = Shape { rank, ..*shape }.lengths();
    (0..len / 8).map(|at| element(rank, at)).collect()
}

/// What a member's result is to be.
pub fn expected(shape: &Shape, rank: usize) -> Vec<u64> {
    let Shape { kind, members, root, count, .. } = *shape;
    let sum = |at: usize| (0..members).fold(0u64, |sum, m| sum.wrapping_add(element(m, at)));
    let is_root = rank == root;
    match kind {
        Kind::Barrier => Vec::new(),
        Kind::Broadcast => (0..count).map(|at| element(root, at)).collect(),
        Kind::AllToAll => {
            (0..members).flat_map(|m| (0..count).map(move |at| element(m, rank * count + at))).collect()
        }
        Kind::AllReduce => (0..count).map(sum).collect(),
        Kind::ReduceScatter => (0..count).map(|at| sum(rank * count + at)).collect(),
        Kind::Reduce if is_root => (0..count).map(sum).collect(),
        Kind::Scatter => (0..count).map(|at| element(root, rank * count + at)).collect(),
        Kind::AllGather => (0..members).flat_map(|m| (0..count).map(move |at| element(m, at))).collect(),
        Kind::Gather if is_root => {
            (0..members).flat_map(|m| (0..count).map(move |at| element(m, at))).collect()
        }
        Kind::Reduce | Kind::Gather => Vec::new(),
    }
}

struct Member {
    schedule: Schedule,
    round: Option<Round>,
    /// Transfers of the round that have yet to be done.
    left: Vec<Transfer>,
    memory: HashMap<Place, Vec<u64>>,
    sent: usize,
    /// Rounds that have begun.
    begun: usize,
}

pub struct Members {
    all: Vec<Member>,
    /// By sender and receiver.
    under_way: HashMap<(usize, usize), VecDeque<Vec<u64>>>,
    held: Option<usize>,
    most: usize,
}

impl Members {
    pub fn new(shape: Shape) -> Members {
        let all = (0..shape.members)
            .map(|rank| {
                let shape = Shape { rank, ..shape };
                let schedule = Schedule::new(shape).expect("small sizes");
                let (_, result) = shape.lengths();
                let mut into = vec![0xdead; result / 8];
                if shape.kind == Kind::Broadcast && rank == shape.root {
                    into = (0..shape.count).map(|at| element(rank, at)).collect();
                }
                let scratch = vec![0xbeef; schedule.scratch() / 8];
                let memory = HashMap::from([
                    (Place::Input, input(&shape, rank)),
                    (Place::Result, into),
                    (Place::Scratch, scratch),
                ]);
                Member { schedule, round: None, left: Vec::new(), memory, sent: 0, begun: 0 }
            })
            .collect();
        Members { all, under_way: HashMap::new(), held: None, most: usize::MAX }
    }

    /// This member does not call.
    pub fn hold(&mut self, rank: usize) {
        self.held = Some(rank);
    }

    pub fn let_go(&mut self) {
        self.held = None;
    }

    /// The members leave out the last round of a barrier.
    pub fn leave_out_last_round(&mut self) {
        self.most = self.all.len().next_power_of_two().trailing_zeros() as usize - 1;
    }

    /// Goes on until no member can.
    pub fn run(&mut self, order: &[u16]) {
        let members = self.all.len();
        let (mut at, mut idle) = (0, 0);
        while idle < members {
            let start = usize::from(order[at % order.len()]) % members;
            at += 1;
            idle = 0;
            for rank in (0..members).map(|i| (start + i) % members) {
                if self.held != Some(rank) && self.step(rank, at) {
                    break;
                }
                idle += 1;
            }
        }
    }

    /// One transfer of a member, or the end of its round. Whether there was one.
    fn step(&mut self, rank: usize, at: usize) -> bool {
        let member = &mut self.all[rank];
        if member.round.is_none() {
            if member.begun == self.most {
                return false;
            }
            let Some(round) = member.schedule.next_round() else { return false };
            member.begun += 1;
            overlaps_nothing(&round);
            member.left = round.transfers.clone();
            member.round = Some(round);
            return true;
        }
        if member.left.is_empty() {
            let round = member.round.take().expect("has one");
            round.locals.iter().for_each(|local| run_local(&mut member.memory, local));
            return true;
        }
        // Between two members in order; else in any.
        for i in 0..member.left.len() {
            let i = (i + at) % member.left.len();
            let Transfer { member: other, sends, part } = member.left[i];
            assert_ne!(other, rank);
            let first = member.left.iter().position(|t| (t.member, t.sends) == (other, sends));
            if first != Some(i) {
                continue;
            }
            if sends {
                let bytes = member.memory[&part.place][range(&part)].to_vec();
                member.sent += part.len;
                self.under_way.entry((rank, other)).or_default().push_back(bytes);
            } else {
                let queue = self.under_way.entry((other, rank)).or_default();
                let Some(bytes) = queue.pop_front() else { continue };
                member.memory.get_mut(&part.place).expect("there")[range(&part)].copy_from_slice(&bytes);
            }
            member.left.remove(i);
            return true;
        }
        false
    }

    /// Members whose operation is over.
    pub fn done(&self) -> usize {
        let over = |m: &&Member| {
            m.round.is_none()
                && (m.begun == self.most && m.begun > 0 || m.schedule.clone().next_round().is_none())
        };
        let held = |rank: usize| self.held == Some(rank);
        self.all.iter().enumerate().filter(|(rank, m)| !held(*rank) && over(m)).count()
    }

    /// Whether all are, and no message is left.
    pub fn is_over(&self) -> bool {
        self.done() == self.all.len() && self.under_way.values().all(VecDeque::is_empty)
    }

    pub fn result(&self, rank: usize) -> &[u64] {
        &self.all[rank].memory[&Place::Result]
    }

    pub fn sent(&self, rank: usize) -> usize {
        self.all[rank].sent
    }
}

fn range(part: &Part) -> std::ops::Range<usize> {
    part.at / 8..(part.at + part.len) / 8
}

fn run_local(memory: &mut HashMap<Place, Vec<u64>>, local: &Local) {
    let (Local::Copy { into, from } | Local::Reduce { into, from }) = local;
    assert_eq!(into.len, from.len);
    assert_ne!(into.place, Place::Input);
    let from = memory[&from.place][range(from)].to_vec();
    let into = &mut memory.get_mut(&into.place).expect("there")[range(into)];
    for (into, from) in into.iter_mut().zip(from) {
        *into = if matches!(local, Local::Copy { .. }) { from } else { into.wrapping_add(from) };
    }
}

/// What is received goes nowhere that another transfer of the round reads or writes.
fn overlaps_nothing(round: &Round) {
    for (i, a) in round.transfers.iter().enumerate().filter(|(_, t)| !t.sends) {
        assert_ne!(a.part.place, Place::Input);
        for (j, b) in round.transfers.iter().enumerate() {
            let apart = a.part.at + a.part.len <= b.part.at || b.part.at + b.part.len <= a.part.at;
            assert!(i == j || a.part.place != b.part.place || apart, "{a:?} {b:?}");
        }
    }
}
