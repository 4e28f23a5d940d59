//! Operations as batches of the driver's.
//!
//! A batch has fewer than 256 operations. A longer list is cut, but never between a poll and the store that
//! follows it: were the second of two batches refused, the stream would take a signal and not clear it.
//!
//! The driver puts a fence of the whole system before each store, so that one which the list has there is not
//! queued a second time.

use hmem::cuda::memops::{Features, MOST_IN_BATCH, MemOp, Until as CudaUntil};

use crate::error::Error;
use crate::memory::Targets;
use crate::op::{Op, Until};
use crate::place::Fence;

/// What is queued at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A batch.
    Batch(Vec<MemOp>),
    /// The kernel that adds, where batches cannot.
    Add { to: u64, value: u32 },
}

/// A step, and how many operations of the list are done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lowered {
    pub(crate) step: Step,
    pub(crate) done: usize,
}

/// An operation of the driver's.
struct Item {
    op: MemOp,
    /// No cut before it.
    glued: bool,
    /// How many operations of the list are done with it.
    done: usize,
}

/// A list's steps; in `Err`, why nothing of it can be done.
pub(crate) fn lower(ops: &[Op], targets: &Targets, features: Features) -> Result<Vec<Lowered>, Error> {
    let (mut steps, mut items, mut last_wait) = (Vec::new(), Vec::new(), false);
    for (i, op) in ops.iter().enumerate() {
        let at = match op.place() {
            Some((place, len)) => targets.resolve(place, len, op.alignment())?,
            None => 0,
        };
        if let (Op::Add32 { value, .. }, false) = (op, features.reduction) {
            cut(std::mem::take(&mut items), &mut steps);
            steps.push(Lowered { step: Step::Add { to: at, value: *value }, done: i + 1 });
            last_wait = false;
            continue;
        }
        let made = one(op, at, features)?;
        let count = made.len();
        for (n, op) in made.into_iter().enumerate() {
            let is_order = matches!(op, MemOp::Barrier | MemOp::Flush);
            // Of fences in a row one is enough.
            if is_order && items.iter().rev().take_while(|i: &&Item| is_fence(i.op)).any(|i| i.op == op) {
                continue;
            }
            let is_store = matches!(op, MemOp::Write32 { .. } | MemOp::Write64 { .. });
            if is_store && items.last().is_some_and(|i| i.op == MemOp::Barrier) {
                items.pop();
            }
            let is_wait = matches!(op, MemOp::Wait { .. });
            let done = if n + 1 == count { i + 1 } else { i };
            items.push(Item { op, glued: last_wait && !is_wait, done });
            last_wait = is_wait || last_wait && is_order;
        }
        if let Some(last) = items.last_mut() {
            last.done = i + 1;
        }
    }
    cut(items, &mut steps);
    Ok(steps)
}

fn is_fence(op: MemOp) -> bool {
    matches!(op, MemOp::Barrier | MemOp::Flush)
}

/// Makes batches of items.
fn cut(items: Vec<Item>, steps: &mut Vec<Lowered>) {
    let mut rest = &items[..];
    while !rest.is_empty() {
        let mut end = rest.len().min(MOST_IN_BATCH);
        // At most a poll, two fences and a store are glued to each other.
        while end < rest.len() && rest[end].glued {
            end -= 1;
        }
        let (now, later) = rest.split_at(end.max(1));
        let done = now.last().map_or(0, |i| i.done);
        steps.push(Lowered { step: Step::Batch(now.iter().map(|i| i.op).collect()), done });
        rest = later;
    }
}

fn one(op: &Op, at: u64, features: Features) -> Result<Vec<MemOp>, Error> {
    Ok(match op {
        Op::Fence(fence) => {
            let reads_of_adapters = fence.contains(Fence::READ | Fence::FROM_HCA) && features.unordered;
            match (reads_of_adapters, features.flush) {
                (false, _) => vec![MemOp::Barrier],
                (true, true) => vec![MemOp::Flush, MemOp::Barrier],
                (true, false) => {
                    return Err(Error::NoMeans(
                        "the device neither orders what an adapter writes to its memory nor flushes it in a \
                         stream: wait on the host",
                    ));
                }
            }
        }
        Op::Store32 { value, .. } => vec![MemOp::Write32 { to: at, value: *value }],
        Op::Store64 { value, .. } => vec![MemOp::Write64 { to: at, value: *value }],
        Op::Add32 { value, .. } => vec![MemOp::Add32 { to: at, value: *value }],
        Op::Poll { until, value, .. } => {
            let until = match until {
                Until::And => CudaUntil::And,
                Until::Nor => CudaUntil::Nor,
                Until::Geq => CudaUntil::Geq,
            };
            vec![MemOp::Wait { at, value: *value, until }]
        }
        Op::Copy { block, .. } => copy(at, block.words(), features.wide),
    })
}

/// A block, in words of 8 bytes where they are aligned and the device has them.
fn copy(mut at: u64, mut words: &[u32], wide: bool) -> Vec<MemOp> {
    let mut ops = Vec::new();
    while let [first, rest @ ..] = words {
        match rest {
            [second, rest @ ..] if wide && at % 8 == 0 => {
                let value = u64::from(*first) | u64::from(*second) << 32;
                ops.push(MemOp::Write64 { to: at, value });
                (at, words) = (at + 8, rest);
            }
            _ => {
                ops.push(MemOp::Write32 { to: at, value: *first });
                (at, words) = (at + 4, rest);
            }
        }
    }
    ops
}
