//! One rank's part in a collective by the devices of all ranks: phases of messages of device memory, and of
//! what devices do.

use device_ops::collective::{Phase, Vectors, copy, queue};
use device_ops::{Op, Type};
use hmem::cuda::Stream;

use super::board::Side;
use super::messages::Failed;
use crate::abi::Abi;
use crate::buffer::device::DeviceMemory;
use crate::buffer::kernels::{self, Work};
use crate::buffer::sync;

/// One rank's part in a collective.
#[derive(Debug)]
pub(super) struct Part {
    phases: Vec<Phase>,
    computed: Option<(Op, Type)>,
    slots: Option<DeviceMemory>,
    /// An address of the device's; `None` of a rank without data.
    near: Option<usize>,
    /// Bytes that it sends, or receives, of a collective of which ranks know their own blocks alone.
    own: u64,
}

impl Part {
    /// One that moves blocks.
    pub(super) fn moving(phases: Vec<Phase>, near: usize) -> Part {
        Part { phases, near: Some(near), ..Part::none() }
    }

    /// One of a rank that knows its own blocks alone, of which it sends or receives so many bytes; in place
    /// with memory near its own. `None` where there is none.
    pub(super) fn of_own(of: Vectors, near: Option<usize>, own: u64) -> Option<Part> {
        let (room, mut slots) = (of.room(), None);
        if let Some(near) = near.filter(|_| room > 0) {
            slots = Some(DeviceMemory::new(near, room)?);
        }
        let at = slots.as_ref().map_or(0, DeviceMemory::at);
        Some(Part { phases: of.with_slots(at as u64).phases(), slots, near, own, ..Part::none() })
    }

    /// One that computes.
    pub(super) fn computing(phases: Vec<Phase>, of: (Op, Type), slots: DeviceMemory, near: usize) -> Part {
        Part { phases, computed: Some(of), slots: Some(slots), near: Some(near), ..Part::none() }
    }

    fn none() -> Part {
        Part { phases: Vec::new(), computed: None, slots: None, near: None, own: 0 }
    }

    /// Bytes that it sends, or receives; see [`Part::of_own`].
    pub(super) fn own(&self) -> u64 {
        self.own
    }

    /// What is done, one after another.
    pub(super) fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// What is computed of another rank's messages, and an address of the device's.
    pub(super) fn computed(&self) -> Option<((Op, Type), usize)> {
        self.computed.zip(self.near)
    }

    /// Waits for what `STRAIT_MPI_SYNC` says.
    pub(super) fn wait(&self) {
        if let Some(near) = self.near {
            sync::wait_for(near);
        }
    }

    /// A message may still come to its memory.
    pub(super) fn abandon(&mut self) {
        if let Some(slots) = self.slots.take() {
            slots.abandon();
        }
    }

    /// Does a phase that is no exchange; whether the device did.
    ///
    /// # Safety
    /// The buffers are valid.
    pub(super) unsafe fn compute(&self, phase: &Phase) -> bool {
        let Some(near) = self.near else { return false };
        // SAFETY: the caller's promise, until the stream is waited for; the addresses are of the buffers, and
        // of the slots.
        let work = |stream: Stream| unsafe {
            match (phase, self.computed) {
                (Phase::Copy(copies), _) => copies.iter().try_for_each(|one| copy(stream, *one)),
                (Phase::Compute(steps), Some((op, ty))) => queue(stream, op, ty, steps),
                _ => Ok(()),
            }
        };
        kernels::run(near, work) == Work::Done
    }

    /// Does it, as all others do theirs.
    ///
    /// # Safety
    /// The buffers are valid, all ranks of the board's communicator do the same, and the MPI's transport
    /// takes device memory.
    pub(super) unsafe fn run(mut self, abi: &Abi, side: &Side) -> Result<(), Failed> {
        let Some(messages) = side.messages() else { return Err(Failed::Device) };
        self.wait();
        let mut done = Ok(());
        for phase in &std::mem::take(&mut self.phases) {
            // SAFETY: the caller's promise.
            let is_done = unsafe {
                match phase {
                    Phase::Exchange(sends, receives) => {
                        let is_over = || side.marks().one_gone().is_some();
                        let exchanged = messages.exchange(abi, sends, receives, is_over);
                        if exchanged.is_err() && is_over() {
                            self.abandon();
                            side.marks().mark_failed();
                            return exchanged.map_err(Failed::Code);
                        }
                        done = done.and(exchanged);
                        exchanged.is_ok()
                    }
                    other => self.compute(other),
                }
            };
            // A rank that has failed goes on, and sends what it has: none waits for it.
            if !is_done {
                side.marks().mark_failed();
            }
        }
        done.map_err(Failed::Code)?;
        if side.one_failed().is_none() { Ok(()) } else { Err(Failed::Device) }
    }
}
