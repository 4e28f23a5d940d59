//! Collectives that compute nothing, from device to device: of blocks that all ranks know.

use device_ops::collective::{Move, Moves, Shares};
use device_ops::nccl::Rank;

use super::part::Part;
use super::plan::one_device;
use crate::args::Args;
use crate::buffer::kernels;
use crate::posted::{Plan, What};
use crate::row::Row;

/// The blocks of all ranks, in bytes: the same at all ranks.
///
/// # Safety
/// The arguments are those of the call, and valid.
pub(super) unsafe fn blocks(plan: &Plan, args: &Args<'_>, ranks: usize) -> Option<Shares> {
    // SAFETY: the caller's promise.
    unsafe {
        if plan.what == What::Allgatherv {
            let size = plan.size(args)? as u64;
            return Shares::of_lengths(
                (0..ranks).map(|n| (args.count_at(plan.count, n) as u64).saturating_mul(size)),
            );
        }
        let bytes = plan.bytes(args)? as u64;
        match plan.what {
            What::Bcast => Some(Shares::even(bytes, ranks)),
            _ => Shares::of_lengths((0..ranks).map(|_| bytes)),
        }
    }
}

/// This rank's part, if its buffers are memory of one device without gaps.
///
/// # Safety
/// The arguments are those of the call, and valid.
pub(super) unsafe fn part(plan: &Plan, row: &'static Row, args: &Args<'_>, at: Rank) -> Option<Part> {
    // SAFETY: the caller's promise.
    unsafe {
        let root = plan.root.map_or(0, |root| args.int(root));
        let root = usize::try_from(root).ok().filter(|root| *root < at.size)?;
        let what = match plan.what {
            What::Bcast => Move::Bcast(root),
            What::Gather => Move::Gather(root),
            What::Scatter => Move::Scatter(root),
            What::Allgather => Move::Allgather,
            What::Alltoall => Move::Alltoall,
            _ => return None,
        };
        one_device(row, args, kernels::device_of)?;
        let blocks = blocks(plan, args, at.size)?;
        let own = blocks.of(at.rank).start;
        let (from, to) = match what {
            Move::Bcast(_) => (args.words[0], args.words[0]),
            _ => (args.words[0], args.words[3]),
        };
        let (from, to) = match (args.is_in_place(from), args.is_in_place(to)) {
            (true, _) => (to as u64 + own, to as u64),
            (_, true) => (from as u64, from as u64 + own),
            _ => (from as u64, to as u64),
        };
        // Where this rank is not the root one address is of nothing.
        let near = if matches!(what, Move::Scatter(root) if root != at.rank) { to } else { from };
        Some(Part::moving(Moves::new(what, at.rank, blocks, from, to)?.phases(), near as usize))
    }
}
