//! What is called of the stand-in for the driver.

use std::ffi::{CStr, c_int, c_void};

fn symbol(name: &CStr) -> *mut c_void {
    let lib = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    if lib.is_null() { lib } else { unsafe { libc::dlsym(lib, name.as_ptr()) } }
}

/// Queues a function in a stream.
pub(crate) fn queue(stream: *mut c_void, call: unsafe extern "C" fn(*mut c_void), arg: *mut c_void) -> bool {
    let f = symbol(c"cuLaunchHostFunc");
    if f.is_null() {
        return false;
    }
    type Launch = unsafe extern "C" fn(*mut c_void, unsafe extern "C" fn(*mut c_void), *mut c_void) -> c_int;
    let f: Launch = unsafe { std::mem::transmute(f) };
    unsafe { f(stream, call, arg) == 0 }
}

/// Where the CPU finds memory; `None` for a device's that goes on behind its end.
pub(crate) fn find(at: usize, len: usize) -> *mut u8 {
    let f = symbol(c"stand_in_dma");
    if f.is_null() {
        return at as *mut u8;
    }
    let f: unsafe extern "C" fn(u64, usize) -> *mut c_void = unsafe { std::mem::transmute(f) };
    let found = unsafe { f(at as u64, len) };
    if found.is_null() { at as *mut u8 } else { found.cast() }
}
