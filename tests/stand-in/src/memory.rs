//! Memory: what there is, and where copies find its bytes.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NAME: &CStr = c"stand-in";

/// Of the host.
pub const PAGE: usize = 4096;

/// Memory that may be mapped in several places.
#[derive(Debug)]
pub struct Backing {
    pub fd: OwnedFd,
    pub len: usize,
    pub device: u32,
    alias: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// cuMemAlloc.
    Plain,
    /// cuMemAllocAsync.
    Pool,
    /// cuMemMap.
    Mapped,
    /// cuMemAllocManaged.
    Managed,
    /// cuMemHostAlloc, cuMemHostRegister.
    Host,
    /// Of another process.
    Opened,
}

#[derive(Clone, Debug)]
pub struct Region {
    pub base: usize,
    pub len: usize,
    pub id: u64,
    pub sort: Sort,
    /// Its context; 0 where it has none.
    pub ctx: usize,
    pub device: c_int,
    /// Where in `backing` it begins.
    pub skip: usize,
    pub backing: Option<Arc<Backing>>,
}

fn regions() -> MutexGuard<'static, Vec<Region>> {
    static REGIONS: Mutex<Vec<Region>> = Mutex::new(Vec::new());
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn new_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(0);
    IDS.fetch_add(1, Ordering::Relaxed) + 1
}

impl Backing {
    pub fn new(len: usize, device: u32) -> Option<Arc<Backing>> {
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let len = len.next_multiple_of(PAGE);
        if unsafe { libc::ftruncate(fd.as_raw_fd(), len as i64) } < 0 {
            return None;
        }
        Backing::of(fd, len, device)
    }

    pub fn of(fd: OwnedFd, len: usize, device: u32) -> Option<Arc<Backing>> {
        let alias = map(0, len, libc::PROT_READ | libc::PROT_WRITE, Some(fd.as_raw_fd()))?;
        Some(Arc::new(Backing { fd, len, device, alias }))
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        unmap(self.alias, self.len);
    }
}

/// Maps `len` bytes of `fd` (else of nothing) at `at` (0: anywhere).
pub fn map(at: usize, len: usize, prot: c_int, fd: Option<RawFd>) -> Option<usize> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = fixed | if fd.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    let p = unsafe { libc::mmap(at as *mut c_void, len, prot, flags, fd.unwrap_or(-1), 0) };
    (p != libc::MAP_FAILED).then_some(p as usize)
}

pub fn unmap(at: usize, len: usize) {
    unsafe { libc::munmap(at as *mut c_void, len) };
}

pub fn find(addr: usize) -> Option<Region> {
    regions().iter().find(|r| addr.wrapping_sub(r.base) < r.len).cloned()
}

pub fn add(region: Region) {
    regions().push(region);
}

pub fn remove(base: usize) -> Option<Region> {
    let mut all = regions();
    let at = all.iter().position(|r| r.base == base)?;
    Some(all.remove(at))
}

/// Host memory that was made known in a context is not any more, nor is other processes' memory there, since
/// the context is gone.
pub fn forget_host(ctx: usize) {
    regions().retain(|r| r.ctx != ctx || r.sort != Sort::Host);
    let opened = |r: &&Region| r.ctx == ctx && r.sort == Sort::Opened;
    let opened: Vec<usize> = regions().iter().filter(opened).map(|r| r.base).collect();
    opened.into_iter().for_each(|base| drop(free(base)));
}

/// Where the CPU finds `len` bytes at `addr`, and what keeps them there; `None` if they go on behind the
/// memory's end.
pub fn alias(addr: usize, len: usize) -> Option<(*mut u8, Option<Arc<Backing>>)> {
    let Some(r) = find(addr) else { return Some((addr as *mut u8, None)) };
    if len > r.len - (addr - r.base) {
        return None;
    }
    match r.backing {
        Some(b) => Some(((b.alias + r.skip + (addr - r.base)) as *mut u8, Some(b))),
        None => Some((addr as *mut u8, None)),
    }
}

/// One copy, which may span several regions; `false` if some of it is not there.
pub fn copy(mut dst: usize, mut src: usize, mut len: usize) -> bool {
    let room = |at: usize| find(at).map_or(usize::MAX, |r| r.len - (at - r.base));
    while len > 0 {
        let n = len.min(room(dst)).min(room(src));
        let (Some(to), Some(from)) = (alias(dst, n), alias(src, n)) else { return false };
        if to.1.is_some() && from.1.is_some() {
            unsafe { ptr::copy(from.0, to.0, n) };
        } else if !guarded(to.0, from.0, n) {
            return false;
        }
        (dst, src, len) = (dst + n, src + n, len - n);
    }
    true
}

/// A copy from or to what may not be there at all.
fn guarded(to: *mut u8, from: *mut u8, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        let at = |p: *mut u8| libc::iovec { iov_base: unsafe { p.add(done) }.cast(), iov_len: len - done };
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &at(to), 1, &at(from), 1, 0) };
        if n <= 0 {
            return false;
        }
        done += n as usize;
    }
    true
}

/// Device memory of `len` bytes: how it was made, its context, and its device, by the process's number
/// and by the machine's.
pub fn alloc(len: usize, sort: Sort, ctx: usize, device: c_int, number: u32) -> Option<usize> {
    let backing = Backing::new(len, number)?;
    let base = map(0, backing.len, libc::PROT_NONE, Some(backing.fd.as_raw_fd()))?;
    add(Region { base, len, id: new_id(), sort, ctx, device, skip: 0, backing: Some(backing) });
    Some(base)
}

/// Host memory that the device's driver knows.
pub fn alloc_host(len: usize, sort: Sort, ctx: usize, device: c_int) -> Option<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let base = map(0, len.next_multiple_of(PAGE), prot, None)?;
    add(Region { base, len, id: new_id(), sort, ctx, device, skip: 0, backing: None });
    Some(base)
}

/// Memory of a file that came from elsewhere.
pub fn open(fd: OwnedFd, len: usize, ctx: usize, device: c_int, number: u32) -> Option<usize> {
    let backing = Backing::of(fd, len.next_multiple_of(PAGE), number)?;
    let base = map(0, backing.len, libc::PROT_NONE, Some(backing.fd.as_raw_fd()))?;
    let sort = Sort::Opened;
    add(Region { base, len, id: new_id(), sort, ctx, device, skip: 0, backing: Some(backing) });
    Some(base)
}

/// Frees or closes what begins there.
pub fn free(base: usize) -> Option<Region> {
    let r = remove(base)?;
    unmap(r.base, r.len.next_multiple_of(PAGE));
    Some(r)
}

/// Which file it is: no other has the number while it is open.
pub fn inode(fd: RawFd) -> u64 {
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    unsafe { libc::fstat(fd, &mut st) };
    st.st_ino
}
