//! Devices.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

use stand_in::fault;

use crate::{INVALID_DEVICE, INVALID_VALUE, SUCCESS, context, enter};

/// The machine's number of each device that is visible.
pub(crate) fn visible() -> Vec<u32> {
    let all: u32 = std::env::var("CUDA_STAND_IN_DEVICES").ok().and_then(|v| v.parse().ok()).unwrap_or(2);
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(list) => list.split(',').map_while(|n| n.trim().parse().ok()).filter(|n| *n < all).collect(),
        Err(_) => (0..all).collect(),
    }
}

pub(crate) fn uuid(number: u32) -> [u8; 16] {
    let mut uuid = *b"stand-in device ";
    uuid[15] = number as u8;
    uuid
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> i32 {
    fault::READY.store(true, Ordering::Release);
    enter!("cuInit");
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> i32 {
    unsafe { *version = 13000 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> i32 {
    enter!("cuDeviceGetCount");
    unsafe { *count = visible().len() as c_int };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> i32 {
    enter!("cuDeviceGet");
    if ordinal < 0 || ordinal as usize >= visible().len() {
        return INVALID_DEVICE;
    }
    unsafe { *device = ordinal };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) -> i32 {
    enter!("cuDeviceGetName");
    let text = b"stand-in\0";
    if (len as usize) < text.len() {
        return INVALID_VALUE;
    }
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(out: *mut [u8; 16], device: c_int) -> i32 {
    enter!("cuDeviceGetUuid_v2");
    let Some(&number) = visible().get(device as usize) else { return INVALID_DEVICE };
    unsafe { *out = uuid(number) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut u32,
    active: *mut c_int,
) -> i32 {
    enter!("cuDevicePrimaryCtxGetState");
    if device as usize >= visible().len() {
        return INVALID_DEVICE;
    }
    unsafe {
        *flags = 0;
        *active = context::primary_active(device).into();
    }
    SUCCESS
}
