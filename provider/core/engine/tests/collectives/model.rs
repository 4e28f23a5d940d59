//! Any operations, several of them under way, by any way that messages go, against what they are to do.

use engine::{Collective, CollectiveKind as Kind, Ctx, GroupId, What};
use hmem::{AtomicOp, Datatype};
use proptest::prelude::*;
use testkit::{Direct, Setup};

use crate::group::{call, join, net, op, with_memory};

const TYPES: [Datatype; 6] =
    [Datatype::Uint8, Datatype::Int16, Datatype::Uint32, Datatype::Int64, Datatype::Float, Datatype::Double];

const OPS: [AtomicOp; 6] =
    [AtomicOp::Sum, AtomicOp::Prod, AtomicOp::Min, AtomicOp::Max, AtomicOp::Land, AtomicOp::Lxor];

/// A value of an element that all these types have, of which a few are added and multiplied exactly.
pub fn value(rank: usize, at: usize, seed: usize) -> u8 {
    ((rank * 5 + at * 3 + seed) % 3) as u8
}

pub fn put(datatype: Datatype, value: u8) -> Vec<u8> {
    match datatype {
        Datatype::Float => f32::from(value).to_ne_bytes().to_vec(),
        Datatype::Double => f64::from(value).to_ne_bytes().to_vec(),
        _ => u64::from(value).to_le_bytes()[..datatype.size()].to_vec(),
    }
}

fn reduce(op: AtomicOp, a: u64, b: u64) -> u64 {
    match op {
        AtomicOp::Sum => a + b,
        AtomicOp::Prod => a * b,
        AtomicOp::Min => a.min(b),
        AtomicOp::Max => a.max(b),
        AtomicOp::Land => u64::from(a != 0 && b != 0),
        _ => u64::from((a != 0) != (b != 0)),
    }
}

/// What is in a member's result.
pub fn expected(op: &Collective, members: usize, rank: usize, seed: usize) -> Vec<u8> {
    let (count, root) = (op.count, op.root as usize);
    let of = |member: usize, at: usize| put(op.datatype, value(member, at, seed));
    let reduced = |at: usize| {
        let by = op.op.expect("it reduces");
        let all =
            (1..members).fold(value(0, at, seed).into(), |all, m| reduce(by, all, value(m, at, seed).into()));
        // 10 factors of at most 2, and 10 summands.
        match op.datatype {
            Datatype::Uint8 => vec![all as u8],
            datatype => put_u64(datatype, all),
        }
    };
    let range = 0..count;
    let all: Vec<Vec<u8>> = match op.kind {
        Kind::Barrier => Vec::new(),
        Kind::Broadcast => range.map(|at| of(root, at)).collect(),
        Kind::AllToAll => (0..members * count).map(|i| of(i / count, rank * count + i % count)).collect(),
        Kind::AllReduce => range.map(reduced).collect(),
        Kind::ReduceScatter => range.map(|at| reduced(rank * count + at)).collect(),
        Kind::Scatter => range.map(|at| of(root, rank * count + at)).collect(),
        Kind::Reduce if rank == root => range.map(reduced).collect(),
        Kind::AllGather => (0..members * count).map(|i| of(i / count, i % count)).collect(),
        Kind::Gather if rank == root => (0..members * count).map(|i| of(i / count, i % count)).collect(),
        Kind::Reduce | Kind::Gather => Vec::new(),
    };
    all.concat()
}

fn put_u64(datatype: Datatype, value: u64) -> Vec<u8> {
    match datatype {
        Datatype::Float => (value as f32).to_ne_bytes().to_vec(),
        Datatype::Double => (value as f64).to_ne_bytes().to_vec(),
        _ => value.to_le_bytes()[..datatype.size()].to_vec(),
    }
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    kind: Kind,
    root: usize,
    count: usize,
    datatype: Datatype,
    by: AtomicOp,
}

fn any_posted() -> impl Strategy<Value = Posted> {
    let count = prop_oneof![Just(0usize), 1usize..40, Just(5000usize)];
    let of = (prop::sample::select(&Kind::ALL[..]), 0usize..9, count);
    (of, prop::sample::select(&TYPES[..]), prop::sample::select(&OPS[..]))
        .prop_map(|((kind, root, count), datatype, by)| Posted { kind, root, count, datatype, by })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn operations_under_way_at_once_do_what_each_is_to_do(
        members in 1usize..=10,
        all in prop::collection::vec(any_posted(), 1..5),
        direct in prop::sample::select(&Direct::ALL[..]),
        capacity in prop::sample::select(&[2usize, 64][..]),
        shared in any::<bool>(),
        hosts in prop_oneof![Just(Vec::new()), prop::collection::vec(0usize..3, 10)],
        order in prop::collection::vec(any::<u16>(), 1..16),
    ) {
        let capacity = capacity.max(direct.least_capacity());
        let mut net = net(members, Setup { direct, capacity, shared, ..Setup::default() });
        net.set_hosts(&hosts);
        let places: Vec<usize> = (0..members).collect();
        let groups = join(&mut net, &places);
        let mut posted: Vec<Vec<Collective>> = vec![Vec::new(); members];
        // Each node posts all of them, and then the next one does.
        for turn in 0..members {
            let at = (turn + usize::from(order[0])) % members;
            for (seed, &Posted { kind, root, count, datatype, by }) in all.iter().enumerate() {
                let base = op(kind, root % members, count);
                let base = Collective { datatype, op: kind.reduces().then_some(by), ctx: Ctx(seed), ..base };
                let fill = |len: usize| {
                    (0..len / datatype.size()).flat_map(|i| put(datatype, value(at, i, seed))).collect()
                };
                let op = with_memory(&mut net, at, groups[at], &base, fill).unwrap();
                call(&mut net, at, groups[at], &op).unwrap();
                posted[at].push(op);
            }
            let step = usize::from(order[turn % order.len()]) % members;
            net[step].progress();
        }
        net.settle();
        for at in 0..members {
            let mut done = net[at].tx();
            done.sort_by_key(|c| c.ctx.0);
            prop_assert_eq!(done.len(), all.len());
            for (seed, (entry, op)) in done.iter().zip(&posted[at]).enumerate() {
                prop_assert_eq!((entry.ctx, entry.what, entry.err), (Ctx(seed), What::COLLECTIVE, None));
                let expected = expected(op, members, at, seed);
                let result = net[at].look(op.result, op.result.len());
                prop_assert!(result == expected, "{:?} at {} of {}", op, at, members);
            }
        }
        net.assert_idle();
        for at in 0..members {
            prop_assert_eq!(net[at].unexpected(), 0);
            let group: GroupId = groups[at];
            prop_assert_eq!(net[at].group_close(group), Ok(()));
        }
    }
}
