//! Memory that acts like a device's, for tests on machines without one.
//!
//! Its bytes live in a memfd mapped twice. The address handed out is PROT_NONE: neither the CPU nor
//! another process's process_vm_readv(2) gets anywhere by it. Only this module knows the other
//! mapping, and the copies of [`Kind::Fake`] go through it.

#[cfg(not(miri))]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::error::Error;
use crate::kind::Kind;
use crate::memory::{Allocate, Copies, Exportable, Handles, Memory};
use crate::pending::{Part, PendingCopy};
use crate::presence;
use crate::share::Opened;
use crate::span::Span;

#[derive(Clone)]
struct Region {
    addr: usize,
    len: usize,
    alias: usize,
    queue: Arc<Queue>,
}

/// Copies from and to one memory.
#[derive(Debug, Default)]
struct Queue {
    held: AtomicBool,
    in_flight: AtomicUsize,
}

/// Every fake memory alive. The aliases in it may be used while it is held for reading.
static REGIONS: RwLock<Vec<Region>> = RwLock::new(Vec::new());

fn regions() -> RwLockReadGuard<'static, Vec<Region>> {
    REGIONS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Its entry in the registry, which is known from the first memory on.
pub(crate) struct Fake;

impl Memory for Fake {
    fn kind(&self) -> Kind {
        Kind::Fake
    }

    fn find(&self) -> bool {
        false
    }

    fn describe(&self) -> Result<String, String> {
        Err("for tests".into())
    }

    fn acquire(&self, addr: usize, _len: usize) -> bool {
        regions().iter().any(|r| addr.wrapping_sub(r.addr) < r.len)
    }

    fn number(&self, addr: usize) -> Option<u64> {
        regions().iter().find(|r| r.addr == addr).map(|r| r.addr as u64)
    }
}

impl Handles for Fake {}

impl Copies for Fake {
    fn copy_now(&self, _dst: usize, _src: usize, _len: usize) -> Result<(), Error> {
        // [`copy`] is asked instead.
        Err(Error::UNSUPPORTED)
    }

    unsafe fn start(
        &self,
        parts: &[Part],
        keep: Vec<Opened>,
        _host: bool,
    ) -> Result<Box<dyn PendingCopy>, Error> {
        if !keep.is_empty() {
            return Err(Error::UNSUPPORTED);
        }
        let all = regions();
        let mut copies = Vec::new();
        let mut queues = Vec::<Arc<Queue>>::new();
        for &Part { dst, src, len } in parts {
            let side = |at: usize| {
                let region = all.iter().find(|r| at.wrapping_sub(r.addr) < r.len);
                let kind = if region.is_some() { Kind::Fake } else { Kind::System };
                // SAFETY: memory of that kind, valid for the copy by the caller's promise.
                (unsafe { Span::new(at, len, kind) }, region)
            };
            let ((dst, to), (src, from)) = (side(dst), side(src));
            copies.push((dst, src));
            queues.extend([to, from].into_iter().flatten().map(|r| r.queue.clone()));
        }
        for queue in &queues {
            queue.in_flight.fetch_add(1, Relaxed);
        }
        Ok(Box::new(Pending { copies, queues, asked: false }))
    }
}

impl Allocate for Fake {
    fn place(&self, _addr: usize) -> Option<usize> {
        Some(0)
    }

    fn make_exportable(&self, _near: usize, len: usize) -> Result<Exportable, Error> {
        let made = alloc(len);
        Ok(Exportable { addr: made.addr(), number: made.addr() as u64, _keep: Box::new(made) })
    }
}

/// A pending copy, done by its second poll, which copies the bytes. Dropped earlier, it copies nothing.
#[derive(Debug)]
struct Pending {
    copies: Vec<(Span, Span)>,
    queues: Vec<Arc<Queue>>,
    asked: bool,
}

impl PendingCopy for Pending {
    fn poll(&mut self) -> Result<bool, Error> {
        let held = self.queues.iter().any(|q| q.held.load(Relaxed));
        if !std::mem::replace(&mut self.asked, true) || held {
            return Ok(false);
        }
        self.copies.drain(..).for_each(|(dst, src)| copy(dst, src));
        Ok(true)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.in_flight.fetch_sub(1, Relaxed);
        }
    }
}

/// Fake device memory, freed when dropped.
#[derive(Debug)]
pub struct FakeMem {
    addr: usize,
    len: usize,
    alias: usize,
    mapped: usize,
    queue: Arc<Queue>,
}

/// Zeroed fake device memory.
///
/// # Panics
/// If the kernel has no memory, or `len` is 0.
pub fn alloc(len: usize) -> FakeMem {
    assert!(len > 0, "no fake memory of no bytes");
    let mapped = len.next_multiple_of(4096);
    let (addr, alias) = map_twice(mapped);
    let mem = FakeMem { addr, len, alias, mapped, queue: Arc::default() };
    let region = Region { addr: mem.addr, len, alias: mem.alias, queue: mem.queue.clone() };
    REGIONS.write().unwrap_or_else(PoisonError::into_inner).push(region);
    presence::is_here_now(Kind::Fake);
    mem
}

/// Maps so many bytes where no other code may touch them, and where this does.
#[cfg(not(miri))]
fn map_twice(mapped: usize) -> (usize, usize) {
    let fail = |what: &str| -> ! { panic!("{what}: {}", std::io::Error::last_os_error()) };
    // SAFETY: the name is a C string; nothing else is passed.
    let fd = unsafe { libc::memfd_create(c"strait-fake".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        fail("memfd_create");
    }
    // SAFETY: just made, and in no other place.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: touches nothing but the file.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), mapped as libc::off_t) } < 0 {
        fail("ftruncate");
    }
    let map = |prot| {
        // SAFETY: a new mapping, where the kernel finds room.
        let at = unsafe { libc::mmap(ptr::null_mut(), mapped, prot, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            fail("mmap");
        }
        at.expose_provenance()
    };
    (map(libc::PROT_NONE), map(libc::PROT_READ | libc::PROT_WRITE))
}

/// Miri knows no memfd: there the address for others is one where nothing is.
#[cfg(miri)]
fn map_twice(mapped: usize) -> (usize, usize) {
    static NOWHERE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(1 << 60);
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, where there is room.
    let at = unsafe { libc::mmap(ptr::null_mut(), mapped, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED, "no memory");
    let nowhere = NOWHERE.fetch_add(mapped + 4096, std::sync::atomic::Ordering::Relaxed);
    (nowhere, at.expose_provenance())
}

impl FakeMem {
    /// The address the application has of it.
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether pending copies from and to it stay pending, or complete by the next poll.
    pub fn hold(&self, on: bool) {
        self.queue.held.store(on, Relaxed);
    }

    /// Whether they stay so.
    pub fn is_held(&self) -> bool {
        self.queue.held.load(Relaxed)
    }

    /// Copies in flight from and to it.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight.load(Relaxed)
    }

    /// All of it. Safe, because copies through a span that outlives the memory are caught.
    pub fn span(&self) -> Span {
        // SAFETY: it is memory of that kind. Used after `self` is gone, the span is not found in
        // `REGIONS`, or found to be another fake memory's: a wrong answer, but never a wild access.
        unsafe { Span::new(self.addr, self.len, Kind::Fake) }
    }
}

impl Drop for FakeMem {
    fn drop(&mut self) {
        let mut all = REGIONS.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|r| r.addr != self.addr);
        for at in [self.addr, self.alias].into_iter().skip(usize::from(cfg!(miri))) {
            // SAFETY: `alloc` mapped that much there. The alias is off the list, which is
            // held for writing, so it is not in use; the other cannot be (under Miri it is no mapping).
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), self.mapped) };
        }
    }
}

/// Where the CPU finds the bytes of `s`.
///
/// # Panics
/// If it is a fake one, and not all of it is in a fake memory that is alive.
fn alias(all: &[Region], s: Span) -> *mut u8 {
    if s.kind() != Kind::Fake {
        return s.as_ptr();
    }
    let off = |r: &Region| (s.addr() as usize).wrapping_sub(r.addr);
    let inside = |r: &&Region| off(r) <= r.len && s.len() <= r.len - off(r);
    match all.iter().find(inside) {
        Some(r) => ptr::with_exposed_provenance_mut(r.alias + off(r)),
        None => panic!("no fake memory is {s:?}"),
    }
}

/// Copies all of `src` into `dst`, which is as long, either or both being fake.
#[cold]
pub(crate) fn copy(dst: Span, src: Span) {
    assert_eq!(dst.len(), src.len());
    let all = regions();
    let (to, from) = (alias(&all, dst), alias(&all, src));
    // SAFETY: each side is a span of memory the CPU may touch, valid by `Span`'s invariant, or
    // `len` bytes of an alias, which stays mapped while `all` is held. They may overlap.
    unsafe { ptr::copy(from, to, src.len()) }
}
