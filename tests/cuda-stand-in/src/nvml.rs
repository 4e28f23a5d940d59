//! NVML's functions, for libraries that need libnvidia-ml.so.1 (a link to this file): it has nothing to
//! tell, since there is no kernel driver.

use std::ffi::{CStr, c_char};

/// `NVML_ERROR_DRIVER_NOT_LOADED`
const NOT_LOADED: i32 = 9;

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(_code: i32) -> *const c_char {
    const TEXT: &CStr = c"stand-in: no driver";
    TEXT.as_ptr()
}

macro_rules! nothing {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> i32 {
            NOT_LOADED
        }
    )*};
}

nothing! {
    nvmlInit_v2
    nvmlShutdown
    nvmlDeviceGetCount_v2
    nvmlDeviceGetFieldValues
    nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV
    nvmlDeviceGetHandleByIndex_v2
    nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetPciInfo_v3
}
