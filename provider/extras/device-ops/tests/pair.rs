//! Allreduces of two ranks in one kernel of each, over the stand-in for CUDA's driver, against the host.
#![cfg(not(loom))]

#[path = "support/host.rs"]
mod host;
mod support;

use std::time::{Duration, Instant};

use cuda_stand_in::driver::Driver;
use device_ops::pair::{self, Host, Pair};
use device_ops::{Error, Op, Type};
use hmem::cuda::Stream;
use proptest::prelude::*;
use support::{alone, memory, stream};

/// Both ranks' sides, with as many blocks.
struct Ranks {
    cu: Driver,
    streams: [Stream; 2],
    rings: [usize; 2],
    sides: [Pair; 2],
}

impl Ranks {
    fn new(cu: Driver, blocks: u64) -> Ranks {
        let rings = [(); 2].map(|()| cu.alloc(pair::bytes(blocks) as usize));
        // SAFETY: so many bytes are there.
        rings.iter().for_each(|ring| unsafe { Pair::clear(*ring, blocks) }.unwrap());
        let streams = [stream(cu), stream(cu)];
        let side = |rank: usize| {
            let host = Host::new(streams[rank]).unwrap();
            // SAFETY: the stand-in's memory, which is freed last.
            unsafe { Pair::new(rings[rank], rings[1 - rank], blocks, rank == 0, host) }
        };
        Ranks { cu, streams, rings, sides: [side(0), side(1)] }
    }

    fn wait(&self) {
        self.streams.iter().for_each(|stream| stream.wait().unwrap());
        assert!(self.sides.iter().all(Pair::is_done));
    }

    fn end(self) {
        self.rings.into_iter().for_each(|ring| self.cu.free(ring));
    }
}

#[derive(Clone, Debug)]
struct Case {
    op: Op,
    ty: Type,
    count: usize,
    /// Bytes in front of each rank's elements, and of its results; in place without.
    shift: [(usize, Option<usize>); 2],
    seed: u64,
}

const GUARD: usize = 16;

/// One allreduce; in `Err`, what is wrong.
fn check(ranks: &Ranks, case: &Case) -> Result<(), String> {
    let Case { op, ty, count, shift, seed } = case.clone();
    let (cu, len) = (ranks.cu, count * ty.extent() as usize);
    let data = [host::elements(ty, count, seed), host::elements(ty, count, seed + 77)];
    let room = GUARD + 16 + len + GUARD;
    let mut all = Vec::new();
    let places = [0, 1].map(|rank| {
        let mut make = |shift: usize| {
            let base = cu.alloc(room);
            cu.write(base, &vec![0xa5; room]);
            all.push(base);
            base + GUARD + shift
        };
        let from = make(shift[rank].0);
        cu.write(from, &data[rank]);
        (from, shift[rank].1.map_or(from, make))
    });
    let before = places.map(|(_, to)| (cu.read(to - GUARD, GUARD), cu.read(to + len, GUARD)));
    // To load a kernel waits for those that run.
    for (rank, (from, to)) in places.into_iter().enumerate() {
        pair::prepare(ranks.streams[rank], (op, ty), rank == 0, [from, to, from]).unwrap();
    }
    for ((side, stream), (from, to)) in ranks.sides.iter().zip(ranks.streams).zip(places) {
        let from = memory(from, len);
        side.reduce(stream, (op, ty), memory(to, len), from, from, count as u64).unwrap();
    }
    ranks.wait();
    let mut wanted = data[0].clone();
    host::reduce(op, ty, &data[0], &data[1], &mut wanted);
    for (rank, (from, to)) in places.into_iter().enumerate() {
        let found = cu.read(to, len);
        if let Some(i) = host::difference(op, ty, &found, &wanted) {
            return Err(format!("{case:?}: rank {rank}, element {i}"));
        }
        if (cu.read(to - GUARD, GUARD), cu.read(to + len, GUARD)) != before[rank] {
            return Err(format!("{case:?}: rank {rank} wrote beside the elements"));
        }
        if from != to && cu.read(from, len) != data[rank] {
            return Err(format!("{case:?}: rank {rank} wrote to its operand"));
        }
    }
    all.into_iter().for_each(|base| cu.free(base));
    Ok(())
}

fn every() -> impl Iterator<Item = (Op, Type)> {
    let of = |(op, ty): &(Op, Type)| op.takes(*ty) && !ty.has_gap();
    Op::ALL.into_iter().flat_map(|op| Type::ALL.map(|ty| (op, ty))).filter(of)
}

/// Both aligned, one in place; each at other bytes; both in place.
const SHIFTS: [[(usize, Option<usize>); 2]; 3] =
    [[(0, Some(0)), (0, None)], [(8, Some(0)), (1, Some(3))], [(0, None), (0, None)]];

#[test]
fn every_operation_on_every_type_is_that_of_the_host_at_both_ranks() {
    let (_alone, cu) = alone();
    let ranks = Ranks::new(cu, 2);
    for (op, ty) in every() {
        for (count, shift) in [1, 67, 33].into_iter().zip(SHIFTS) {
            check(&ranks, &Case { op, ty, count, shift, seed: 3 }).unwrap();
        }
    }
    ranks.end();
}

#[test]
fn pieces_follow_each_other_in_slots_and_counts_go_on_from_one_to_the_next() {
    let (_alone, cu) = alone();
    for blocks in [1, 3] {
        let ranks = Ranks::new(cu, blocks);
        // One piece, several of one block, one more than steps are ahead, and more than there are slots.
        for (n, count) in [2, 2049, 4096, 6144, 20_001, 50_000, 140_000].into_iter().enumerate() {
            let shift = SHIFTS[n % SHIFTS.len()];
            check(&ranks, &Case { op: Op::Sum, ty: Type::F32, count, shift, seed: n as u64 }).unwrap();
        }
        ranks.end();
    }
}

/// Of two blocks each rank reduces its own one, and sends the other one: to a place of its own, to where its
/// operand is, and to where what it has sent was.
#[test]
fn each_rank_gets_its_own_block() {
    let (_alone, cu) = alone();
    let ranks = Ranks::new(cu, 2);
    let (op, ty) = (Op::Min, Type::I16);
    for count in [1, 5, 8, 4100, 70_000] {
        for place in 0..3 {
            let len = 2 * count;
            let data = [0, 1].map(|rank| host::elements(ty, 2 * count, (10 * count + rank) as u64));
            let base = [0, 1].map(|rank| (cu.alloc(2 * len), cu.alloc(len), rank));
            let calls = base.map(|(all, apart, rank)| {
                cu.write(all, &data[rank]);
                let (own, other) = (all + rank * len, all + (1 - rank) * len);
                ([apart, own, other][place], own, other, rank)
            });
            for (to, own, other, rank) in calls {
                pair::prepare(ranks.streams[rank], (op, ty), rank == 0, [to, own, other]).unwrap();
            }
            for (to, own, other, rank) in calls {
                let [to, own, other] = [to, own, other].map(|at| memory(at, len));
                ranks.sides[rank]
                    .reduce(ranks.streams[rank], (op, ty), to, own, other, count as u64)
                    .unwrap();
            }
            ranks.wait();
            for (to, own, other, rank) in calls {
                let block = rank * len..(rank + 1) * len;
                let mut wanted = vec![0; len];
                host::reduce(op, ty, &data[0][block.clone()], &data[1][block], &mut wanted);
                assert!(cu.read(to, len) == wanted, "rank {rank}, {count} elements, place {place}");
                for at in [own, other].into_iter().filter(|at| *at != to) {
                    let was = at - base[rank].0..at - base[rank].0 + len;
                    assert!(cu.read(at, len) == data[rank][was], "rank {rank} wrote to an operand");
                }
            }
            base.into_iter().for_each(|(all, apart, _)| [all, apart].into_iter().for_each(|at| cu.free(at)));
        }
    }
    ranks.end();
}

#[test]
fn a_kernel_whose_peer_does_not_come_is_ended() {
    let (_alone, cu) = alone();
    let ranks = Ranks::new(cu, 2);
    let len = 40_000;
    let at = cu.alloc(len);
    let (side, stream) = (&ranks.sides[1], ranks.streams[1]);
    let all = memory(at, len);
    side.reduce(stream, (Op::Sum, Type::I32), all, all, all, len as u64 / 4).unwrap();
    // It waits for the peer.
    std::thread::sleep(Duration::from_millis(20));
    assert!(!side.is_done() && !stream.is_done().unwrap());
    // A thread in cudaFree has the driver's lock: neither call takes it.
    let freed = cu.alloc(1);
    cu.kernel(true);
    let freeing = std::thread::spawn(move || cu.free(freed));
    while cu.freeing() == 0 {
        std::thread::yield_now();
    }
    side.end();
    let begin = Instant::now();
    while !side.is_done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the kernel goes on");
        std::thread::yield_now();
    }
    assert_eq!(cu.freeing(), 1);
    cu.kernel(false);
    freeing.join().unwrap();
    // The next one does not wait at all.
    side.reduce(stream, (Op::Sum, Type::I32), all, all, all, 1).unwrap();
    stream.wait().unwrap();
    assert!(side.is_done());
    cu.free(at);
    ranks.end();
}

#[test]
fn memory_is_bounded_by_what_there_is_room_for() {
    assert_eq!(pair::blocks(132, pair::bytes(128)), Some(128));
    assert_eq!(pair::blocks(132, pair::bytes(128) - 1), Some(127));
    assert_eq!(pair::blocks(20, 1 << 30), Some(20));
    assert_eq!((pair::blocks(20, pair::bytes(1) - 1), pair::blocks(0, 1 << 30)), (None, None));
}

#[test]
fn a_kernel_that_is_there_is_launched_while_another_one_is_compiled() {
    let (_alone, cu) = alone();
    let ranks = Ranks::new(cu, 2);
    let (at, other) = (cu.alloc(4096), stream(cu));
    let place = memory(at, 4096);
    // No other test has these two.
    let [there, missing] = [Op::Band, Op::Bor]
        .map(|op| move || device_ops::reduce(other, op, Type::U64, place, place, place, 16));
    there().unwrap();
    let (side, first) = (&ranks.sides[1], ranks.streams[1]);
    side.reduce(first, (Op::Sum, Type::I32), place, place, place, 4).unwrap();
    let loads = cu.calls(c"cuModuleLoadDataEx");
    std::thread::scope(|scope| {
        // What loads a module waits for the kernel that waits for a peer.
        let loading = scope.spawn(missing);
        while cu.calls(c"cuModuleLoadDataEx") == loads {
            std::thread::yield_now();
        }
        let (says, said) = std::sync::mpsc::channel();
        scope.spawn(move || says.send(there()));
        let launched = said.recv_timeout(Duration::from_secs(60));
        assert!(!side.is_done() && !loading.is_finished());
        side.end();
        loading.join().unwrap().unwrap();
        launched.expect("the launch has waited for the other kernel").unwrap();
    });
    [first, other].into_iter().for_each(|stream| stream.wait().unwrap());
    // One that the driver refuses is asked for again.
    let next = || device_ops::reduce(other, Op::Bxor, Type::U64, place, place, place, 16);
    cu.fail(c"cuModuleLoadDataEx", 1, 218);
    assert!(matches!(next(), Err(Error::NotCompiled { .. })));
    next().unwrap();
    other.wait().unwrap();
    cu.free(at);
    ranks.end();
}

fn cases() -> impl Strategy<Value = Case> {
    let all: Vec<_> = every().collect();
    let shift = (0usize..16, proptest::option::of(0usize..16));
    let shift = prop_oneof![Just((0, None)), Just((0, Some(0))), Just((8, Some(0))), shift];
    let count = prop_oneof![1usize..200, 1000usize..9000];
    (0..all.len(), count, [shift.clone(), shift], any::<u64>()).prop_map(move |(of, count, shift, seed)| {
        let (op, ty) = all[of];
        Case { op, ty, count, shift, seed: seed >> 8 }
    })
}

#[test]
fn random_ones_are_those_of_the_host() {
    let (_alone, cu) = alone();
    let ranks = Ranks::new(cu, 2);
    proptest!(ProptestConfig::with_cases(60), |(case in cases())| {
        prop_assert_eq!(check(&ranks, &case), Ok(()));
    });
    ranks.end();
}
