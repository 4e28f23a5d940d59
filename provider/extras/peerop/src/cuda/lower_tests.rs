//! Lists as batches: what is in them, and where lists are cut.

use hmem::cuda::memops::{Features, MOST_IN_BATCH, MemOp, Until as CudaUntil};
use proptest::collection::vec;
use proptest::prelude::*;

use super::lower::{Lowered, Step, lower};
use crate::error::Error;
use crate::memory::{Reach, Targets};
use crate::op::{Block, Op, Until};
use crate::place::{Fence, Place, TargetId};

const BASE: u64 = 0x1000;
const LEN: usize = 4096;

fn targets() -> Targets {
    let targets = Targets::new();
    // SAFETY: nothing accesses it: these tests look at what batches are.
    unsafe { targets.register(BASE as usize, LEN, Reach::Device) }.unwrap();
    targets
}

fn place(offset: u64) -> Place {
    Place { target: TargetId(0), offset }
}

const FEATURES: Features =
    Features { batches: true, wide: true, nor: true, flush: false, unordered: false, reduction: true };

fn batches(ops: &[Op], features: Features) -> Vec<Vec<MemOp>> {
    let steps = lower(ops, &targets(), features).unwrap();
    steps
        .into_iter()
        .map(|s| match s.step {
            Step::Batch(ops) => ops,
            Step::Add { .. } => panic!("no kernel is needed"),
        })
        .collect()
}

fn poll(offset: u64) -> Op {
    Op::Poll { at: place(offset), until: Until::And, value: 1 }
}

fn store(offset: u64, value: u32) -> Op {
    Op::Store32 { to: place(offset), value }
}

const FENCE: Op = Op::Fence(Fence::ACQUIRE);

#[test]
fn each_operation_has_one_of_the_drivers() {
    let ops = [
        poll(0),
        Op::Poll { at: place(4), until: Until::Nor, value: 2 },
        Op::Poll { at: place(8), until: Until::Geq, value: 3 },
        FENCE,
        store(12, 4),
        Op::Store64 { to: place(16), value: 5 },
        Op::Add32 { to: place(24), value: 6 },
    ];
    let wait = |n: u64, value, until| MemOp::Wait { at: BASE + n, value, until };
    let wanted = vec![vec![
        wait(0, 1, CudaUntil::And),
        wait(4, 2, CudaUntil::Nor),
        wait(8, 3, CudaUntil::Geq),
        MemOp::Write32 { to: BASE + 12, value: 4 },
        MemOp::Write64 { to: BASE + 16, value: 5 },
        MemOp::Add32 { to: BASE + 24, value: 6 },
    ]];
    assert_eq!(batches(&ops, FEATURES), wanted);
    // The driver's own fence before a store is enough, and no other operation has one.
    let both = [FENCE, poll(0), FENCE];
    assert_eq!(batches(&both, FEATURES), [vec![MemOp::Barrier, wait(0, 1, CudaUntil::And), MemOp::Barrier]]);
}

#[test]
fn a_block_is_stores_of_8_bytes_where_they_are_aligned() {
    let block = |n: u32| Block::new(&(1..=n).collect::<Vec<_>>()).unwrap();
    let copy = |offset, n| [Op::Copy { to: place(offset), block: block(n) }];
    let wide = |to: u64, low: u64, high: u64| MemOp::Write64 { to: BASE + to, value: low | high << 32 };
    let half = |to: u64, value| MemOp::Write32 { to: BASE + to, value };
    assert_eq!(batches(&copy(8, 4), FEATURES), [vec![wide(8, 1, 2), wide(16, 3, 4)]]);
    assert_eq!(batches(&copy(4, 4), FEATURES), [vec![half(4, 1), wide(8, 2, 3), half(16, 4)]]);
    let narrow = Features { wide: false, ..FEATURES };
    assert_eq!(batches(&copy(8, 3), narrow), [vec![half(8, 1), half(12, 2), half(16, 3)]]);
    assert_eq!(batches(&copy(0, 64), FEATURES)[0].len(), 32);
}

#[test]
fn adapters_writes_are_flushed_where_the_device_asks_for_it() {
    let reads = [Op::Fence(Fence::ACQUIRE)];
    let writes = [Op::Fence(Fence::RELEASE)];
    let asks = Features { unordered: true, flush: true, ..FEATURES };
    assert_eq!(batches(&reads, asks), [vec![MemOp::Flush, MemOp::Barrier]]);
    assert_eq!(batches(&writes, asks), [vec![MemOp::Barrier]]);
    let cannot = Features { unordered: true, ..FEATURES };
    assert!(matches!(lower(&reads, &targets(), cannot), Err(Error::NoMeans(_))));
    assert_eq!(batches(&writes, cannot), [vec![MemOp::Barrier]]);
}

#[test]
fn a_kernel_adds_where_batches_cannot() {
    let ops = [store(0, 1), Op::Add32 { to: place(4), value: 7 }, store(8, 2)];
    let steps = lower(&ops, &targets(), Features { reduction: false, ..FEATURES }).unwrap();
    let batch = |to, value| Step::Batch(vec![MemOp::Write32 { to: BASE + to, value }]);
    let step = |step, done| Lowered { step, done };
    let wanted = [step(batch(0, 1), 1), step(Step::Add { to: BASE + 4, value: 7 }, 2), step(batch(8, 2), 3)];
    assert_eq!(steps, wanted);
}

#[test]
fn a_long_list_is_cut_before_a_poll_whose_store_would_be_in_the_next_batch() {
    for before in MOST_IN_BATCH - 4..MOST_IN_BATCH + 2 {
        let stores: Vec<Op> = (0..before).map(|n| store(8 + 4 * (n as u64 % 100), 9)).collect();
        let pair = [poll(0), FENCE, store(0, 0)];
        let found = batches(&[stores, pair.to_vec()].concat(), FEATURES);
        let fits = before + 2 <= MOST_IN_BATCH;
        let rest = match (fits, before > MOST_IN_BATCH) {
            (true, _) => vec![before + 2],
            (false, false) => vec![before, 2],
            (false, true) => vec![MOST_IN_BATCH, before + 2 - MOST_IN_BATCH],
        };
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), rest, "{before}");
    }
}

#[test]
fn places_are_checked_before_anything_is_queued() {
    let lower = |op: Op| lower(&[op], &targets(), FEATURES).unwrap_err();
    let end = LEN as u64;
    for op in [store(end, 1), store(end - 2, 1), store(2, 1), store(u64::MAX - 3, 1), poll(end)] {
        assert!(matches!(lower(op), Error::OutOfPlace(..)));
    }
    let wide = Op::Store64 { to: place(4), value: 1 };
    assert!(matches!(lower(wide), Error::OutOfPlace(..)));
    let block = Block::new(&[0; 64]).unwrap();
    assert!(matches!(lower(Op::Copy { to: place(end - 252), block }), Error::OutOfPlace(..)));
    let other = Op::Store32 { to: Place { target: TargetId(7), offset: 0 }, value: 1 };
    assert_eq!(lower(other), Error::NoTarget(TargetId(7)));
    assert_eq!(Block::new(&[0; 65]), Err(Error::BlockLength(65)));
    assert_eq!(Block::new(&[]), Err(Error::BlockLength(0)));
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..64u64).prop_map(|n| poll(4 * n)),
        4 => (0..64u64, any::<u32>()).prop_map(|(n, v)| store(4 * n, v)),
        2 => Just(FENCE),
        1 => Just(Op::Fence(Fence::RELEASE)),
        1 => (0..64u64, any::<u64>()).prop_map(|(n, value)| Op::Store64 { to: place(8 * n), value }),
        1 => (0..64u64, 1..64usize)
            .prop_map(|(n, len)| Op::Copy { to: place(4 * n), block: Block::new(&vec![3; len]).unwrap() }),
        1 => (0..64u64).prop_map(|n| Op::Add32 { to: place(4 * n), value: 1 }),
    ]
}

proptest! {
    #[test]
    fn batches_are_short_whole_and_cut_between_pairs(
        ops in vec(any_op(), 0..900),
        reduction in any::<bool>(),
        unordered in any::<bool>(),
    ) {
        let features = Features { reduction, unordered, flush: true, ..FEATURES };
        let steps = lower(&ops, &targets(), features).unwrap();
        // All of it is there, in order.
        let is_fence = |op: &MemOp| matches!(op, MemOp::Barrier | MemOp::Flush);
        let one_by_one = |ops: &[Op]| -> Vec<Step> {
            ops.iter().flat_map(|op| lower(std::slice::from_ref(op), &targets(), features).unwrap())
                .map(|l| l.step).collect()
        };
        let flat = |steps: &[Step]| -> Vec<String> {
            let texts = steps.iter().flat_map(|step| match step {
                Step::Batch(ops) => {
                    ops.iter().filter(|op| !is_fence(op)).map(|op| format!("{op:?}")).collect::<Vec<_>>()
                }
                add => vec![format!("{add:?}")],
            });
            texts.collect()
        };
        let found: Vec<Step> = steps.iter().map(|l| l.step.clone()).collect();
        prop_assert_eq!(flat(&found), flat(&one_by_one(&ops)));
        // What each step ends is counted, and rises.
        prop_assert_eq!(steps.last().map_or(0, |l| l.done), if steps.is_empty() { 0 } else { ops.len() });
        prop_assert!(steps.is_sorted_by_key(|l| l.done));
        for pair in steps.windows(2) {
            let Step::Batch(ops) = &pair[0].step else { continue };
            prop_assert!((1..=MOST_IN_BATCH).contains(&ops.len()));
            let Step::Batch(next) = &pair[1].step else { continue };
            // The last one but fences is no poll, unless another poll begins the next batch.
            let ends_in_poll = ops.iter().rev().find(|op| !is_fence(op))
                .is_some_and(|op| matches!(op, MemOp::Wait { .. }));
            let begins_with_poll = matches!(next[0], MemOp::Wait { .. });
            prop_assert!(!ends_in_poll || begins_with_poll);
        }
        // A fence stays behind each operation that one followed, or a store has it.
        let stores = |op: &Op| matches!(op, Op::Store32 { .. } | Op::Store64 { .. } | Op::Copy { .. });
        let fences = ops.windows(3).filter(|w| w[1] == FENCE && !matches!(w[0], Op::Fence(_)) &&
            !matches!(w[2], Op::Fence(_)) && !stores(&w[2])).count();
        let kept = found.iter().map(|s| match s {
            Step::Batch(ops) => ops.iter().filter(|op| is_fence(op)).count(),
            Step::Add { .. } => 0,
        });
        prop_assert!(kept.sum::<usize>() >= fences);
    }
}
