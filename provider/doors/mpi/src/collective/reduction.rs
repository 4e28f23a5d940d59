//! Reductions by the devices of all ranks: kernels, and messages of device memory.

use device_ops::collective::{Buffers, Collective, Shares, What as Of};
use device_ops::nccl::Rank;
use device_ops::{Op, Type, pair};

use super::element::computed;
use super::pair::{Call, Context, context_of};
use super::part::Part;
use super::plan::one_device;
use crate::args::Args;
use crate::buffer::device::DeviceMemory;
use crate::buffer::kernels;
use crate::library::Library;
use crate::posted::{Plan, What};
use crate::row::Row;
use crate::settings;

/// How many elements each rank owns.
///
/// # Safety
/// The arguments are those of the call, and valid.
unsafe fn shares(plan: &Plan, args: &Args<'_>, ranks: usize) -> Option<Shares> {
    // SAFETY: the caller's promise.
    unsafe {
        match plan.what {
            What::ReduceScatter => {
                Shares::of_lengths((0..ranks).map(|n| args.count_at(plan.count, n) as u64))
            }
            What::ReduceScatterBlock => {
                let count = args.count(plan.count) as u64;
                Shares::of_lengths((0..ranks).map(|_| count))
            }
            _ => Some(Shares::even(args.count(plan.count) as u64, ranks)),
        }
    }
}

/// Bytes of all elements.
///
/// # Safety
/// The arguments are those of the call, and valid.
pub(super) unsafe fn reduced(plan: &Plan, args: &Args<'_>, ranks: usize) -> Option<u64> {
    // SAFETY: the caller's promise.
    unsafe { shares(plan, args, ranks)?.count().checked_mul(plan.size(args)? as u64) }
}

/// What is computed, if kernels do.
///
/// # Safety
/// The arguments are those of the call, and valid.
unsafe fn of(plan: &Plan, library: &Library, args: &Args<'_>) -> Option<(Op, Type)> {
    // SAFETY: the caller's promise.
    let computed = unsafe { computed(library, args.op(plan.op?), args.datatype(plan.datatype)) };
    computed.filter(|(_, ty)| kernels::are_on() && !ty.has_gap())
}

/// What one kernel of each of two ranks does, if the buffers are memory of that context and this rank's
/// device has the kernel.
///
/// # Safety
/// The arguments are those of the call, and valid.
pub(super) unsafe fn paired(
    plan: &Plan,
    library: &Library,
    row: &'static Row,
    args: &Args<'_>,
    at: Rank,
    context: Context,
) -> Option<Call> {
    // SAFETY: the caller's promise.
    unsafe {
        let of = of(plan, library, args)?;
        one_device(row, args, kernels::device_of)?;
        let (sent, to) = (args.words[0], args.words[1]);
        let from = if args.is_in_place(sent) { to } else { sent };
        context_of(from).filter(|of| !crate::host::is_no_address(to) && *of == context)?;
        let count = args.count(plan.count) as u64;
        // Of two blocks each rank has its own.
        let [from, sent] = match plan.what {
            What::Allreduce => [from; 2],
            What::ReduceScatterBlock => {
                let len = usize::try_from(count.checked_mul(of.1.extent())?).ok()?;
                [from + at.rank * len, from + (1 - at.rank) * len]
            }
            _ => return None,
        };
        kernels::queue(from, |stream| pair::prepare(stream, of, at.rank == 0, [to, from, sent]))?;
        Some(Call { of, to, from, sent, count })
    }
}

/// This rank's part, if its buffers are memory of one device without gaps, and the device has the kernel
/// and memory for it.
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
        let (op, ty) = of(plan, library, args)?;
        let what = match plan.what {
            What::Allreduce => Of::Allreduce,
            What::Reduce => Of::Reduce(usize::try_from(args.int(plan.root?)).ok().filter(|r| *r < at.size)?),
            What::ReduceScatter | What::ReduceScatterBlock => Of::ReduceScatter,
            What::Scan => Of::Scan,
            What::Exscan => Of::Exscan,
            _ => return None,
        };
        one_device(row, args, kernels::device_of)?;
        let (sent, received) = (args.words[0], args.words[1]);
        let is_silent = matches!(what, Of::Reduce(root) if root != at.rank);
        let from = if args.is_in_place(sent) { received } else { sent };
        let to = if is_silent { 0 } else { received };
        if crate::host::is_no_address(to) {
            return None;
        }
        let buffers = Buffers { from: from as u64, to: to as u64, slots: 0 };
        let (shares, room) = (shares(plan, args, at.size)?, settings::reduce_memory());
        let of = Collective::new(what, at.rank, shares, ty.extent(), buffers, room)?;
        let slots = DeviceMemory::new(from, of.room())?;
        let of = of.with_slots(slots.at() as u64);
        kernels::queue(from, |stream| of.prepare(stream, op, ty))?;
        Some(Part::computing(of.phases(), (op, ty), slots, from))
    }
}
