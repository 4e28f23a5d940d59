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
/// Parts of address space that lie together: at most so many bytes are between two blocks of one, and of a
/// buffer there are at most so many.
const TOGETHER: usize = 1 << 21;
const MOST_PARTS: usize = 64;
/// How far parts are moved, in steps.
const STEP: usize = 1 << 38;

static POOLS: Mutex<BTreeMap<usize, Pool>> = Mutex::new(BTreeMap::new());

/// Memory of the host's.
#[derive(Debug)]
pub(super) enum Memory {
    /// Of a pool.
    Pooled(Buffer),
    /// Mapped for one call.
    Mapped(Mapped),
    /// Several, as far from each other as the data are.
    Parts { _all: Vec<Mapped>, at: usize },
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

    /// Memory for the blocks at these addresses alone, each as far from its own as the others: the first one
    /// is where the lowest one is. `None` where there are many parts, or no place for all.
    pub(super) fn parts(blocks: impl FnOnce(&mut dyn FnMut(usize, usize) -> bool)) -> Option<Memory> {
        let mut parts: Vec<(usize, usize)> = Vec::new();
        let mut is_possible = true;
        blocks(&mut |at, len| {
            let near = |(first, end): &&mut (usize, usize)| {
                at <= end.saturating_add(TOGETHER) && *first <= at.saturating_add(len + TOGETHER)
            };
            match parts.iter_mut().find(near) {
                Some((first, end)) => (*first, *end) = ((*first).min(at), (*end).max(at + len)),
                None => parts.push((at, at + len)),
            }
            is_possible = parts.len() <= MOST_PARTS;
            is_possible
        });
        parts.sort_unstable();
        let lowest = parts.first().filter(|_| is_possible)?.0;
        let mut apart: Vec<(usize, usize)> = Vec::new();
        for (first, end) in parts {
            match apart.last_mut() {
                Some((_, last)) if first <= last.saturating_add(TOGETHER) => *last = (*last).max(end),
                _ => apart.push((first, end)),
            }
        }
        let moved = |by: usize| -> Option<Memory> {
            let all = apart.iter().map(|(first, end)| Mapped::at(first.checked_sub(by)?, end - first));
            Some(Memory::Parts { _all: all.collect::<Option<_>>()?, at: lowest.checked_sub(by)? })
        };
        (1..=lowest / STEP).find_map(|steps| moved(steps * STEP))
    }

    /// The first byte.
    pub(super) fn at(&self) -> usize {
        match self {
            Memory::Parts { at, .. } => *at,
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

    /// The pages of these bytes, if nothing is there.
    fn at(first: usize, len: usize) -> Option<Mapped> {
        /// Which are not longer.
        const PAGE: usize = 1 << 16;
        let from = first - first % PAGE;
        let len = (first + len).next_multiple_of(PAGE) - from;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let hint = std::ptr::with_exposed_provenance_mut(from);
        // SAFETY: a new mapping, in place of no other.
        let at = unsafe { libc::mmap(hint, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        let mapped = Mapped { at: NonNull::new(at.cast())?, len };
        // Linux before 4.17 takes the address for a hint.
        (at == hint).then_some(mapped)
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

    #[test]
    fn blocks_that_are_apart_have_memory_alone_and_as_far_apart() {
        static NEAR: [u8; 64] = [0; 64];
        let far = Mapped::new(1 << 20).unwrap();
        let (near, far) = (NEAR.as_ptr().expose_provenance(), far.at.as_ptr().expose_provenance());
        assert!(near.abs_diff(far) > STEP);
        // More than one mirror is possible at a time, and what is near is one part.
        let made: Vec<Memory> = (0..3)
            .map(|_| {
                Memory::parts(|each| {
                    let _ = each(far + (1 << 18), 40) && each(near, 64) && each(far + 100, 1 << 18);
                })
                .unwrap()
            })
            .collect();
        for (n, memory) in made.iter().enumerate() {
            let Memory::Parts { _all: all, at } = memory else { panic!("not in parts") };
            assert_eq!(all.len(), 2);
            for block in [near, near + 63, far + 100, far + (1 << 18) + 39] {
                let byte = (at + block.wrapping_sub(near.min(far + 100))) as *mut u8;
                // SAFETY: a byte of a block.
                unsafe {
                    assert_eq!(byte.read(), 0);
                    byte.write(n as u8 + 1);
                }
            }
        }
        let many = Memory::parts(|each| {
            let mut n = 1;
            while each(n << 32, 8) {
                n += 1;
            }
            assert_eq!(n, MOST_PARTS + 1);
        });
        assert!(many.is_none());
    }
}
