//! Windows: memory that one process makes and its peers map, so that they load and store it
//! themselves.
//!
//! A window is a sealed memfd. Its name, the number of its maker and its own, travels by any means
//! (in a UCX remote key); the descriptor goes over the socket of a channel, once, when a peer asks
//! for it ([`ShmLink::want`](super::ShmLink::want)). Nothing has a name in a file system.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hmem::share::FileAt;
use ipc::Mapping;
use ipc::memfd::{self, Writers};

pub use wire::channel::WindowId;

/// Between two packets that ask for the same window.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// After how many answers that a window is granted, and came without its descriptor, it is requested no
/// more.
pub(in crate::shm) const MOST_BARE: u32 = 100;

#[derive(Debug)]
pub(in crate::shm) enum Import {
    /// When, and how many answers came without the descriptor.
    Asked(Instant, u32),
    Here(Arc<Mapping>),
    Denied,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    ours: HashMap<u64, (OwnedFd, Arc<Mapping>)>,
    theirs: HashMap<WindowId, Import>,
}

/// The windows that a process has made, and those of others it has mapped. Links share it.
#[derive(Debug)]
pub struct Windows {
    maker: u64,
    inner: Mutex<Inner>,
}

impl Windows {
    /// None yet.
    pub fn new() -> io::Result<Windows> {
        Ok(Windows { maker: crate::random()?, inner: Mutex::default() })
    }

    /// The number of this maker, random.
    pub fn maker(&self) -> u64 {
        self.maker
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes a window of `len` bytes, a multiple of the page size, all zero; at the address `at` if
    /// that is given, where nothing may be mapped yet, else where the kernel likes.
    pub fn create(&self, len: usize, at: Option<usize>) -> io::Result<(WindowId, Arc<Mapping>)> {
        self.add(len, |fd| Mapping::new(fd, len, at))
    }

    /// The same at the address `at`, in place of what is mapped there.
    ///
    /// # Safety
    /// `at..at+len` must be the caller's memory, or unmapped, and no longer in use.
    pub unsafe fn create_over(&self, len: usize, at: usize) -> io::Result<(WindowId, Arc<Mapping>)> {
        // SAFETY: the caller's promise.
        self.add(len, |fd| unsafe { Mapping::over(fd, len, at) })
    }

    fn add(
        &self,
        len: usize,
        map: impl FnOnce(&OwnedFd) -> io::Result<Mapping>,
    ) -> io::Result<(WindowId, Arc<Mapping>)> {
        let fd = memfd::create(c"strait-window", len, Writers::All)?;
        let mapping = Arc::new(map(&fd)?);
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        inner.ours.insert(number, (fd, Arc::clone(&mapping)));
        Ok((WindowId { maker: self.maker, number }, mapping))
    }

    /// Forgets a window of ours: no further peer gets it. Those that have it keep what they mapped.
    pub fn remove(&self, id: WindowId) {
        if id.maker == self.maker {
            self.lock().ours.remove(&id.number);
        }
    }

    /// The memory of a window, if it is ours or has come.
    pub fn find(&self, id: WindowId) -> Option<Arc<Mapping>> {
        let inner = self.lock();
        if id.maker == self.maker {
            return inner.ours.get(&id.number).map(|(_, mapping)| Arc::clone(mapping));
        }
        match inner.theirs.get(&id)? {
            Import::Here(mapping) => Some(Arc::clone(mapping)),
            Import::Asked(..) | Import::Denied => None,
        }
    }

    /// How a peer without a channel to it gets at a window of this process's ([`Windows::fetch`]).
    pub fn place(&self, number: u64) -> Option<FileAt> {
        FileAt::of(&self.lock().ours.get(&number)?.0).ok()
    }

    /// The memory of a window, fetched from its maker, the process `pid`, if it is not here yet. The kernel
    /// has to allow that (pidfd_getfd(2)); a process that is no peer has no such window.
    pub fn fetch(&self, id: WindowId, pid: i32, at: FileAt) -> Result<Arc<Mapping>, String> {
        if let Some(here) = self.find(id) {
            return Ok(here);
        }
        let fd = at.fetch(pid).map_err(|e| e.to_string())?;
        let mapping = Arc::new(adopt(&fd)?);
        self.lock().theirs.insert(id, Import::Here(Arc::clone(&mapping)));
        Ok(mapping)
    }

    /// Whether its maker said that there is no such window, or it does not come.
    pub fn denied(&self, id: WindowId) -> bool {
        matches!(self.lock().theirs.get(&id), Some(Import::Denied))
    }

    /// A peer's window is no longer of use here, unless its mapping is still held elsewhere.
    pub fn forget(&self, id: WindowId) {
        let mut inner = self.lock();
        let used = match inner.theirs.get(&id) {
            Some(Import::Here(mapping)) => Arc::strong_count(mapping) > 1,
            Some(_) => false,
            None => return,
        };
        if !used {
            inner.theirs.remove(&id);
        }
    }

    /// Unmaps a window that is not used; one that was requested is still awaited.
    pub fn unmap(&self, id: WindowId) {
        let mut inner = self.lock();
        let unused = |at: &Import| matches!(at, Import::Here(mapping) if Arc::strong_count(mapping) == 1);
        if inner.theirs.get(&id).is_some_and(unused) {
            inner.theirs.remove(&id);
        }
    }

    /// Whether it is time to ask for this window, which is so noted.
    pub(in crate::shm) fn ask(&self, id: WindowId) -> bool {
        let now = Instant::now();
        let mut inner = self.lock();
        let at = inner.theirs.entry(id).or_insert(Import::Asked(now, 0));
        match at {
            Import::Here(_) | Import::Denied => return false,
            Import::Asked(when, _) if now > *when && now - *when < ASK_AGAIN => return false,
            Import::Asked(when, _) => *when = now,
        }
        true
    }

    /// A grant came without the descriptor; whether that was the last one that is waited for.
    pub(in crate::shm) fn bare(&self, id: WindowId) -> bool {
        let mut inner = self.lock();
        let Some(at) = inner.theirs.get_mut(&id) else { return false };
        let Import::Asked(_, bare) = at else { return false };
        *bare += 1;
        let last = *bare >= MOST_BARE;
        if last {
            *at = Import::Denied;
        }
        last
    }

    pub(in crate::shm) fn answer(&self, id: WindowId, import: Import) {
        // Only what was requested, and is still wanted.
        if let Some(at @ Import::Asked(..)) = self.lock().theirs.get_mut(&id) {
            *at = import;
        }
    }

    /// Hands out the descriptor of one of ours.
    pub(in crate::shm) fn with_fd<T>(&self, number: u64, f: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let inner = self.lock();
        let (fd, _) = inner.ours.get(&number)?;
        Some(f(fd.as_fd()))
    }
}

/// The memory of a window that a peer sent; the reason if it is not one as agreed.
pub(in crate::shm) fn adopt(fd: &OwnedFd) -> Result<Mapping, String> {
    memfd::adopt(fd, ..).map_err(|why| why.to_string())
}
