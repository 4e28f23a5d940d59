//! Which part a rank's device has in a collective, and from how many bytes on.

use device_ops::nccl::Rank;

use super::moves::{self, blocks};
use super::part::Part;
use super::reduction::{self, reduced};
use super::vectors;
use crate::args::Args;
use crate::library::Library;
use crate::posted::Plan;
use crate::row::Row;
use crate::settings;

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

/// This rank's part, if the device can do it.
///
/// # Safety
/// The arguments are those of the call, and valid.
pub(super) unsafe fn part(
    plan: &Plan,
    library: &Library,
    row: &'static Row,
    args: &Args<'_>,
    at: Rank,
) -> Option<Part> {
    // SAFETY: the caller's promise.
    unsafe {
        if plan.what.is_reduction() {
            return reduction::part(plan, library, row, args, at);
        }
        if vectors::are_for(plan, args) {
            return vectors::part(plan, row, args, at);
        }
        moves::part(plan, row, args, at)
    }
}
