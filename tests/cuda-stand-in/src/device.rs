//! Devices.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;

use stand_in::fault;

use crate::{INVALID_DEVICE, INVALID_VALUE, SUCCESS, context, devices, enter};

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
    unsafe { *count = devices::visible().len() as c_int };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> i32 {
    enter!("cuDeviceGet");
    if ordinal < 0 || ordinal as usize >= devices::visible().len() {
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
    let Some(&number) = devices::visible().get(device as usize) else { return INVALID_DEVICE };
    unsafe { *out = devices::uuid(number) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut u32,
    active: *mut c_int,
) -> i32 {
    enter!("cuDevicePrimaryCtxGetState");
    if device as usize >= devices::visible().len() {
        return INVALID_DEVICE;
    }
    unsafe {
        *flags = 0;
        *active = context::primary_active(device).into();
    }
    SUCCESS
}

/// The former name of the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(out: *mut [u8; 16], device: c_int) -> i32 {
    unsafe { cuDeviceGetUuid_v2(out, device) }
}

/// Of those that programs base decisions on: where it is on the PCI bus, and its generation. All
/// others are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, device: c_int) -> i32 {
    enter!("cuDeviceGetAttribute");
    let Some(&number) = devices::visible().get(device as usize) else { return INVALID_DEVICE };
    unsafe {
        *out = match attribute {
            // MULTIPROCESSOR_COUNT
            16 => 2,
            // PCI_BUS_ID
            33 => 0x40 + number as c_int,
            // UNIFIED_ADDRESSING
            41 => 1,
            // COMPUTE_CAPABILITY_MAJOR
            75 => 9,
            _ => 0,
        }
    };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(out: *mut usize, device: c_int) -> i32 {
    enter!("cuDeviceTotalMem_v2");
    if device as usize >= devices::visible().len() {
        return INVALID_DEVICE;
    }
    unsafe { *out = 64 << 30 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> i32 {
    let words = match code {
        SUCCESS => c"no error",
        INVALID_VALUE => c"invalid argument",
        crate::INVALID_CONTEXT => c"invalid device context",
        crate::NOT_SUPPORTED => c"operation not supported",
        _ => c"stand-in: an error",
    };
    unsafe { *text = words.as_ptr() };
    SUCCESS
}

/// By name, whatever the version: here is one of each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    to: *mut crate::Ptr,
    _version: c_int,
    _flags: u64,
    how: *mut c_int,
) -> i32 {
    let mut own: libc::Dl_info = unsafe { std::mem::zeroed() };
    let at = unsafe {
        libc::dladdr(cuInit as *const std::ffi::c_void, &mut own);
        let library = libc::dlopen(own.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(library, name)
    };
    unsafe {
        *to = at;
        if !how.is_null() {
            // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
            *how = i32::from(at.is_null());
        }
    }
    if at.is_null() { crate::NOT_FOUND } else { SUCCESS }
}
