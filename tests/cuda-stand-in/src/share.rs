//! Memory in other processes: IPC handles, and descriptors of memory that is mapped by hand; for adapters: dma-bufs.

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::memory::{Backing, Region, Sort, add, find, free, inode, map, new_id, open, remove, unmap};
use crate::{INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Ptr, SUCCESS, context, devices};
use crate::{enter, enter_in_context};
use stand_in::memory::PAGE;

/// `CUipcMemHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle([u8; 64]);

const MAGIC: &[u8; 8] = b"stand-in";

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(out: *mut IpcHandle, at: u64) -> i32 {
    enter_in_context!("cuIpcGetMemHandle");
    let Some(Region { sort: Sort::Plain, len, backing: Some(b), .. }) = find(at as usize) else {
        return INVALID_VALUE;
    };
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&std::process::id().to_ne_bytes());
    bytes[12..16].copy_from_slice(&b.fd.as_raw_fd().to_ne_bytes());
    bytes[16..24].copy_from_slice(&len.to_ne_bytes());
    bytes[24..28].copy_from_slice(&b.device.to_ne_bytes());
    bytes[28..36].copy_from_slice(&inode(b.fd.as_raw_fd()).to_ne_bytes());
    unsafe { *out = IpcHandle(bytes) };
    SUCCESS
}

fn word<const N: usize>(h: &IpcHandle, at: usize) -> [u8; N] {
    let mut w = [0; N];
    w.copy_from_slice(&h.0[at..at + N]);
    w
}

/// As the driver: not in the process it came from, and only on a device that is visible.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(out: *mut u64, handle: IpcHandle, _flags: u32) -> i32 {
    enter_in_context!("cuIpcOpenMemHandle_v2");
    let (pid, fd) = (u32::from_ne_bytes(word(&handle, 8)), c_int::from_ne_bytes(word(&handle, 12)));
    let (len, number) = (usize::from_ne_bytes(word(&handle, 16)), u32::from_ne_bytes(word(&handle, 24)));
    if &handle.0[..8] != MAGIC || !devices::visible().contains(&number) {
        return INVALID_VALUE;
    }
    if pid == std::process::id() {
        return INVALID_CONTEXT;
    }
    let Ok(file) = File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}")) else {
        return INVALID_VALUE;
    };
    if inode(file.as_raw_fd()) != u64::from_ne_bytes(word(&handle, 28)) {
        return INVALID_VALUE;
    }
    let ctx = context::current().map_or(0, |c| c.name);
    let Some(base) = open(file.into(), len, ctx, 0, number) else { return OUT_OF_MEMORY };
    unsafe { *out = base as u64 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(at: u64) -> i32 {
    enter_in_context!("cuIpcCloseMemHandle");
    match find(at as usize) {
        Some(r) if r.sort == Sort::Opened && r.base == at as usize => {
            free(r.base);
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}

/// By name: the memory, and how often it is held.
type Held = HashMap<u64, (Arc<Backing>, u32)>;

fn handles() -> MutexGuard<'static, Held> {
    static ALL: OnceLock<Mutex<Held>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn hold(backing: Arc<Backing>) -> u64 {
    let name = new_id() << 8;
    handles().insert(name, (backing, 1));
    name
}

/// `CUmemAllocationProp`, as far as it is looked at.
#[repr(C)]
pub struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location: u32,
    device: c_int,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    out: *mut u64,
    len: usize,
    prop: *const AllocationProp,
    _flags: u64,
) -> i32 {
    enter!("cuMemCreate");
    let Some(&number) = devices::visible().get(unsafe { (*prop).device } as usize) else {
        return INVALID_VALUE;
    };
    if len == 0 || len % (2 << 20) != 0 {
        return INVALID_VALUE;
    }
    let Some(backing) = Backing::new(len, number) else { return OUT_OF_MEMORY };
    unsafe { *out = hold(backing) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: u64) -> i32 {
    enter!("cuMemRelease");
    let mut all = handles();
    let Some((_, users)) = all.get_mut(&handle) else { return INVALID_VALUE };
    *users -= 1;
    if *users == 0 {
        all.remove(&handle);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    out: *mut u64,
    len: usize,
    _align: usize,
    _at: u64,
    _flags: u64,
) -> i32 {
    enter!("cuMemAddressReserve");
    let Some(base) = map(0, len, libc::PROT_NONE, None) else { return OUT_OF_MEMORY };
    unsafe { *out = base as u64 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(at: u64, len: usize) -> i32 {
    enter!("cuMemAddressFree");
    unmap(at as usize, len);
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(at: u64, len: usize, _offset: usize, handle: u64, _flags: u64) -> i32 {
    enter!("cuMemMap");
    let Some((backing, _)) = handles().get(&handle).cloned() else { return INVALID_VALUE };
    if len > backing.len || map(at as usize, len, libc::PROT_NONE, Some(backing.fd.as_raw_fd())).is_none() {
        return INVALID_VALUE;
    }
    let of = devices::visible().iter().position(|n| *n == backing.device).unwrap_or(0);
    let (base, sort) = (at as usize, Sort::Mapped);
    add(Region {
        base,
        len,
        id: new_id(),
        sort,
        ctx: 0,
        device: of as c_int,
        skip: 0,
        backing: Some(backing),
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(at: u64, len: usize) -> i32 {
    enter!("cuMemUnmap");
    let mut gone = at as usize;
    while gone < at as usize + len {
        let Some(r) = remove(gone) else { return INVALID_VALUE };
        gone += r.len;
    }
    map(at as usize, len, libc::PROT_NONE, None).map_or(INVALID_VALUE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemSetAccess(at: u64, _len: usize, _desc: *const u8, _count: usize) -> i32 {
    enter!("cuMemSetAccess");
    find(at as usize).map_or(INVALID_VALUE, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(out: *mut u64, at: Ptr) -> i32 {
    enter!("cuMemRetainAllocationHandle");
    let Some(Region { sort: Sort::Mapped, backing: Some(b), .. }) = find(at as usize) else {
        return INVALID_VALUE;
    };
    unsafe { *out = hold(b) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    out: *mut c_int,
    handle: u64,
    kind: u32,
    _flags: u64,
) -> i32 {
    enter!("cuMemExportToShareableHandle");
    let Some((backing, _)) = handles().get(&handle).cloned() else { return INVALID_VALUE };
    let Ok(fd) = backing.fd.try_clone() else { return OUT_OF_MEMORY };
    if kind != 1 {
        return NOT_SUPPORTED;
    }
    unsafe { *out = fd.into_raw_fd() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(out: *mut u64, fd: Ptr, kind: u32) -> i32 {
    enter!("cuMemImportFromShareableHandle");
    if kind != 1 {
        return NOT_SUPPORTED;
    }
    let fd: OwnedFd = match unsafe { BorrowedFd::borrow_raw(fd as usize as c_int) }.try_clone_to_owned() {
        Ok(fd) => fd,
        Err(_) => return INVALID_VALUE,
    };
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    if unsafe { libc::fstat(fd.as_raw_fd(), &mut st) } < 0 || st.st_size <= 0 {
        return INVALID_VALUE;
    }
    let Some(backing) = Backing::of(fd, st.st_size as usize, 0) else { return OUT_OF_MEMORY };
    unsafe { *out = hold(backing) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    out: *mut usize,
    _prop: *const AllocationProp,
    _option: u32,
) -> i32 {
    enter!("cuMemGetAllocationGranularity");
    unsafe { *out = 2 << 20 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut AllocationProp,
    handle: u64,
) -> i32 {
    enter!("cuMemGetAllocationPropertiesFromHandle");
    let Some(number) = handles().get(&handle).map(|(b, _)| b.device) else { return INVALID_VALUE };
    let device = devices::visible().iter().position(|n| *n == number).unwrap_or(0) as c_int;
    unsafe {
        // All of it, 32 bytes.
        prop.cast::<[u64; 4]>().write([0; 4]);
        *prop = AllocationProp { kind: 1, handle_types: 1, location: 1, device };
    }
    SUCCESS
}

/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE.
const DMA_BUF: u32 = 1;
const PCIE: u64 = 1;

/// Which there are: none (0), those without a flag (1), those over PCIe as well (2); until it is said, what
/// `CUDA_STAND_IN_DMABUFS` has.
static EXPORTS: AtomicU32 = AtomicU32::new(u32::MAX);

fn exports() -> u32 {
    let said = || std::env::var("CUDA_STAND_IN_DMABUFS").ok()?.parse().ok();
    match EXPORTS.load(Ordering::Relaxed) {
        u32::MAX => said().unwrap_or(0),
        exports => exports,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn stand_in_dmabufs(exports: u32) {
    EXPORTS.store(exports, Ordering::Relaxed);
}

/// Of cuMemAlloc's and cuMemMap's memory, in whole pages of the host's, as the manual has it. No dma-buf, which
/// takes a device: what a stand-in for an adapter is given is the file of the memory, whose position is where the
/// range begins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    out: Ptr,
    at: u64,
    len: usize,
    kind: u32,
    flags: u64,
) -> i32 {
    enter_in_context!("cuMemGetHandleForAddressRange");
    let at = at as usize;
    if at % PAGE != 0 || len % PAGE != 0 || len == 0 || kind != DMA_BUF || flags & !PCIE != 0 {
        return INVALID_VALUE;
    }
    let Some(region) = find(at) else { return INVALID_VALUE };
    if len > region.len.next_multiple_of(PAGE) - (at - region.base) {
        return INVALID_VALUE;
    }
    let least = if flags & PCIE != 0 { 2 } else { 1 };
    let is_plain = matches!(region.sort, Sort::Plain | Sort::Mapped);
    let Some(backing) = region.backing.filter(|_| is_plain) else { return NOT_SUPPORTED };
    if exports() < least {
        return NOT_SUPPORTED;
    }
    // Not a duplicate, whose position would be that of all.
    let Ok(path) = CString::new(format!("/proc/self/fd/{}", backing.fd.as_raw_fd())) else {
        return INVALID_VALUE;
    };
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    let from = (region.skip + (at - region.base)) as i64;
    if fd < 0 || unsafe { libc::lseek(fd, from, libc::SEEK_SET) } != from {
        return INVALID_VALUE;
    }
    unsafe { *out.cast::<i32>() = fd };
    SUCCESS
}
