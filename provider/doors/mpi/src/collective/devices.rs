//! Collectives by the devices of all ranks: messages of device memory by the MPI's transport, and kernels.

use core::ffi::c_int;

use device_ops::nccl::Rank;

use super::board::Side;
use super::moves::{Moved, blocks};
use super::plan::is_in_place;
use super::reduction::{Reduction, reduced};
use crate::abi::Abi;
use crate::args::Args;
use crate::buffer::{Resolver, kernels};
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

/// Why a collective has failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// The MPI has answered a message of it with this code.
    Code(c_int),
    /// The device of this rank, or another one, has refused its part.
    Device,
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
    unsafe {
        if plan.what.is_reduction() {
            return reduced(plan, args, ranks);
        }
        let count = blocks(plan, args, ranks)?.count();
        usize::try_from(count).ok().filter(|bytes| *bytes > 0)
    }
}

/// The device that has all buffers of a call, which have no gaps.
///
/// # Safety
/// The arguments are those of the row's call, and valid.
pub(super) unsafe fn device_of(row: &'static Row, args: &Args<'_>) -> Option<i32> {
    let (mut resolver, mut device) = (Resolver::new(args, row.on), None);
    for buf in row.bufs {
        let word = args.words[usize::from(buf.at)];
        if is_in_place(args, word) {
            continue;
        }
        // SAFETY: the caller's promise.
        let Some(described) = unsafe { resolver.describe(buf) }.ok()? else { continue };
        let (begin, len) = described.data.tree.single()?;
        if begin != 0 || crate::host::is_no_address(word) || crate::host::is_host(word) {
            return None;
        }
        let is_device = hmem::classify(word, len) == hmem::Kind::Cuda;
        let on = is_device.then(|| kernels::device_of(word, len)).flatten()?;
        if device.is_some_and(|device| device != on) {
            return None;
        }
        device = Some(on);
    }
    device
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
