//! Memory of devices for what a call packs, or receives from others: kept for the next call.

use std::sync::{Mutex, PoisonError};

use hmem::Kind;
use hmem::cuda::Stream;
use hmem::registry::{self, Exportable};

/// The least that is allocated, and the most.
const LEAST: usize = 1 << 20;
const MOST: usize = 1 << 30;
/// Buffers that are kept, of all devices, and the most bytes of one.
const KEPT: usize = 8;
const MOST_KEPT: usize = 1 << 26;

/// A buffer that is not in use.
struct Free {
    /// The handle and the number of its context.
    context: (usize, u64),
    len: usize,
    memory: Exportable,
}

static FREE: Mutex<Vec<Free>> = Mutex::new(Vec::new());

/// Device memory that other processes reach.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: (usize, u64),
    len: usize,
    memory: Option<Exportable>,
}

impl DeviceMemory {
    /// `len` bytes, from a multiple of 256 on, in the context of the memory at `near`; `None` where there are
    /// none.
    pub(crate) fn new(near: usize, len: usize) -> Option<DeviceMemory> {
        if len > MOST {
            return None;
        }
        let len = len.max(LEAST).next_power_of_two();
        let legacy = Stream::legacy(near).ok()?;
        let context = (legacy.context(), legacy.context_id().ok()?);
        let found = {
            let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
            let at = free.iter().position(|free| free.context == context && free.len == len);
            at.map(|at| free.swap_remove(at).memory)
        };
        let memory = match found {
            Some(memory) => memory,
            None => registry::of(Kind::Cuda).make_exportable(near, len).ok()?,
        };
        Some(DeviceMemory { context, len, memory: Some(memory) })
    }

    /// The first byte.
    pub(crate) fn at(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.addr)
    }

    /// It is not used again: a message may still come there.
    pub(crate) fn abandon(mut self) {
        std::mem::forget(self.memory.take());
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take().filter(|_| self.len <= MOST_KEPT) else { return };
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        // A context of that handle with another number is gone.
        free.retain(|one| one.context.0 != self.context.0 || one.context.1 == self.context.1);
        if free.len() == KEPT {
            free.remove(0);
        }
        free.push(Free { context: self.context, len: self.len, memory });
    }
}
