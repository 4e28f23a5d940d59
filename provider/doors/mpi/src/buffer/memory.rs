//! Host memory in place of a device's: page-locked, and kept for the next call; for data that lie far apart,
//! address space of which only the pages that are used have memory.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use hmem::locked::{Buffer, Pool};
use hmem::{Kind, registry};

use super::device::DeviceMemory;

/// The least that is allocated, and the most that is page-locked and kept.
const LEAST: usize = 1 << 12;
const MOST_LOCKED: usize = 1 << 30;
/// Buffers of one length that are kept, by their length.
const KEPT: [(usize, usize); 3] = [(1 << 16, 64), (1 << 22, 8), (usize::MAX, 2)];
/// Most bytes of address space for one buffer: half of what a process has.
const MOST_MAPPED: usize = 1 << 46;

static POOLS: Mutex<BTreeMap<usize, Pool>> = Mutex::new(BTreeMap::new());

/// Memory of the host's.
#[derive(Debug)]
pub(super) enum Memory {
    /// Of a pool.
    Pooled(Buffer),
    /// Mapped for one call.
    Mapped(Mapped),
    /// Of a device's, for the MPI's transport alone.
    Device(DeviceMemory),
}

impl Memory {
    /// `len` bytes, of which `used` will be accessed, for copies from and to that kind; `None` where there is
    /// no such memory.
    pub(super) fn new(len: usize, used: usize, kind: Kind) -> Option<Memory> {
        if len > MOST_LOCKED || len / 8 > used.max(1 << 20) {
            return Mapped::new(len).map(Memory::Mapped);
        }
        let class = len.max(LEAST).next_power_of_two();
        let pool = {
            let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = KEPT.iter().find(|(most, _)| class <= *most).map_or(0, |(_, kept)| *kept);
            pools.entry(class).or_insert_with(|| Pool::without_bound(kept, class, LEAST)).clone()
        };
        let mut buffer = pool.take().ok()?;
        if kind != Kind::System {
            // Where it is refused copies only take longer.
            buffer.lock_for(registry::of(kind));
        }
        Some(Memory::Pooled(buffer))
    }

    /// The first byte.
    pub(super) fn at(&self) -> usize {
        match self {
            Memory::Pooled(buffer) => buffer.at().expose_provenance(),
            Memory::Mapped(mapped) => mapped.at.as_ptr().expose_provenance(),
            Memory::Device(memory) => memory.at(),
        }
    }
}

/// Address space with memory where it is used.
#[derive(Debug)]
pub(super) struct Mapped {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns the bytes.
unsafe impl Send for Mapped {}

impl Mapped {
    fn new(len: usize) -> Option<Mapped> {
        if len > MOST_MAPPED {
            return None;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, where the kernel likes.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        Some(Mapped { at: NonNull::new(at.cast())?, len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this mapping, which nothing uses any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_and_far_data_take_address_space_alone() {
        let first = Memory::new(5000, 5000, Kind::System).unwrap();
        let at = first.at();
        assert!(matches!(first, Memory::Pooled(_)));
        drop(first);
        assert_eq!(Memory::new(8000, 8000, Kind::System).unwrap().at(), at);
        let far = Memory::new(1 << 40, 16, Kind::System).unwrap();
        let last = (far.at() + (1 << 40) - 1) as *mut u8;
        // SAFETY: the last byte of the mapping.
        unsafe { last.write(7) };
        assert!(matches!(far, Memory::Mapped(_)));
        assert!(Memory::new(1 << 47, 16, Kind::System).is_none());
    }
}
