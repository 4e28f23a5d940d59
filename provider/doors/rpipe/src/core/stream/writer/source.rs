//! Where the program finds blocks, and where the bytes of those are that are put.

use std::sync::atomic::Ordering::Relaxed;

use super::on_device::OnDevice;
use crate::core::context::Ready;
use crate::core::memory::Line;
use crate::core::slot::{INLINE, Words as _};
use crate::core::stream::Mode;
use crate::{Error, Memory};

#[derive(Debug)]
pub(super) struct Source {
    /// Where the program finds short blocks, and where all begin that are put: a heap of the same length.
    local: Memory,
    local_at: usize,
    /// Where the blocks that the program finds there begin, in memory of whatever kind.
    local_base: usize,
    /// What a device has part in.
    on_device: Option<Box<OnDevice>>,
    /// The reader's region, if messages are all that has to be stored there; and where its heap begins.
    direct: Option<Memory>,
    heap_at: usize,
}

impl Source {
    /// `mapped`: the reader's region, if messages are stored there. `device`: blocks are memory of this
    /// device.
    pub(super) fn new(ready: &Ready, mapped: Option<&Memory>, device: Option<i32>) -> Result<Source, Error> {
        let shape = ready.met.shape;
        let (local, local_at) = match mapped {
            Some(_) if device.is_some() => (Memory::private(0)?, 0),
            Some(_) => (Memory::private(shape.heap)?, 0),
            None => (ready.mine.memory.clone(), shape.writer_heap_at()),
        };
        let is_stored = ready.met.manner.mode == Mode::Store;
        let peer = ready.their_device.clone();
        let on_device = OnDevice::new(peer, is_stored, device, &local, shape)?;
        let direct = mapped.filter(|_| on_device.is_none()).cloned();
        let local_base = match on_device.as_ref().and_then(|all| all.local()) {
            Some(local) => local.addr(),
            None => local.address(local_at).expose_provenance(),
        };
        Ok(Source { local, local_at, local_base, on_device, direct, heap_at: shape.heap_at() })
    }

    /// Where the program finds a block of so many bytes at this offset of the heap.
    #[inline(always)]
    pub(super) fn address(&self, offset: usize, len: usize) -> Option<*mut u8> {
        match &self.direct {
            Some(theirs) if len > INLINE => theirs.place(self.heap_at + offset),
            _ => Some(std::ptr::with_exposed_provenance_mut(self.local_base + offset)),
        }
    }

    /// A slot of the reader's at `at` of its region, if messages are all that has to be stored there.
    #[inline(always)]
    pub(super) fn slot(&self, at: usize) -> Option<&Line> {
        self.direct.as_ref()?.line(at)
    }

    /// Blocks of more than a slot takes are memory of the reader.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The words of a block that is found here.
    #[inline(always)]
    pub(super) fn words(&self, offset: usize, count: usize) -> impl Iterator<Item = u64> + '_ {
        let from = self.local_at + offset;
        (0..count).map(move |n| self.local.load(from + 8 * n, Relaxed))
    }

    pub(super) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        self.local.copy_out(self.local_at + offset, bytes);
    }

    /// Where a block that is put begins in this end's region.
    pub(super) fn place(&self, offset: usize) -> usize {
        self.local_at + offset
    }

    /// A block of the host's memory.
    pub(super) fn host(&self, offset: usize) -> *const u8 {
        self.local.address(self.local_at + offset)
    }

    pub(super) fn on_device(&self) -> Option<&OnDevice> {
        self.on_device.as_deref()
    }
}
