//! Collectives by the devices of all ranks: messages of device memory by the MPI's transport, and kernels.

use device_ops::nccl::Rank;

use super::board::Side;
use super::messages::Failed;
use super::moves::{Moved, blocks};
use super::reduction::{Reduction, reduced};
use crate::abi::Abi;
use crate::args::Args;
use crate::library::Library;
use crate::posted::Plan;
use crate::row::Row;
use crate::settings;

/// One rank's part in a collective.
#[derive(Debug)]
pub(super) enum Part {
    Reduction(Reduction),
    Moved(Moved),
}

/// The least bytes of a collective that goes by devices; `None` where none does.
pub(super) fn least(plan: &Plan) -> Option<usize> {
    if plan.what.is_reduction() { settings::reduce_least() } else { settings::move_least() }
}

/// Bytes of a collective, the same at all ranks; `None` where there are none.
///
/// # Safety
/// The arguments are those of the call, and valid.
pub(super) unsafe fn bytes(plan: &Plan, args: &Args<'_>, ranks: usize) -> Option<usize> {
    // SAFETY: the caller's promise.
    let bytes = unsafe {
        if plan.what.is_reduction() {
            reduced(plan, args, ranks)?
        } else {
            blocks(plan, args, ranks)?.count()
        }
    };
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

impl Part {
    /// This rank's part, if the device can do it.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid.
    pub(super) unsafe fn of(
        plan: &Plan,
        library: &Library,
        row: &'static Row,
        args: &Args<'_>,
        at: Rank,
    ) -> Option<Part> {
        // SAFETY: the caller's promise.
        unsafe {
            if plan.what.is_reduction() {
                return Reduction::of(plan, library, row, args, at).map(Part::Reduction);
            }
            Moved::of(plan, row, args, at).map(Part::Moved)
        }
    }

    /// Does it, as all others do theirs.
    ///
    /// # Safety
    /// The buffers are valid, all ranks of the board's communicator do the same, and the MPI's transport
    /// takes device memory.
    pub(super) unsafe fn run(self, abi: &Abi, side: &Side) -> Result<(), Failed> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Part::Reduction(part) => part.run(abi, side),
                Part::Moved(part) => part.run(abi, side),
            }
        }
    }
}
