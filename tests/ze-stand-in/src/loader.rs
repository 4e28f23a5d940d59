//! The stand-in as a program's library.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};

use stand_in::call;
use stand_in::program::Program;

type Ptr = *mut c_void;

/// The loader, as a program has it, with a context of the program's own. Every call panics if it
/// refuses.
#[derive(Clone, Copy, Debug)]
pub struct Loader {
    lib: Program,
    ctx: usize,
    devices: [usize; 2],
}

impl Loader {
    /// Loads it, for good.
    pub fn load() -> Loader {
        Loader { lib: Program::load("ze_stand_in"), ctx: 0, devices: [0; 2] }
    }

    /// Loads and initialises it.
    pub fn start() -> Loader {
        let mut ze = Loader::load();
        call!(ze.lib, "zeInit"(u32)(0));
        let (mut driver, mut ctx, mut count, mut devices) = (null_mut(), null_mut(), 1u32, [null_mut(); 2]);
        call!(ze.lib, "zeDriverGet"(*mut u32, *mut Ptr)(&mut count, &mut driver));
        call!(ze.lib, "zeContextCreate"(Ptr, *const c_void, *mut Ptr)(driver, null(), &mut ctx));
        count = 2;
        call!(ze.lib, "zeDeviceGet"(Ptr, *mut u32, *mut Ptr)(driver, &mut count, devices.as_mut_ptr()));
        (ze.ctx, ze.devices) = (ctx as usize, devices.map(|d| d as usize));
        ze
    }

    /// Memory of a device, from 0 on.
    pub fn alloc(&self, device: usize, len: usize) -> usize {
        let mut at = 0;
        call!(
            self.lib,
            "zeMemAllocDevice"(usize, *const c_void, usize, usize, usize, *mut usize)(
                self.ctx,
                null(),
                len,
                64,
                self.devices[device],
                &mut at
            )
        );
        at
    }

    /// Memory that migrates.
    pub fn alloc_shared(&self, len: usize) -> usize {
        let mut at = 0;
        call!(
            self.lib,
            "zeMemAllocShared"(usize, *const c_void, *const c_void, usize, usize, usize, *mut usize)(
                self.ctx,
                null(),
                null(),
                len,
                64,
                self.devices[0],
                &mut at
            )
        );
        at
    }

    /// Host memory.
    pub fn alloc_host(&self, len: usize) -> usize {
        let mut at = 0;
        call!(
            self.lib,
            "zeMemAllocHost"(usize, *const c_void, usize, usize, *mut usize)(self.ctx, null(), len, 64, &mut at)
        );
        at
    }

    /// Frees any of these.
    pub fn free(&self, at: usize) {
        call!(self.lib, "zeMemFree"(usize, usize)(self.ctx, at));
    }

    fn copy(&self, dst: usize, src: usize, len: usize) {
        // A list whose copies are waited for.
        let desc = [0xeu64, 0, 0, 1 << 32, 0];
        let mut list = null_mut();
        call!(
            self.lib,
            "zeCommandListCreateImmediate"(usize, usize, *const u64, *mut Ptr)(
                self.ctx,
                self.devices[0],
                desc.as_ptr(),
                &mut list
            )
        );
        call!(
            self.lib,
            "zeCommandListAppendMemoryCopy"(Ptr, usize, usize, usize, Ptr, u32, Ptr)(
                list,
                dst,
                src,
                len,
                null_mut(),
                0,
                null_mut()
            )
        );
    }

    /// Writes to memory of any kind.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.copy(at, bytes.as_ptr() as usize, bytes.len());
    }

    /// Reads it.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.copy(bytes.as_mut_ptr() as usize, at, len);
        bytes
    }

    /// Has the `nth` call of `name` from now on fail (0: each of them); code 0: none any more.
    pub fn fail(&self, name: &CStr, nth: u64, code: c_int) {
        self.lib.fail(name, nth, code);
    }

    /// How often `name` was called.
    pub fn calls(&self, name: &CStr) -> u64 {
        self.lib.calls(name)
    }
}
