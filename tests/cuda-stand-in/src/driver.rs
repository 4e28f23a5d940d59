//! The stand-in as a program's library: loaded at run time, called through its symbols, as a program
//! that uses CUDA calls the driver.

use std::ffi::{CStr, c_int, c_void};

use stand_in::call;
use stand_in::program::Program;

/// The driver, as a program has it. Every call panics if the driver refuses.
#[derive(Clone, Copy, Debug)]
pub struct Driver(Program);

impl Driver {
    /// Loads it, for good.
    pub fn load() -> Driver {
        Driver(Program::load("cuda_stand_in"))
    }

    /// Loads and initialises it, and makes device 0's primary context current in this thread.
    pub fn start() -> Driver {
        Driver::load().begin()
    }

    /// Likewise with the driver that this machine has.
    pub fn start_real() -> Driver {
        Driver(Program::open("libcuda.so.1".into())).begin()
    }

    fn begin(self) -> Driver {
        call!(self.0, "cuInit"(u32)(0));
        self.enter(0);
        self
    }

    /// Makes a device's primary context current in this thread.
    pub fn enter(&self, device: c_int) {
        let mut ctx = std::ptr::null_mut();
        call!(self.0, "cuDevicePrimaryCtxRetain"(*mut *mut c_void, c_int)(&mut ctx, device));
        call!(self.0, "cuCtxSetCurrent"(*mut c_void)(ctx));
    }

    /// Makes a context of a device's besides the primary one, and current in this thread.
    pub fn make_context(&self, device: c_int) -> usize {
        let mut ctx = 0usize;
        call!(self.0, "cuCtxCreate_v2"(*mut usize, u32, c_int)(&mut ctx, 0, device));
        ctx
    }

    /// Ends such a one.
    pub fn end_context(&self, ctx: usize) {
        call!(self.0, "cuCtxDestroy_v2"(usize)(ctx));
    }

    /// Ends a device's primary context, as cudaDeviceReset does.
    pub fn reset(&self, device: c_int) {
        call!(self.0, "cuDevicePrimaryCtxReset_v2"(c_int)(device));
    }

    /// Leaves this thread without a context.
    pub fn leave(&self) {
        call!(self.0, "cuCtxSetCurrent"(*mut c_void)(std::ptr::null_mut()));
    }

    /// Memory as cudaMalloc makes it.
    pub fn alloc(&self, len: usize) -> usize {
        let mut at = 0u64;
        call!(self.0, "cuMemAlloc_v2"(*mut u64, usize)(&mut at, len));
        at as usize
    }

    /// Memory as cudaMallocAsync makes it.
    pub fn alloc_async(&self, len: usize) -> usize {
        let mut at = 0u64;
        call!(self.0, "cuMemAllocAsync"(*mut u64, usize, *mut c_void)(&mut at, len, std::ptr::null_mut()));
        at as usize
    }

    /// A pool that other processes may be given.
    pub fn pool(&self) -> u64 {
        let mut pool = 0u64;
        // CUmemPoolProps: pinned, POSIX descriptors, on device 0.
        let mut props = [0u32; 26];
        props[..3].fill(1);
        call!(self.0, "cuMemPoolCreate"(*mut u64, *const u32)(&mut pool, props.as_ptr()));
        pool
    }

    /// Does away with a pool.
    pub fn drop_pool(&self, pool: u64) {
        call!(self.0, "cuMemPoolDestroy"(u64)(pool));
    }

    /// Memory of a pool.
    pub fn alloc_from(&self, pool: u64, len: usize) -> usize {
        let mut at = 0u64;
        call!(self.0, "cuMemAllocFromPoolAsync"(*mut u64, usize, u64, *mut c_void)(&mut at, len, pool, std::ptr::null_mut()));
        at as usize
    }

    /// Bytes of the current context's device that are in use, by whichever process.
    pub fn in_use(&self) -> usize {
        let (mut free, mut total) = (0usize, 0usize);
        call!(self.0, "cuMemGetInfo_v2"(*mut usize, *mut usize)(&mut free, &mut total));
        total - free
    }

    /// Managed memory.
    pub fn alloc_managed(&self, len: usize) -> usize {
        let mut at = 0u64;
        call!(self.0, "cuMemAllocManaged"(*mut u64, usize, u32)(&mut at, len, 1));
        at as usize
    }

    /// Page-locked host memory.
    pub fn alloc_host(&self, len: usize) -> usize {
        let mut at = 0usize;
        call!(self.0, "cuMemHostAlloc"(*mut usize, usize, u32)(&mut at, len, 0));
        at
    }

    /// Page-locks memory of the program's.
    pub fn lock(&self, at: usize, len: usize) {
        call!(self.0, "cuMemHostRegister_v2"(usize, usize, u32)(at, len, 0));
    }

    /// Frees any of these.
    pub fn free(&self, at: usize) {
        call!(self.0, "cuMemFree_v2"(u64)(at as u64));
    }

    /// From now on a kernel runs, for which [`Driver::free`] waits, and all other calls for that; or none
    /// does.
    pub fn kernel(&self, runs: bool) {
        let f = self.0.symbol("stand_in_kernel");
        let f: unsafe extern "C" fn(c_int) = unsafe { std::mem::transmute(f) };
        unsafe { f(runs.into()) }
    }

    /// Threads that wait in [`Driver::free`].
    pub fn freeing(&self) -> c_int {
        let f = self.0.symbol("stand_in_freeing");
        let f: unsafe extern "C" fn() -> c_int = unsafe { std::mem::transmute(f) };
        unsafe { f() }
    }

    /// Memory mapped by hand, of pieces of 2 MiB each, one after the other.
    pub fn map(&self, pieces: usize) -> usize {
        self.map_on(&vec![0; pieces])
    }

    /// Likewise, each on its device.
    pub fn map_on(&self, devices: &[u32]) -> usize {
        const PIECE: usize = 2 << 20;
        let mut at = 0u64;
        let len = devices.len() * PIECE;
        call!(self.0, "cuMemAddressReserve"(*mut u64, usize, usize, u64, u64)(&mut at, len, 0, 0, 0));
        for (i, device) in devices.iter().enumerate() {
            // CUmemAllocationProp: pinned, POSIX descriptors, on that device.
            let prop = [1, 1, 1, *device, 0, 0, 0, 0];
            let mut handle = 0u64;
            call!(self.0, "cuMemCreate"(*mut u64, usize, *const u32, u64)(&mut handle, PIECE, prop.as_ptr(), 0));
            let place = at + (i * PIECE) as u64;
            call!(self.0, "cuMemMap"(u64, usize, usize, u64, u64)(place, PIECE, 0, handle, 0));
            call!(self.0, "cuMemRelease"(u64)(handle));
            // CUmemAccessDesc.
            let access = [1, *device, 3];
            call!(self.0, "cuMemSetAccess"(u64, usize, *const u32, usize)(place, PIECE, access.as_ptr(), 1));
        }
        at as usize
    }

    /// Unmaps it.
    pub fn unmap(&self, at: usize, pieces: usize) {
        call!(self.0, "cuMemUnmap"(u64, usize)(at as u64, pieces * (2 << 20)));
    }

    /// A stream of the current context.
    pub fn stream(&self) -> usize {
        let mut stream = 0usize;
        call!(self.0, "cuStreamCreate"(*mut usize, u32)(&mut stream, 1));
        stream
    }

    /// Waits for all in it, and does away with it.
    pub fn drop_stream(&self, stream: usize) {
        call!(self.0, "cuStreamDestroy_v2"(usize)(stream));
    }

    /// Waits for all in it.
    pub fn wait(&self, stream: usize) {
        call!(self.0, "cuStreamSynchronize"(usize)(stream));
    }

    /// Queues a copy.
    pub fn copy_async(&self, dst: usize, src: usize, len: usize, stream: usize) {
        call!(self.0, "cuMemcpyAsync"(u64, u64, usize, usize)(dst as u64, src as u64, len, stream));
    }

    /// Queues a call, which gets that number.
    pub fn call(&self, stream: usize, call: unsafe extern "C" fn(*mut c_void), arg: usize) {
        call!(self.0, "cuLaunchHostFunc"(usize, unsafe extern "C" fn(*mut c_void), usize)(stream, call, arg));
    }

    /// Queues the write of a word.
    pub fn write_word(&self, stream: usize, at: u64, value: u64) {
        call!(self.0, "cuStreamWriteValue64_v2"(usize, u64, u64, u32)(stream, at, value, 0));
    }

    /// Queues a wait until a word is at least that value.
    pub fn wait_word(&self, stream: usize, at: u64, value: u64) {
        call!(self.0, "cuStreamWaitValue64_v2"(usize, u64, u64, u32)(stream, at, value, 0));
    }

    /// Whether all in a stream is done.
    pub fn is_idle(&self, stream: usize) -> bool {
        let code = self.status(c"cuStreamQuery", stream);
        assert!(code == 0 || code == crate::NOT_READY, "cuStreamQuery: {code}");
        code == 0
    }

    /// Begins to capture what is queued on a stream, in the mode that concerns all threads.
    pub fn capture(&self, stream: usize) {
        call!(self.0, "cuStreamBeginCapture_v2"(usize, c_int)(stream, 0));
    }

    /// Ends that; whether nothing has disturbed it.
    pub fn end_capture(&self, stream: usize) -> bool {
        let (f, mut graph) = (self.0.symbol("cuStreamEndCapture"), std::ptr::null_mut());
        let f: unsafe extern "C" fn(usize, *mut *mut c_void) -> c_int = unsafe { std::mem::transmute(f) };
        unsafe { f(stream, &mut graph) == 0 }
    }

    /// From now on that attribute of all devices has that value.
    pub fn attribute(&self, attribute: c_int, value: c_int) {
        let f = self.0.symbol("stand_in_attribute");
        let f: unsafe extern "C" fn(c_int, c_int) = unsafe { std::mem::transmute(f) };
        unsafe { f(attribute, value) }
    }

    /// From now on there are dma-bufs: none (0), those without a flag (1), those over PCIe as well (2).
    pub fn dmabufs(&self, exports: u32) {
        let f = self.0.symbol("stand_in_dmabufs");
        let f: unsafe extern "C" fn(u32) = unsafe { std::mem::transmute(f) };
        unsafe { f(exports) }
    }

    /// A function of the stand-in's own, for another one.
    pub fn function(&self, name: &str) -> *mut c_void {
        self.0.symbol(name)
    }

    /// From now on each piece of work in a stream is put off by up to so many microseconds.
    pub fn jitter(&self, most: u64, seed: u64) {
        let f = self.0.symbol("stand_in_jitter");
        let f: unsafe extern "C" fn(u64, u64) = unsafe { std::mem::transmute(f) };
        unsafe { f(most, seed) }
    }

    /// Streams made from now on have so many hardware channels; 1: all share it.
    pub fn channels(&self, count: usize) {
        let f = self.0.symbol("stand_in_channels");
        let f: unsafe extern "C" fn(usize) = unsafe { std::mem::transmute(f) };
        unsafe { f(count) }
    }

    /// What a call of a function with that one argument comes to.
    pub fn status(&self, name: &CStr, argument: usize) -> c_int {
        let f = self.0.symbol(name.to_str().expect("a name"));
        let f: unsafe extern "C" fn(usize) -> c_int = unsafe { std::mem::transmute(f) };
        unsafe { f(argument) }
    }

    /// Copies between any two, and waits for that: whether it was done.
    pub fn copy(&self, to: usize, from: usize, len: usize) -> bool {
        let f = self.0.symbol("cuMemcpy");
        let f: unsafe extern "C" fn(u64, u64, usize) -> c_int = unsafe { std::mem::transmute(f) };
        let wait: unsafe extern "C" fn() -> c_int =
            unsafe { std::mem::transmute(self.0.symbol("cuCtxSynchronize")) };
        unsafe { f(to as u64, from as u64, len) == 0 && wait() == 0 }
    }

    /// The number of the allocation that an address is in (`CU_POINTER_ATTRIBUTE_BUFFER_ID`); 0: none.
    pub fn buffer_id(&self, at: usize) -> u64 {
        let f = self.0.symbol("cuPointerGetAttribute");
        let f: unsafe extern "C" fn(*mut u64, c_int, u64) -> c_int = unsafe { std::mem::transmute(f) };
        let mut id = 0u64;
        if unsafe { f(&mut id, 7, at as u64) } == 0 { id } else { 0 }
    }

    /// What an attribute of a device is; -1: the driver has none.
    pub fn attribute_of(&self, attribute: c_int, device: c_int) -> c_int {
        let f = self.0.symbol("cuDeviceGetAttribute");
        let f: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int = unsafe { std::mem::transmute(f) };
        let mut value = -1;
        if unsafe { f(&mut value, attribute, device) } == 0 { value } else { -1 }
    }

    /// Writes to a device's memory.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        call!(self.0, "cuMemcpy"(u64, u64, usize)(at as u64, bytes.as_ptr() as u64, bytes.len()));
    }

    /// Reads a device's memory.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        call!(self.0, "cuMemcpy"(u64, u64, usize)(bytes.as_mut_ptr() as u64, at as u64, len));
        bytes
    }

    /// Has the `nth` call of `name` from now on fail (0: each of them); code 0: none any more.
    pub fn fail(&self, name: &CStr, nth: u64, code: c_int) {
        self.0.fail(name, nth, code);
    }

    /// How often `name` was called.
    pub fn calls(&self, name: &CStr) -> u64 {
        self.0.calls(name)
    }
}
