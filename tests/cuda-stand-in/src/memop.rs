//! Memory operations of streams: batches of them, checked when they are queued, done one after the other.
//!
//! Layouts and values are those of cuda.h (13.1). A device has what its attributes say: operations of 64 bits
//! (122), waits by NOR (123), flushes (98) and atomic reductions (148).

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

use stand_in::memory;

use crate::{INVALID_VALUE, NOT_SUPPORTED, device};

/// The driver takes fewer than that in a batch.
const LIMIT: u32 = 256;
/// `CU_STREAM_WAIT_VALUE_FLUSH`.
const WAIT_FLUSH: u64 = 1 << 30;

/// What a batch does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MemOp {
    Wait {
        at: u64,
        len: usize,
        value: u64,
        how: u64,
    },
    Write {
        to: u64,
        len: usize,
        value: u64,
    },
    Add {
        to: u64,
        len: usize,
        value: u64,
    },
    /// A flush or a barrier: all of it is in order here.
    Order,
}

/// A batch as the driver gets it; in `Err`, what it answers.
pub(crate) unsafe fn read(count: u32, ops: *const [u64; 6], flags: u32) -> Result<Vec<MemOp>, i32> {
    if count >= LIMIT || flags != 0 {
        return Err(INVALID_VALUE);
    }
    (0..count as usize).map(|i| one(unsafe { *ops.add(i) })).collect()
}

fn has(attribute: i32) -> Result<(), i32> {
    if device::attribute(attribute) != 0 { Ok(()) } else { Err(NOT_SUPPORTED) }
}

fn one(raw: [u64; 6]) -> Result<MemOp, i32> {
    let [what, address, value, flags, ..] = raw;
    let len = match what as u32 {
        1 | 2 => 4,
        4 | 5 => {
            has(122)?;
            8
        }
        3 => {
            has(98)?;
            return Ok(MemOp::Order);
        }
        // CU_STREAM_MEMORY_BARRIER_TYPE_SYS and _GPU
        6 => return if what >> 32 <= 1 { Ok(MemOp::Order) } else { Err(INVALID_VALUE) },
        8 => {
            has(148)?;
            let [head, kind, to, value, ..] = raw;
            // CU_STREAM_ATOMIC_REDUCTION_OP_ADD; _UNSIGNED_32 and _64
            let len = match (head >> 32, kind as u32, kind >> 32) {
                (0, 0, 14) => 4,
                (0, 0, 22) => 8,
                _ => return Err(INVALID_VALUE),
            };
            return placed(to, len).map(|()| MemOp::Add { to, len, value });
        }
        _ => return Err(INVALID_VALUE),
    };
    placed(address, len)?;
    let flags = flags & u64::from(u32::MAX);
    if matches!(what as u32, 2 | 5) {
        return if flags == 0 { Ok(MemOp::Write { to: address, len, value }) } else { Err(INVALID_VALUE) };
    }
    if flags & WAIT_FLUSH != 0 {
        has(98)?;
    }
    let how = flags & !WAIT_FLUSH;
    if how == 3 {
        has(123)?;
    }
    if how <= 3 { Ok(MemOp::Wait { at: address, len, value, how }) } else { Err(INVALID_VALUE) }
}

/// Only memory that the driver knows, aligned.
fn placed(at: u64, len: usize) -> Result<(), i32> {
    let region = memory::find(at as usize);
    let inside = region.is_some_and(|r| at as usize - r.base + len <= r.len);
    if inside && at % len as u64 == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

impl MemOp {
    /// Does it; `None`: a wait is not over. `Some(false)`: its memory is gone.
    pub(crate) fn run(self) -> Option<bool> {
        let (at, len) = match self {
            MemOp::Order => return Some(true),
            MemOp::Wait { at, len, .. } => (at, len),
            MemOp::Write { to, len, .. } | MemOp::Add { to, len, .. } => (to, len),
        };
        if placed(at, len).is_err() {
            return Some(false);
        }
        let Some((place, _keep)) = memory::alias(at as usize, len) else { return Some(false) };
        let (half, whole) = (place.cast::<u32>(), place.cast::<u64>());
        let load = || unsafe {
            if len == 4 {
                u64::from(AtomicU32::from_ptr(half).load(SeqCst))
            } else {
                AtomicU64::from_ptr(whole).load(SeqCst)
            }
        };
        match self {
            MemOp::Wait { value, how, .. } => met(load(), value, how, len).then_some(true),
            MemOp::Write { value, .. } => {
                unsafe {
                    match len {
                        4 => AtomicU32::from_ptr(half).store(value as u32, SeqCst),
                        _ => AtomicU64::from_ptr(whole).store(value, SeqCst),
                    }
                }
                Some(true)
            }
            MemOp::Add { value, .. } => {
                unsafe {
                    match len {
                        4 => drop(AtomicU32::from_ptr(half).fetch_add(value as u32, SeqCst)),
                        _ => drop(AtomicU64::from_ptr(whole).fetch_add(value, SeqCst)),
                    }
                }
                Some(true)
            }
            MemOp::Order => Some(true),
        }
    }
}

/// Whether a wait is over: `CU_STREAM_WAIT_VALUE_GEQ`, `_EQ`, `_AND`, `_NOR`.
fn met(word: u64, value: u64, how: u64, len: usize) -> bool {
    let mask = if len == 4 { u64::from(u32::MAX) } else { u64::MAX };
    let value = value & mask;
    match how {
        0 if len == 4 => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
        0 => word.wrapping_sub(value) as i64 >= 0,
        1 => word == value,
        2 => word & value != 0,
        _ => !(word | value) & mask != 0,
    }
}
