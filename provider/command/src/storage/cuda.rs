//! A GPU's memory, from CUDA's driver, which is opened at run time.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use libloading::os::unix::Library;

/// Memory of a GPU, freed by [`Memory::free`].
pub struct Memory {
    driver: Library,
    at: u64,
}

/// Calls a function of the driver's, of these types by its manual.
macro_rules! call {
    ($driver:expr, $name:literal ($($ty:ty),*) ($($arg:expr),*)) => {{
        // SAFETY: the function has these types by CUDA's manual, and places are valid for writes.
        let code = unsafe {
            match $driver.get::<unsafe extern "C" fn($($ty),*) -> c_int>(concat!($name, "\0").as_bytes()) {
                Ok(f) => f($($arg),*),
                Err(e) => return Err(format!("libcuda.so.1: {e}")),
            }
        };
        match code {
            0 => Ok(()),
            100 => Err(format!("{}: no GPU is there, or none may be used (100)", $name)),
            2 => Err(format!("{}: the GPU has not that much memory left (2)", $name)),
            101 => Err(format!("{}: there is no such GPU (101)", $name)),
            code => Err(format!("{}: error {code} of CUDA's", $name)),
        }
    }};
}

impl Memory {
    /// Makes the device's primary context current in this thread.
    pub fn new(device: i32, len: usize) -> Result<Memory, String> {
        // SAFETY: the driver's library, as a program that uses CUDA loads it.
        let driver = unsafe { Library::new("libcuda.so.1") }
            .map_err(|e| format!("no CUDA here: {e}; it comes with NVIDIA's driver"))?;
        let (mut of, mut context, mut at) = (0, null_mut(), 0u64);
        call!(driver, "cuInit"(u32)(0))?;
        call!(driver, "cuDeviceGet"(*mut c_int, c_int)(&mut of, device))?;
        call!(driver, "cuDevicePrimaryCtxRetain"(*mut *mut c_void, c_int)(&mut context, of))?;
        call!(driver, "cuCtxSetCurrent"(*mut c_void)(context))?;
        call!(driver, "cuMemAlloc_v2"(*mut u64, usize)(&mut at, len.max(1)))?;
        Ok(Memory { driver, at })
    }

    pub fn addr(&self) -> usize {
        self.at as usize
    }

    pub fn free(&self) {
        let freed = || call!(self.driver, "cuMemFree_v2"(u64)(self.at));
        // The process ends soon: there is nothing else to be done about it.
        let _ = freed();
    }
}
