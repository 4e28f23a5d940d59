//! Mappings of windows as a kind of memory: a client of `hmem`, so that every provider accepts them.
//!
//! The CPU can load and store such memory, but the pages may go with their device, and an access is SIGBUS
//! then. So the client copies by `hmem`'s guarded instructions, and a fault is EIO. process_vm_readv(2) does
//! not reach it, and no other process maps the same pages: the kernel makes a new allocation for each
//! mapping.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use hmem::client::{self, Client, Importer, Place, Registered, Segment};
use hmem::guard;

use crate::publisher::Mapped;

/// The mappings there are: by address, their lengths.
static MAPPED: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

fn change(by: impl FnOnce(&mut BTreeMap<usize, usize>)) {
    by(&mut MAPPED.write().unwrap_or_else(PoisonError::into_inner));
}

pub(crate) fn insert(mapped: &Mapped) {
    if mapped.may_vanish() {
        change(|all| {
            all.insert(mapped.addr(), mapped.len());
        });
    }
}

pub(crate) fn remove(mapped: &Mapped) {
    if mapped.may_vanish() {
        change(|all| {
            all.remove(&mapped.addr());
        });
        invalidate(mapped.addr(), mapped.len());
    }
}

/// Whether all of `addr..addr+len` is in one mapping of a window.
pub fn is_window(addr: usize, len: usize) -> bool {
    let all = MAPPED.read().unwrap_or_else(PoisonError::into_inner);
    let before = all.range(..=addr).next_back();
    before.is_some_and(|(at, size)| {
        addr.checked_add(len).is_some_and(|end| addr < at + size && end <= at + size)
    })
}

/// What is registered of it: the client's name for a registration, and where it is.
static PINNED: Mutex<Vec<(u64, usize, usize)>> = Mutex::new(Vec::new());

fn pinned() -> MutexGuard<'static, Vec<(u64, usize, usize)>> {
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends registrations of memory that is unmapped.
fn invalidate(addr: usize, len: usize) {
    let gone: Vec<u64> = {
        let all = pinned();
        all.iter().filter(|(_, a, l)| *a < addr + len && addr < a + l).map(|(name, ..)| *name).collect()
    };
    let registered = REGISTERED.get().and_then(|r| r.as_ref().ok());
    for name in gone {
        // It may have ended meanwhile.
        let _ = registered.map(|r| r.invalidate(name));
    }
}

static REGISTERED: OnceLock<Result<Registered, i32>> = OnceLock::new();

/// Registers windows as a kind of memory in this process, once. Only where this is part of libstrait.so do
/// the other libraries of the process learn of it; in `Err`, an errno.
pub fn register() -> Result<(), i32> {
    match REGISTERED.get_or_init(|| client::register(Box::new(Windows))) {
        Ok(_) => Ok(()),
        Err(code) => Err(*code),
    }
}

struct Windows;

impl Client for Windows {
    fn name(&self) -> String {
        "p2pmem".into()
    }

    fn acquire(&self, addr: usize, len: usize) -> Result<Option<usize>, i32> {
        Ok(is_window(addr, len.max(1)).then_some(addr))
    }

    fn get_pages(
        &self,
        _ctx: usize,
        addr: usize,
        len: usize,
        _write: bool,
        name: u64,
    ) -> Result<Vec<Segment>, i32> {
        if !is_window(addr, len) {
            return Err(libc::EFAULT);
        }
        pinned().push((name, addr, len));
        Ok(vec![Segment { len, place: Place::Opaque }])
    }

    fn dma_map(&self, _ctx: usize, by: Importer, _segments: &mut Vec<Segment>) -> Result<(), i32> {
        match by {
            Importer::Process => Ok(()),
            // Linux makes no dma-buf of it; a network adapter registers it on demand, by its address.
            Importer::Device => Err(libc::EOPNOTSUPP),
        }
    }

    fn dma_unmap(&self, _ctx: usize, _by: Importer, _segments: &[Segment]) {}

    fn put_pages(&self, ctx: usize, segments: &[Segment]) {
        let len: usize = segments.iter().map(|s| s.len).sum();
        let mut all = pinned();
        if let Some(at) = all.iter().position(|(_, a, l)| *a == ctx && *l == len) {
            all.swap_remove(at);
        }
    }

    fn release(&self, _ctx: usize) {}

    unsafe fn copy(
        &self,
        _ctx: usize,
        addr: usize,
        host: *mut u8,
        len: usize,
        to_host: bool,
    ) -> Option<Result<(), i32>> {
        if !is_window(addr, len) {
            return Some(Err(libc::EFAULT));
        }
        let own = std::ptr::with_exposed_provenance_mut::<u8>(addr);
        let (to, from) = if to_host { (host, own.cast_const()) } else { (own, host.cast_const()) };
        // SAFETY: one side is `host`, the caller's promise. The other is inside a mapping of this process
        // that was readable and writable a moment ago; if it was unmapped since, or its device is gone, the
        // guard says so.
        Some(unsafe { guard::copy(to, from, len) }.map_err(|_| libc::EIO))
    }

    fn export_dmabuf(&self, _ctx: usize, _addr: usize, _len: usize) -> Result<(OwnedFd, u64), i32> {
        Err(libc::EOPNOTSUPP)
    }
}
