//! The stand-in as a program's library: loaded at run time, called through its symbols, as a program
//! that uses CUDA calls the driver.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;

/// The file that Cargo has built beside the test that asks.
///
/// # Panics
/// If it is not there.
pub fn path() -> PathBuf {
    let exe = std::env::current_exe().expect("no executable");
    let near = exe.ancestors().skip(1).take(2);
    let places = near.flat_map(|d| [d.join("libcuda_stand_in.so"), d.join("deps/libcuda_stand_in.so")]);
    let found = places.into_iter().find(|p| p.exists());
    found.expect("no libcuda_stand_in.so beside the test: is cuda-stand-in among its dependencies?")
}

/// The driver, as a program has it. Every call panics if the driver refuses.
#[derive(Clone, Copy, Debug)]
pub struct Driver(*mut c_void);

// SAFETY: a library's handle may be used from any thread.
unsafe impl Send for Driver {}
// SAFETY: likewise.
unsafe impl Sync for Driver {}

/// Calls `$name`, whose parameters have these types.
macro_rules! call {
    ($driver:expr, $name:literal ($($ty:ty),*) ($($arg:expr),*)) => {{
        let f = $driver.symbol($name);
        let f: unsafe extern "C" fn($($ty),*) -> c_int = unsafe { std::mem::transmute(f) };
        let code = unsafe { f($($arg),*) };
        assert_eq!(code, 0, "{}", $name);
    }};
}

impl Driver {
    /// Loads it, for good.
    pub fn load() -> Driver {
        let path = CString::new(path().into_os_string().into_encoded_bytes()).expect("a path");
        let lib = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!lib.is_null(), "{path:?} cannot be loaded");
        Driver(lib)
    }

    /// Loads and initialises it, and makes device 0's primary context current in this thread.
    pub fn start() -> Driver {
        let driver = Driver::load();
        call!(driver, "cuInit"(u32)(0));
        driver.enter(0);
        driver
    }

    /// Makes a device's primary context current in this thread.
    pub fn enter(&self, device: c_int) {
        let mut ctx = std::ptr::null_mut();
        call!(self, "cuDevicePrimaryCtxRetain"(*mut *mut c_void, c_int)(&mut ctx, device));
        call!(self, "cuCtxSetCurrent"(*mut c_void)(ctx));
    }

    /// Leaves this thread without a context.
    pub fn leave(&self) {
        call!(self, "cuCtxSetCurrent"(*mut c_void)(std::ptr::null_mut()));
    }

    /// A symbol.
    pub fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name");
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!at.is_null(), "no {name:?}");
        at
    }

    /// Memory as cudaMalloc makes it.
    pub fn alloc(&self, len: usize) -> usize {
        let mut at = 0u64;
        call!(self, "cuMemAlloc_v2"(*mut u64, usize)(&mut at, len));
        at as usize
    }

    /// Memory as cudaMallocAsync makes it.
    pub fn alloc_async(&self, len: usize) -> usize {
        let mut at = 0u64;
        call!(self, "cuMemAllocAsync"(*mut u64, usize, *mut c_void)(&mut at, len, std::ptr::null_mut()));
        at as usize
    }

    /// Managed memory.
    pub fn alloc_managed(&self, len: usize) -> usize {
        let mut at = 0u64;
        call!(self, "cuMemAllocManaged"(*mut u64, usize, u32)(&mut at, len, 1));
        at as usize
    }

    /// Page-locked host memory.
    pub fn alloc_host(&self, len: usize) -> usize {
        let mut at = 0usize;
        call!(self, "cuMemHostAlloc"(*mut usize, usize, u32)(&mut at, len, 0));
        at
    }

    /// Frees any of these.
    pub fn free(&self, at: usize) {
        call!(self, "cuMemFree_v2"(u64)(at as u64));
    }

    /// Memory mapped by hand, of pieces of 2 MiB each, one after the other.
    pub fn map(&self, pieces: usize) -> usize {
        const PIECE: usize = 2 << 20;
        let mut at = 0u64;
        let len = pieces * PIECE;
        call!(self, "cuMemAddressReserve"(*mut u64, usize, usize, u64, u64)(&mut at, len, 0, 0, 0));
        let prop = [1u32, 1, 1, 0];
        for i in 0..pieces {
            let mut handle = 0u64;
            call!(self, "cuMemCreate"(*mut u64, usize, *const u32, u64)(&mut handle, PIECE, prop.as_ptr(), 0));
            let place = at + (i * PIECE) as u64;
            call!(self, "cuMemMap"(u64, usize, usize, u64, u64)(place, PIECE, 0, handle, 0));
            call!(self, "cuMemRelease"(u64)(handle));
        }
        at as usize
    }

    /// Unmaps it.
    pub fn unmap(&self, at: usize, pieces: usize) {
        call!(self, "cuMemUnmap"(u64, usize)(at as u64, pieces * (2 << 20)));
    }

    /// Writes to a device's memory.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        call!(self, "cuMemcpy"(u64, u64, usize)(at as u64, bytes.as_ptr() as u64, bytes.len()));
    }

    /// Reads a device's memory.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        call!(self, "cuMemcpy"(u64, u64, usize)(bytes.as_mut_ptr() as u64, at as u64, len));
        bytes
    }

    /// Has the `nth` call of `name` from now on fail (0: each of them); code 0: none any more.
    pub fn fail(&self, name: &CStr, nth: u64, code: c_int) {
        let f = self.symbol("stand_in_fail");
        let f: unsafe extern "C" fn(*const c_char, u64, c_int) = unsafe { std::mem::transmute(f) };
        unsafe { f(name.as_ptr(), nth, code) }
    }

    /// How often `name` was called.
    pub fn calls(&self, name: &CStr) -> u64 {
        let f = self.symbol("stand_in_calls");
        let f: unsafe extern "C" fn(*const c_char) -> u64 = unsafe { std::mem::transmute(f) };
        unsafe { f(name.as_ptr()) }
    }
}
