//! Reductions by the devices of all ranks: kernels, and messages of device memory.

use core::ffi::c_int;

use device_ops::collective::{Buffers, Collective, Means, Message, Shares, Step, What as Of, queue};
use device_ops::nccl::Rank;
use device_ops::{Op, Type};

use super::board::Side;
use super::element::computed;
use super::messages::{Failed, Messages};
use super::plan::{is_in_place, one_device};
use crate::abi::Abi;
use crate::args::Args;
use crate::buffer::device::DeviceMemory;
use crate::buffer::kernels::{self, Work};
use crate::buffer::sync;
use crate::library::Library;
use crate::posted::{Plan, What};
use crate::row::Row;
use crate::settings;

/// One rank's part in a reduction.
#[derive(Debug)]
pub(super) struct Reduction {
    of: Collective,
    op: Op,
    ty: Type,
    slots: DeviceMemory,
    /// An address of the device's.
    near: usize,
}

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

impl Reduction {
    /// This rank's part, if its buffers are memory of one device without gaps, and the device has the kernel
    /// and memory for it.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid.
    pub(super) unsafe fn of(
        plan: &Plan,
        library: &Library,
        row: &'static Row,
        args: &Args<'_>,
        at: Rank,
    ) -> Option<Reduction> {
        if !kernels::are_on() {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (op, ty) = computed(library, args.op(plan.op?), args.datatype(plan.datatype))?;
            if ty.has_gap() {
                return None;
            }
            let what = match plan.what {
                What::Allreduce => Of::Allreduce,
                What::Reduce => {
                    Of::Reduce(usize::try_from(args.int(plan.root?)).ok().filter(|r| *r < at.size)?)
                }
                What::ReduceScatter | What::ReduceScatterBlock => Of::ReduceScatter,
                What::Scan => Of::Scan,
                What::Exscan => Of::Exscan,
                _ => return None,
            };
            one_device(row, args, kernels::device_of)?;
            let (sent, received) = (args.words[0], args.words[1]);
            let is_silent = matches!(what, Of::Reduce(root) if root != at.rank);
            let from = if is_in_place(args, sent) { received } else { sent };
            let to = if is_silent { 0 } else { received };
            let buffers = Buffers { from: from as u64, to: to as u64, slots: 0 };
            let (shares, room) = (shares(plan, args, at.size)?, settings::reduce_memory());
            let of = Collective::new(what, at.rank, shares, ty.extent(), buffers, room)?;
            let slots = DeviceMemory::new(from, of.room())?;
            let of = of.with_slots(slots.at() as u64);
            kernels::queue(from, |stream| of.prepare(stream, op, ty))?;
            Some(Reduction { of, op, ty, slots, near: from })
        }
    }

    /// Does this rank's part, as all others do theirs.
    ///
    /// # Safety
    /// The buffers are valid, all ranks of the board's communicator do the same, and the MPI's transport
    /// takes device memory.
    pub(super) unsafe fn run(self, abi: &Abi, side: &Side) -> Result<(), Failed> {
        let Some(messages) = side.messages() else { return Err(Failed::Device) };
        sync::wait_for(self.near);
        let mut part = Part { reduction: &self, abi, side, messages };
        match self.of.run(&mut part) {
            // A rank whose device has failed sends what it has: none waits for it.
            Ok(()) if side.one_failed().is_none() => Ok(()),
            Ok(()) => Err(Failed::Device),
            Err(code) => {
                self.slots.abandon();
                Err(Failed::Code(code))
            }
        }
    }
}

struct Part<'a> {
    reduction: &'a Reduction,
    abi: &'a Abi,
    side: &'a Side,
    messages: &'a Messages,
}

impl Means for Part<'_> {
    type Error = c_int;

    fn exchange(&mut self, sends: &[Message], receives: &[Message]) -> Result<(), c_int> {
        if sends.is_empty() && receives.is_empty() {
            return Ok(());
        }
        // SAFETY: the promise of `Reduction::run`; the addresses are of its buffers, and of its slots.
        unsafe { self.messages.exchange(self.abi, sends, receives) }
    }

    fn compute(&mut self, steps: &[Step]) -> Result<(), c_int> {
        let Reduction { op, ty, near, .. } = *self.reduction;
        // SAFETY: the promise of `Reduction::run`, until the stream is waited for.
        let work = kernels::run(near, |stream| unsafe { queue(stream, op, ty, steps) });
        if work != Work::Done {
            self.side.mark_failed();
        }
        Ok(())
    }
}
