//! Collectives that compute nothing, from device to device.

use device_ops::collective::{Move, Moves, Shares, copy};
use device_ops::nccl::Rank;

use super::board::Side;
use super::messages::Failed;
use super::plan::{is_in_place, one_device};
use crate::abi::Abi;
use crate::args::Args;
use crate::buffer::kernels::{self, Work};
use crate::buffer::sync;
use crate::posted::{Plan, What};
use crate::row::Row;

/// One rank's part.
#[derive(Debug)]
pub(super) struct Moved {
    of: Moves,
    /// An address of the device's.
    near: usize,
}

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

/// Whether each rank's block of MPI_Allgatherv begins where that of the rank before it ends.
unsafe fn is_dense(args: &Args<'_>, ranks: usize) -> bool {
    let wide = args.style == crate::args::Style::Large;
    let mut next = 0;
    (0..ranks).all(|n| {
        // SAFETY: the caller's promise: counts, and displacements of as many elements.
        let (count, at) = unsafe { (args.count_at(4, n), args.number_at(5, n, wide)) };
        let is_next = count == 0 || usize::try_from(at) == Ok(next);
        next += count;
        is_next
    })
}

impl Moved {
    /// This rank's part, if its buffers are memory of one device without gaps.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid.
    pub(super) unsafe fn of(plan: &Plan, row: &'static Row, args: &Args<'_>, at: Rank) -> Option<Moved> {
        // SAFETY: the caller's promise.
        unsafe {
            let root = plan.root.map_or(0, |root| args.int(root));
            let root = usize::try_from(root).ok().filter(|root| *root < at.size)?;
            let what = match plan.what {
                What::Bcast => Move::Bcast(root),
                What::Gather => Move::Gather(root),
                What::Scatter => Move::Scatter(root),
                What::Allgather => Move::Allgather,
                What::Allgatherv if is_dense(args, at.size) => Move::Allgather,
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
            let (from, to) = match (is_in_place(args, from), is_in_place(args, to)) {
                (true, _) if what == Move::Alltoall => return None,
                (true, _) => (to as u64 + own, to as u64),
                (_, true) => (from as u64, from as u64 + own),
                _ => (from as u64, to as u64),
            };
            // Where this rank is not the root one address is of nothing.
            let near = if matches!(what, Move::Scatter(root) if root != at.rank) { to } else { from };
            Some(Moved { of: Moves::new(what, at.rank, blocks, from, to)?, near: near as usize })
        }
    }

    /// See [`super::devices::Part::run`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn run(self, abi: &Abi, side: &Side) -> Result<(), Failed> {
        let Some(messages) = side.messages() else { return Err(Failed::Device) };
        sync::wait_for(self.near);
        if let Some(own) = self.of.own() {
            // SAFETY: the caller's promise, until the stream is waited for.
            let work = kernels::run(self.near, |stream| unsafe { copy(stream, own) });
            if work != Work::Done {
                side.mark_failed();
            }
        }
        for (sends, receives) in self.of.exchanges() {
            // SAFETY: the caller's promise; the addresses are of the buffers.
            unsafe { messages.exchange(abi, &sends, &receives) }.map_err(Failed::Code)?;
        }
        // A rank whose device has failed sends what it has: none waits for it.
        if side.one_failed().is_none() { Ok(()) } else { Err(Failed::Device) }
    }
}
