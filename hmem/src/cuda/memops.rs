//! Memory operations of streams: waits, stores and additions that a device does without a multiprocessor.
//!
//! Layouts and values: cuda.h of CUDA 13.1. Every store of the second version of the interface is preceded by
//! a fence of the whole system.

use super::adapter;
use super::api::{Error, Handle, MemOp as Raw, WRITE_VALUE_64};
use super::queue::Stream;

/// Most operations of a batch: the driver takes fewer than 256.
pub const MOST_IN_BATCH: usize = 255;

const WAIT_VALUE_32: u64 = 1;
const WRITE_VALUE_32: u64 = 2;
const FLUSH_REMOTE_WRITES: u64 = 3;
const WAIT_VALUE_64: u64 = 4;
/// Its flags, in the upper half: `CU_STREAM_MEMORY_BARRIER_TYPE_SYS`.
const BARRIER: u64 = 6;
const ATOMIC_REDUCTION: u64 = 8;
/// `CU_STREAM_ATOMIC_REDUCTION_OP_ADD`, and in the upper half `CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32`.
const ADD_UNSIGNED_32: u64 = 14 << 32;

/// `CU_DEVICE_ATTRIBUTE_`...
mod device_attr {
    use std::ffi::c_int;

    pub(super) const CAN_FLUSH_REMOTE_WRITES: c_int = 98;
    pub(super) const GPU_DIRECT_RDMA_SUPPORTED: c_int = 116;
    pub(super) const CAN_USE_64_BIT_STREAM_MEM_OPS: c_int = 122;
    pub(super) const CAN_USE_STREAM_WAIT_VALUE_NOR: c_int = 123;
    pub(super) const ATOMIC_REDUCTION_SUPPORTED: c_int = 148;
}

/// When a wait for a word of 32 bits is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Until {
    /// Its difference to the value, as a signed number, is not negative.
    Geq = 0,
    /// It is the value.
    Eq = 1,
    /// It has a bit of the value.
    And = 2,
    /// There is a bit that neither it nor the value has.
    Nor = 3,
}

/// An operation. Addresses are those of memory that the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemOp {
    /// Waits for a word of 32 bits.
    Wait {
        /// Its address.
        at: u64,
        /// What it is compared with.
        value: u32,
        /// How.
        until: Until,
    },
    /// Waits until a word of 64 bits, less the value, is not negative as a signed number, where
    /// [`Features::wide`].
    Wait64 {
        /// Its address.
        at: u64,
        /// What it is compared with.
        value: u64,
    },
    /// Stores 32 bits.
    Write32 {
        /// The address.
        to: u64,
        /// What.
        value: u32,
    },
    /// Stores 64 bits, where [`Features::wide`].
    Write64 {
        /// The address.
        to: u64,
        /// What.
        value: u64,
    },
    /// Adds to 32 bits, atomically, where [`Features::reduction`].
    Add32 {
        /// The address.
        to: u64,
        /// What.
        value: u32,
    },
    /// A fence of the whole system.
    Barrier,
    /// Makes writes of adapters visible that have come before, where [`Features::flush`].
    Flush,
}

impl MemOp {
    fn raw(self) -> Raw {
        match self {
            MemOp::Wait { at, value, until } => [WAIT_VALUE_32, at, value.into(), until as u64, 0, 0],
            MemOp::Wait64 { at, value } => [WAIT_VALUE_64, at, value, Until::Geq as u64, 0, 0],
            MemOp::Write32 { to, value } => [WRITE_VALUE_32, to, value.into(), 0, 0, 0],
            MemOp::Write64 { to, value } => [WRITE_VALUE_64, to, value, 0, 0, 0],
            MemOp::Add32 { to, value } => [ATOMIC_REDUCTION, ADD_UNSIGNED_32, to, value.into(), 0, 0],
            MemOp::Barrier => [BARRIER, 0, 0, 0, 0, 0],
            MemOp::Flush => [FLUSH_REMOTE_WRITES, 0, 0, 0, 0, 0],
        }
    }
}

/// A batch as the driver takes it.
pub(super) fn raw(ops: &[MemOp]) -> Vec<Raw> {
    ops.iter().map(|op| op.raw()).collect()
}

/// Which operations a device has, by its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The driver has memory operations, in the version that needs no option of it.
    pub batches: bool,
    /// Stores and waits of 64 bits.
    pub wide: bool,
    /// Waits by [`Until::Nor`].
    pub nor: bool,
    /// [`MemOp::Flush`].
    pub flush: bool,
    /// What an adapter writes to the device's memory is not in order for the device.
    pub unordered: bool,
    /// [`MemOp::Add32`].
    pub reduction: bool,
}

/// Those of the stream's device. One that the driver does not know is not there.
pub fn features(stream: Stream) -> Result<Features, Error> {
    let (api, entered) = stream.enter()?;
    let device = entered.device()?;
    let value = |which| api.attribute(which, device);
    Ok(Features {
        batches: api.has_mem_ops(),
        wide: value(device_attr::CAN_USE_64_BIT_STREAM_MEM_OPS) != 0,
        nor: value(device_attr::CAN_USE_STREAM_WAIT_VALUE_NOR) != 0,
        flush: value(device_attr::CAN_FLUSH_REMOTE_WRITES) != 0,
        unordered: value(device_attr::GPU_DIRECT_RDMA_SUPPORTED) != 0 && !adapter::is_ordered(api, device),
        reduction: value(device_attr::ATOMIC_REDUCTION_SUPPORTED) != 0,
    })
}

/// Queues a batch of at most [`MOST_IN_BATCH`] operations; in a stream that is being captured, it becomes a
/// node of the graph.
///
/// # Safety
/// The memory is there until the batch is done, or as often as the graph is launched; to access it so is in
/// order with what else does.
pub unsafe fn queue_batch(stream: Stream, ops: &[MemOp]) -> Result<(), Error> {
    let (api, _entered) = stream.enter()?;
    let raw = raw(ops);
    api.mem_ops(stream.handle() as Handle, raw.len() as u32, raw.as_ptr(), 0)
}
