//! A stand-in for Level Zero's loader, on machines that have no Intel GPU.
//!
//! It has the entry points that Strait and its tests call, with Level Zero's names and signatures (oneAPI
//! Level Zero specification), and is as strict: a call before `zeInit`, or with a handle that is not
//! one of its own, fails. One driver with two devices. Memory and handles are those of the crate
//! `stand-in`; an IPC handle holds a descriptor in its first bytes, which says nothing to another
//! process, as the real driver's does.
//!
//! | variable | |
//! |---|---|
//! | `ZE_STAND_IN_DELAY_US` | how long each copy in flight takes (0) |
//! | `ZE_STAND_IN_FAIL` | `name=code` or `name@n=code`, with commas: calls that fail, always or the n-th time |
//! | `ZE_STAND_IN_OLD` | 1: allocations' ids are their addresses, as drivers of old had it |
#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    reason = "Level Zero's names; its specification is the documentation"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "a test's library: every function trusts its caller as the driver does"
)]

/// What a Rust test calls.
pub mod loader;
mod queue;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use stand_in::memory::{self, Sort, find};
use stand_in::{Work, fault};

type Ptr = *mut c_void;

const SUCCESS: c_int = 0;
const NOT_READY: c_int = 1;
const OUT_OF_MEMORY: c_int = 0x7000_0003;
const UNINITIALIZED: c_int = 0x7800_0001;
const UNSUPPORTED: c_int = 0x7800_0003;
const INVALID_ARGUMENT: c_int = 0x7800_0004;
const INVALID_HANDLE: c_int = 0x7800_0005;

const DRIVER: usize = 0xd0;
const DEVICES: [usize; 2] = [0xd10, 0xd20];

/// Stops a call that comes too early or that is to fail.
macro_rules! enter {
    ($name:literal) => {
        if let Err(code) = fault::enter("ZE", $name, UNINITIALIZED) {
            return code;
        }
    };
}
use enter;

#[derive(Default)]
struct State {
    contexts: Vec<usize>,
    /// By name: whether its copies are waited for.
    lists: HashMap<usize, bool>,
    pools: HashMap<usize, u32>,
    /// By name: what is to be done first; and how it ended.
    events: HashMap<usize, (Option<Work>, Option<c_int>)>,
    made: usize,
}

impl State {
    fn name(&mut self, of: usize) -> usize {
        self.made += 1;
        of + 16 * self.made
    }
}

fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    STATE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_context(ctx: Ptr) -> bool {
    state().contexts.contains(&(ctx as usize))
}

fn number(device: Ptr) -> Option<u32> {
    DEVICES.iter().position(|d| *d == device as usize).map(|n| n as u32)
}

#[unsafe(no_mangle)]
pub extern "C" fn zeInit(_flags: u32) -> c_int {
    fault::READY.store(true, Ordering::Release);
    enter!("zeInit");
    SUCCESS
}

unsafe fn list(all: &[usize], count: *mut u32, to: *mut Ptr) -> c_int {
    unsafe {
        if *count == 0 || to.is_null() {
            *count = all.len() as u32;
            return SUCCESS;
        }
        *count = (*count).min(all.len() as u32);
        for (i, one) in all.iter().take(*count as usize).enumerate() {
            *to.add(i) = *one as Ptr;
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeDriverGet(count: *mut u32, to: *mut Ptr) -> c_int {
    enter!("zeDriverGet");
    unsafe { list(&[DRIVER], count, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeDeviceGet(driver: Ptr, count: *mut u32, to: *mut Ptr) -> c_int {
    enter!("zeDeviceGet");
    if driver as usize != DRIVER {
        return INVALID_HANDLE;
    }
    unsafe { list(&DEVICES, count, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeContextCreate(driver: Ptr, _desc: *const c_void, to: *mut Ptr) -> c_int {
    enter!("zeContextCreate");
    if driver as usize != DRIVER {
        return INVALID_HANDLE;
    }
    let mut state = state();
    let name = state.name(0xc0000);
    state.contexts.push(name);
    unsafe { *to = name as Ptr };
    SUCCESS
}

unsafe fn alloc(ctx: Ptr, len: usize, device: Ptr, sort: Sort, to: *mut Ptr) -> c_int {
    if !is_context(ctx) {
        return INVALID_HANDLE;
    }
    let made = match (sort, number(device)) {
        (Sort::Plain, Some(n)) => memory::alloc(len, sort, 0, n as c_int, n),
        (Sort::Plain, None) => return INVALID_HANDLE,
        (_, n) => memory::alloc_host(len, sort, 0, n.map_or(-1, |n| n as c_int)),
    };
    let Some(made) = made else { return OUT_OF_MEMORY };
    unsafe { *to = made as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemAllocDevice(
    ctx: Ptr,
    _desc: *const c_void,
    len: usize,
    _align: usize,
    device: Ptr,
    to: *mut Ptr,
) -> c_int {
    enter!("zeMemAllocDevice");
    unsafe { alloc(ctx, len, device, Sort::Plain, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemAllocHost(
    ctx: Ptr,
    _desc: *const c_void,
    len: usize,
    _align: usize,
    to: *mut Ptr,
) -> c_int {
    enter!("zeMemAllocHost");
    unsafe { alloc(ctx, len, std::ptr::null_mut(), Sort::Host, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemAllocShared(
    ctx: Ptr,
    _device_desc: *const c_void,
    _host_desc: *const c_void,
    len: usize,
    _align: usize,
    device: Ptr,
    to: *mut Ptr,
) -> c_int {
    enter!("zeMemAllocShared");
    unsafe { alloc(ctx, len, device, Sort::Managed, to) }
}

#[unsafe(no_mangle)]
pub extern "C" fn zeMemFree(ctx: Ptr, at: Ptr) -> c_int {
    enter!("zeMemFree");
    if !is_context(ctx) {
        return INVALID_HANDLE;
    }
    memory::free(at as usize).map_or(INVALID_ARGUMENT, |_| SUCCESS)
}

/// `ze_memory_allocation_properties_t`.
#[repr(C)]
#[derive(Debug)]
pub struct AllocProps {
    stype: u32,
    next: *mut ExportFd,
    kind: u32,
    id: u64,
    page: u64,
}

/// `ze_external_memory_export_fd_t`.
#[repr(C)]
#[derive(Debug)]
pub struct ExportFd {
    stype: u32,
    next: Ptr,
    flags: u32,
    fd: c_int,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemGetAllocProperties(
    ctx: Ptr,
    at: *const c_void,
    to: *mut AllocProps,
    device: *mut Ptr,
) -> c_int {
    enter!("zeMemGetAllocProperties");
    if !is_context(ctx) || unsafe { (*to).stype } != 0x17 {
        return INVALID_ARGUMENT;
    }
    let Some(r) = find(at as usize) else {
        unsafe { (*to).kind = 0 };
        return SUCCESS;
    };
    let old = std::env::var("ZE_STAND_IN_OLD").is_ok_and(|v| v == "1");
    unsafe {
        (*to).kind = match r.sort {
            Sort::Host => 1,
            Sort::Managed => 3,
            _ => 2,
        };
        (*to).id = if old { r.base as u64 } else { r.id };
        (*to).page = memory::PAGE as u64;
        if !device.is_null() {
            *device = DEVICES.get(r.device as usize).map_or(0, |d| *d) as Ptr;
        }
        // A memfd in the dma-buf's place; the driver keeps it.
        if let Some(fd) = (*to).next.as_mut().filter(|f| f.stype == 0x1a) {
            if fd.flags != 2 {
                return UNSUPPORTED;
            }
            fd.fd = r.backing.map_or(-1, |b| b.fd.as_raw_fd());
        }
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemGetAddressRange(
    ctx: Ptr,
    at: *const c_void,
    base: *mut Ptr,
    len: *mut usize,
) -> c_int {
    enter!("zeMemGetAddressRange");
    let Some(r) = find(at as usize).filter(|_| is_context(ctx)) else { return INVALID_ARGUMENT };
    unsafe {
        *base = r.base as Ptr;
        *len = r.len;
    }
    SUCCESS
}

/// `ze_ipc_mem_handle_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ipc([u8; 64]);

fn handle(fd: c_int, len: u64, device: u32) -> Ipc {
    let mut ipc = Ipc([0; 64]);
    ipc.0[..4].copy_from_slice(&fd.to_ne_bytes());
    ipc.0[8..16].copy_from_slice(&len.to_ne_bytes());
    ipc.0[16..20].copy_from_slice(&device.to_ne_bytes());
    ipc
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemGetIpcHandle(ctx: Ptr, at: *const c_void, to: *mut Ipc) -> c_int {
    enter!("zeMemGetIpcHandle");
    let Some(r) = find(at as usize).filter(|r| is_context(ctx) && r.sort == Sort::Plain) else {
        return INVALID_ARGUMENT;
    };
    let Some(b) = r.backing else { return UNSUPPORTED };
    unsafe { *to = handle(b.fd.as_raw_fd(), r.len as u64, r.device as u32) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemGetFileDescriptorFromIpcHandleExp(ctx: Ptr, from: Ipc, to: *mut u64) -> c_int {
    enter!("zeMemGetFileDescriptorFromIpcHandleExp");
    if !is_context(ctx) {
        return INVALID_HANDLE;
    }
    unsafe { *to = i32::from_ne_bytes([from.0[0], from.0[1], from.0[2], from.0[3]]) as u64 };
    SUCCESS
}

/// Of a descriptor alone the length is that of its file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemGetIpcHandleFromFileDescriptorExp(ctx: Ptr, fd: u64, to: *mut Ipc) -> c_int {
    enter!("zeMemGetIpcHandleFromFileDescriptorExp");
    if !is_context(ctx) {
        return INVALID_HANDLE;
    }
    unsafe { *to = handle(fd as c_int, 0, 0) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeMemOpenIpcHandle(
    ctx: Ptr,
    device: Ptr,
    from: Ipc,
    _flags: u32,
    to: *mut Ptr,
) -> c_int {
    enter!("zeMemOpenIpcHandle");
    let Some(n) = number(device).filter(|_| is_context(ctx)) else { return INVALID_HANDLE };
    let fd = c_int::from_ne_bytes([from.0[0], from.0[1], from.0[2], from.0[3]]);
    // The descriptor has to be this process's, and the caller closes it when it likes.
    let Ok(fd) = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned() else { return INVALID_ARGUMENT };
    let size = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
    if size <= 0 {
        return INVALID_ARGUMENT;
    }
    let mut len = [0; 8];
    len.copy_from_slice(&from.0[8..16]);
    let len = match u64::from_ne_bytes(len) {
        0 => size as usize,
        len => len as usize,
    };
    let Some(base) = memory::open(fd, len, 0, n as c_int, n) else { return OUT_OF_MEMORY };
    unsafe { *to = base as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn zeMemCloseIpcHandle(ctx: Ptr, at: *const c_void) -> c_int {
    enter!("zeMemCloseIpcHandle");
    match find(at as usize) {
        Some(r) if is_context(ctx) && r.sort == Sort::Opened && r.base == at as usize => {
            memory::free(r.base);
            SUCCESS
        }
        _ => INVALID_ARGUMENT,
    }
}
