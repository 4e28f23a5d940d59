//! What calls answer, and the check that each begins with.

use std::cell::Cell;
use std::ffi::c_void;

pub type Ptr = *mut c_void;

pub const SUCCESS: i32 = 0;
pub const INVALID_VALUE: i32 = 1;
pub const OUT_OF_MEMORY: i32 = 2;
pub const NOT_INITIALIZED: i32 = 3;
pub const INVALID_DEVICE: i32 = 101;
pub const INVALID_CONTEXT: i32 = 201;
pub const INVALID_PTX: i32 = 218;
pub const INVALID_HANDLE: i32 = 400;
pub const NOT_FOUND: i32 = 500;
pub const NOT_READY: i32 = 600;
pub const ILLEGAL_ADDRESS: i32 = 700;
pub const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
pub const MISALIGNED_ADDRESS: i32 = 716;
pub const LAUNCH_FAILED: i32 = 719;
pub const NOT_PERMITTED: i32 = 800;
pub const NOT_SUPPORTED: i32 = 801;
pub const CAPTURE_UNSUPPORTED: i32 = 900;
pub const CAPTURE_INVALIDATED: i32 = 901;

thread_local! {
    /// Whether this thread is in a function that a stream has called, which may call nothing of the driver's.
    pub static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Stops a call that comes too early or that is to fail, and one of a stream's own function.
macro_rules! enter {
    ($name:literal) => {
        if crate::IN_HOST_FUNCTION.get() {
            return crate::NOT_PERMITTED;
        }
        crate::hold::wait($name);
        if let Err(code) = stand_in::fault::enter("CUDA", $name, crate::NOT_INITIALIZED) {
            return code;
        }
    };
}
pub(crate) use enter;
