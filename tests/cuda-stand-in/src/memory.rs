//! Memory: what there is, where copies find its bytes, and what a pointer is told to be.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{INVALID_VALUE, OUT_OF_MEMORY, Ptr, SUCCESS, context, enter, enter_in_context};

pub(crate) const PAGE: usize = 4096;

/// Memory that may be mapped in several places.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) fd: OwnedFd,
    pub(crate) len: usize,
    pub(crate) device: u32,
    alias: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
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
pub(crate) struct Region {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) id: u64,
    pub(crate) sort: Sort,
    /// Its context; 0 where it has none.
    pub(crate) ctx: usize,
    pub(crate) device: c_int,
    pub(crate) backing: Option<Arc<Backing>>,
}

fn regions() -> MutexGuard<'static, Vec<Region>> {
    static REGIONS: Mutex<Vec<Region>> = Mutex::new(Vec::new());
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn new_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(0);
    IDS.fetch_add(1, Ordering::Relaxed) + 1
}

impl Backing {
    pub(crate) fn new(len: usize, device: u32) -> Option<Arc<Backing>> {
        let fd = unsafe { libc::memfd_create(c"cuda-stand-in".as_ptr(), libc::MFD_CLOEXEC) };
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

    pub(crate) fn of(fd: OwnedFd, len: usize, device: u32) -> Option<Arc<Backing>> {
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
pub(crate) fn map(at: usize, len: usize, prot: c_int, fd: Option<RawFd>) -> Option<usize> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = fixed | if fd.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
    let p = unsafe { libc::mmap(at as Ptr, len, prot, flags, fd.unwrap_or(-1), 0) };
    (p != libc::MAP_FAILED).then_some(p as usize)
}

pub(crate) fn unmap(at: usize, len: usize) {
    unsafe { libc::munmap(at as Ptr, len) };
}

pub(crate) fn find(addr: usize) -> Option<Region> {
    regions().iter().find(|r| addr.wrapping_sub(r.base) < r.len).cloned()
}

pub(crate) fn add(region: Region) {
    regions().push(region);
}

pub(crate) fn remove(base: usize) -> Option<Region> {
    let mut all = regions();
    let at = all.iter().position(|r| r.base == base)?;
    Some(all.remove(at))
}

/// Where the CPU finds `len` bytes at `addr`, and what keeps them there.
pub(crate) fn alias(addr: usize, len: usize) -> Result<(*mut u8, Option<Arc<Backing>>), i32> {
    let Some(r) = find(addr) else { return Ok((addr as *mut u8, None)) };
    if len > r.len - (addr - r.base) {
        return Err(INVALID_VALUE);
    }
    match r.backing {
        Some(b) => Ok(((b.alias + (addr - r.base)) as *mut u8, Some(b))),
        None => Ok((addr as *mut u8, None)),
    }
}

/// One copy, which may span several mapped regions.
pub(crate) fn copy(mut dst: usize, mut src: usize, mut len: usize) -> i32 {
    let room = |at: usize| find(at).map_or(usize::MAX, |r| r.len - (at - r.base));
    while len > 0 {
        let n = len.min(room(dst)).min(room(src));
        let (to, from) = match (alias(dst, n), alias(src, n)) {
            (Ok(to), Ok(from)) => (to, from),
            _ => return INVALID_VALUE,
        };
        if to.1.is_some() && from.1.is_some() {
            unsafe { ptr::copy(from.0, to.0, n) };
        } else if !guarded(to.0, from.0, n) {
            return INVALID_VALUE;
        }
        (dst, src, len) = (dst + n, src + n, len - n);
    }
    SUCCESS
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

fn alloc(out: *mut u64, len: usize, sort: Sort) -> i32 {
    let Some(ctx) = context::current() else { return crate::INVALID_CONTEXT };
    if len == 0 {
        return INVALID_VALUE;
    }
    let number = crate::device::visible()[ctx.device as usize];
    let Some(backing) = Backing::new(len, number) else { return OUT_OF_MEMORY };
    let Some(base) = map(0, backing.len, libc::PROT_NONE, Some(backing.fd.as_raw_fd())) else {
        return OUT_OF_MEMORY;
    };
    let owner = if sort == Sort::Plain { ctx.name } else { 0 };
    add(Region { base, len, id: new_id(), sort, ctx: owner, device: ctx.device, backing: Some(backing) });
    unsafe { *out = base as u64 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(out: *mut u64, len: usize) -> i32 {
    enter_in_context!("cuMemAlloc_v2");
    alloc(out, len, Sort::Plain)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(out: *mut u64, len: usize, _stream: Ptr) -> i32 {
    enter_in_context!("cuMemAllocAsync");
    alloc(out, len, Sort::Pool)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: u64, _stream: Ptr) -> i32 {
    cuMemFree_v2(at)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> i32 {
    enter!("cuMemFree_v2");
    let Some(r) = remove(at as usize) else { return INVALID_VALUE };
    unmap(r.base, r.len.next_multiple_of(PAGE));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocManaged(out: *mut u64, len: usize, _flags: u32) -> i32 {
    enter_in_context!("cuMemAllocManaged");
    host(out.cast(), len, Sort::Managed)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(out: *mut Ptr, len: usize, _flags: u32) -> i32 {
    enter_in_context!("cuMemHostAlloc");
    host(out.cast(), len, Sort::Host)
}

fn host(out: *mut u64, len: usize, sort: Sort) -> i32 {
    let Some(ctx) = context::current() else { return crate::INVALID_CONTEXT };
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let Some(base) = map(0, len.next_multiple_of(PAGE), prot, None) else { return OUT_OF_MEMORY };
    add(Region { base, len, id: new_id(), sort, ctx: ctx.name, device: ctx.device, backing: None });
    unsafe { *out = base as u64 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(at: Ptr) -> i32 {
    cuMemFree_v2(at as u64)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(at: Ptr, len: usize, _flags: u32) -> i32 {
    enter_in_context!("cuMemHostRegister_v2");
    let ctx = context::current().map_or(0, |c| c.name);
    add(Region { base: at as usize, len, id: new_id(), sort: Sort::Host, ctx, device: 0, backing: None });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(at: Ptr) -> i32 {
    enter!("cuMemHostUnregister");
    remove(at as usize).map_or(INVALID_VALUE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, at: u64) -> i32 {
    enter_in_context!("cuMemGetAddressRange_v2");
    let Some(r) = find(at as usize) else { return INVALID_VALUE };
    unsafe {
        if !base.is_null() {
            *base = r.base as u64;
        }
        if !len.is_null() {
            *len = r.len;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuPointerSetAttribute(_value: *const c_void, _attribute: u32, at: u64) -> i32 {
    enter!("cuPointerSetAttribute");
    find(at as usize).map_or(INVALID_VALUE, |_| SUCCESS)
}

/// Unlike the call for one attribute, this one does not fail for what is not the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    n: u32,
    attributes: *const u32,
    data: *const Ptr,
    at: u64,
) -> i32 {
    enter!("cuPointerGetAttributes");
    let r = find(at as usize);
    for i in 0..n as usize {
        let (what, to) = unsafe { (*attributes.add(i), *data.add(i)) };
        let of = |f: fn(&Region) -> u64| r.as_ref().map_or(0, f);
        unsafe {
            match what {
                1 => *to.cast::<u64>() = of(|r| r.ctx as u64),
                2 => *to.cast::<u32>() = of(|r| if r.sort == Sort::Host { 1 } else { 2 }) as u32,
                7 => *to.cast::<u64>() = of(|r| r.id),
                8 => *to.cast::<u32>() = of(|r| u64::from(r.sort == Sort::Managed)) as u32,
                9 => *to.cast::<i32>() = r.as_ref().map_or(-2, |r| r.device),
                10 => *to.cast::<u8>() = of(|r| u64::from(r.sort == Sort::Plain)) as u8,
                11 => *to.cast::<u64>() = of(|r| r.base as u64),
                12 => *to.cast::<usize>() = of(|r| r.len as u64) as usize,
                14 => *to.cast::<u64>() = of(|r| u64::from(r.sort == Sort::Mapped)),
                17 => *to.cast::<u64>() = of(|r| if r.sort == Sort::Pool { 1 } else { 0 }),
                _ => return INVALID_VALUE,
            }
        }
    }
    SUCCESS
}
