//! Memory: what is made and freed, and what a pointer is told to be.

use std::ffi::c_void;

pub(crate) use stand_in::memory::*;

use crate::capture::waits;
use crate::{
    HOST_MEMORY_ALREADY_REGISTERED, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, Ptr, SUCCESS, context,
    enter, enter_in_context,
};

fn alloc(out: *mut u64, len: usize, sort: Sort) -> i32 {
    let Some(ctx) = context::current() else { return crate::INVALID_CONTEXT };
    if len == 0 {
        return INVALID_VALUE;
    }
    let number = crate::devices::visible()[ctx.device as usize];
    let owner = if sort == Sort::Plain { ctx.name } else { 0 };
    let Some(base) = stand_in::memory::alloc(len, sort, owner, ctx.device, number) else {
        return OUT_OF_MEMORY;
    };
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

/// As it is without a stream.
pub(crate) fn alloc_in_pool(out: *mut u64, len: usize) -> i32 {
    alloc(out, len, Sort::Pool)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: u64, _stream: Ptr) -> i32 {
    enter!("cuMemFreeAsync");
    cuMemFree_v2(at)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> i32 {
    enter!("cuMemFree_v2");
    crate::hold::free();
    free(at as usize).map_or(INVALID_VALUE, |_| SUCCESS)
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
    let Some(base) = alloc_host(len, sort, ctx.name, ctx.device) else { return OUT_OF_MEMORY };
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
    waits!();
    if find(at as usize).is_some() {
        return HOST_MEMORY_ALREADY_REGISTERED;
    }
    let ctx = context::current().map_or(0, |c| c.name);
    let (base, sort) = (at as usize, Sort::Host);
    add(Region { base, len, id: new_id(), sort, ctx, device: 0, skip: 0, backing: None });
    SUCCESS
}

/// Host memory has the address on every device that it has on the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(out: *mut u64, at: Ptr, _flags: u32) -> i32 {
    enter_in_context!("cuMemHostGetDevicePointer_v2");
    if find(at as usize).is_none() {
        return INVALID_VALUE;
    }
    unsafe { *out = at as u64 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(at: Ptr) -> i32 {
    enter!("cuMemHostUnregister");
    waits!();
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

/// Where an adapter finds `len` bytes of a device's memory; NULL where that memory is none, or goes on behind
/// its end. No call of the driver's.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_dma(at: u64, len: usize) -> Ptr {
    match find(at as usize).filter(|r| r.backing.is_some()).and_then(|_| alias(at as usize, len)) {
        Some((found, _)) => found.cast(),
        None => std::ptr::null_mut(),
    }
}

/// Which allocation an address is of; 0 where it is of none. No call of the driver's.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_memory_id(at: u64) -> u64 {
    find(at as usize).map_or(0, |region| region.id)
}

/// Of the memory that this process has made or mapped, as often as it has it mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    enter_in_context!("cuMemGetInfo_v2");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let bytes = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some(usize::from_str_radix(to, 16).ok()? - usize::from_str_radix(from, 16).ok()?)
    };
    let used: usize = maps.lines().filter(|line| line.contains("memfd:stand-in")).filter_map(bytes).sum();
    unsafe {
        *total = 64 << 30;
        *free = *total - used;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuPointerSetAttribute(_value: *const c_void, _attribute: u32, at: u64) -> i32 {
    enter!("cuPointerSetAttribute");
    match find(at as usize) {
        Some(r) if r.sort != Sort::Mapped => SUCCESS,
        Some(_) => NOT_SUPPORTED,
        None => INVALID_VALUE,
    }
}

/// Of managed memory: it has no preferred location.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRangeGetAttribute(
    data: *mut i32,
    len: usize,
    _attribute: u32,
    at: u64,
    _n: usize,
) -> i32 {
    enter!("cuMemRangeGetAttribute");
    match find(at as usize) {
        Some(r) if r.sort == Sort::Managed && len == 4 => {
            // CU_DEVICE_INVALID
            unsafe { *data = -2 };
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}
