//! Waiting for a device before a call reads its memory: `STRAIT_MPI_SYNC`.

use core::ffi::{CStr, c_int};
use std::sync::OnceLock;

use loaded::Object;

use crate::settings::{self, Sync};
use crate::words;

/// CU_POINTER_ATTRIBUTE_CONTEXT.
const CONTEXT: usize = 1;
/// CU_STREAM_LEGACY.
const LEGACY: usize = 1;

struct Driver {
    attribute: usize,
    push: usize,
    pop: usize,
    wait_stream: usize,
    wait_all: usize,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    let found = DRIVER.get_or_init(|| {
        let object = Object::named(c"libcuda.so.1")?;
        let function = |name: &CStr| Some(object.lookup(name) as usize).filter(|at| *at != 0);
        let found = Driver {
            attribute: function(c"cuPointerGetAttribute")?,
            push: function(c"cuCtxPushCurrent_v2")?,
            pop: function(c"cuCtxPopCurrent_v2")?,
            wait_stream: function(c"cuStreamSynchronize")?,
            wait_all: function(c"cuCtxSynchronize")?,
        };
        // The driver stays.
        std::mem::forget(object);
        Some(found)
    });
    found.as_ref()
}

/// Waits for what was queued before for the device that `address` is on, as far as `STRAIT_MPI_SYNC` says.
/// A driver without these functions, or memory of no context, is not waited for.
pub fn wait_for(address: usize) {
    let sync = settings::sync();
    if sync == Sync::Off {
        return;
    }
    let Some(driver) = driver() else { return };
    let mut context = 0usize;
    // SAFETY: functions of CUDA's driver API, with their arguments.
    unsafe {
        let call = |at: usize, arguments: &[usize]| -> c_int { words::call(at, arguments) };
        if call(driver.attribute, &[(&raw mut context) as usize, CONTEXT, address]) != 0 {
            return;
        }
        let pushed = context != 0 && call(driver.push, &[context]) == 0;
        match sync {
            Sync::Stream => call(driver.wait_stream, &[LEGACY]),
            _ => call(driver.wait_all, &[]),
        };
        if pushed {
            call(driver.pop, &[(&raw mut context) as usize]);
        }
    }
}
