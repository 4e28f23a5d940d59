//! Devices.

use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use stand_in::fault;

use crate::{
    INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, context, devices, enter, enter_in_context,
};

/// What NVIDIA's driver takes at least, which callers count on: for so long they may go on without asking
/// whether there is one.
const START: Duration = Duration::from_millis(25);

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> i32 {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| std::thread::sleep(START));
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

/// As [`cuDeviceGetAttribute`] says: a bus for each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, len: c_int, device: c_int) -> i32 {
    enter!("cuDeviceGetPCIBusId");
    let Some(&number) = devices::visible().get(device as usize) else { return INVALID_DEVICE };
    let text = format!("0000:{:02X}:00.0\0", 0x40 + number);
    if (len as usize) < text.len() {
        return INVALID_VALUE;
    }
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len()) };
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

/// What tests have set, by attribute.
static SET: Mutex<Vec<(c_int, c_int)>> = Mutex::new(Vec::new());

/// From now on that attribute has that value, on all devices.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_attribute(attribute: c_int, value: c_int) {
    let mut set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    set.retain(|(which, _)| *which != attribute);
    set.push((attribute, value));
}

/// Those that are the same for all devices.
pub(crate) fn attribute(attribute: c_int) -> c_int {
    let set = SET.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, value)) = set.iter().find(|(which, _)| *which == attribute) {
        return *value;
    }
    match attribute {
        // MULTIPROCESSOR_COUNT
        16 => 2,
        // UNIFIED_ADDRESSING
        41 => 1,
        // COMPUTE_CAPABILITY_MAJOR
        75 => 9,
        // GPU_DIRECT_RDMA_WRITES_ORDERING: by the device that owns the memory
        118 => 100,
        // CAN_USE_64_BIT_STREAM_MEM_OPS, CAN_USE_STREAM_WAIT_VALUE_NOR
        122 | 123 => 1,
        _ => 0,
    }
}

/// Of those that programs base decisions on; all others are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(out: *mut c_int, which: c_int, device: c_int) -> i32 {
    enter!("cuDeviceGetAttribute");
    let Some(&number) = devices::visible().get(device as usize) else { return INVALID_DEVICE };
    // PCI_BUS_ID
    let value = if which == 33 { 0x40 + number as c_int } else { attribute(which) };
    unsafe { *out = value };
    SUCCESS
}

/// What adapters write is in the memory at once here; programs that need the call are found by its count.
#[unsafe(no_mangle)]
pub extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> i32 {
    enter_in_context!("cuFlushGPUDirectRDMAWrites");
    // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX; ..._TO_OWNER, ..._TO_ALL_DEVICES
    if target != 0 || ![100, 200].contains(&scope) {
        return INVALID_VALUE;
    }
    // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: by the host
    if attribute(117) & 1 == 0 { NOT_SUPPORTED } else { SUCCESS }
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
