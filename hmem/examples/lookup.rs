//! What it takes to find out which memory an address is of, in a process with a live CUDA context: nanoseconds,
//! medians. `ci/gpu` runs it.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Instant;

use hmem::{Kind, classify};
use libloading::Library;

const EACH: usize = 64 << 10;
const COUNT: usize = 1000;

/// CUDA's driver, as far as it is needed to have memory of it.
struct Driver(Library);

impl Driver {
    /// Calls a function of the driver.
    fn call<T, R>(&self, name: &str, with: impl FnOnce(T) -> R) -> R
    where
        T: Copy,
    {
        // SAFETY: callers give the function's type as the manual has it.
        let function = unsafe { self.0.get::<T>(name.as_bytes()) };
        with(*function.unwrap_or_else(|e| panic!("{name}: {e}")))
    }

    fn start() -> Driver {
        // SAFETY: loading CUDA's driver runs its initialisers, which any program may.
        let lib = unsafe { Library::new("libcuda.so.1") }.unwrap_or_else(|e| panic!("no CUDA here: {e}"));
        let driver = Driver(lib);
        let (mut device, mut ctx) = (0, std::ptr::null_mut());
        type Init = unsafe extern "C" fn(c_uint) -> c_int;
        type Get = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type Set = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: as the driver's manual asks, in this order.
        unsafe {
            assert_eq!(driver.call("cuInit", |f: Init| f(0)), 0, "cuInit");
            assert_eq!(driver.call("cuDeviceGet", |f: Get| f(&mut device, 0)), 0, "no GPU");
            assert_eq!(driver.call("cuDevicePrimaryCtxRetain", |f: Retain| f(&mut ctx, device)), 0);
            assert_eq!(driver.call("cuCtxSetCurrent", |f: Set| f(ctx)), 0);
        }
        driver
    }

    fn device(&self) -> usize {
        type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        let mut at = 0;
        // SAFETY: a place for the answer; the context is current.
        assert_eq!(self.call("cuMemAlloc_v2", |f: Alloc| unsafe { f(&mut at, EACH) }), 0, "cuMemAlloc");
        at as usize
    }

    fn locked(&self) -> usize {
        type Alloc = unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int;
        let mut at = std::ptr::null_mut();
        // SAFETY: as above.
        let code = self.call("cuMemHostAlloc", |f: Alloc| unsafe { f(&mut at, EACH, 0) });
        assert_eq!(code, 0, "cuMemHostAlloc");
        at.addr()
    }
}

/// The median time of a lookup of each of these, one after the other.
fn time(what: &str, kind: Kind, places: &[usize]) {
    let mut each: Vec<u128> = places
        .iter()
        .map(|at| {
            let begin = Instant::now();
            let found = classify(*at, 8);
            let took = begin.elapsed().as_nanos();
            assert_eq!(found, kind, "{what}");
            took
        })
        .collect();
    each.sort_unstable();
    println!("lookup {what}: {} ns, the longest {}", each[each.len() / 2], each[each.len() - 1]);
}

fn main() {
    let driver = Driver::start();
    // The clock alone.
    let mut clock: Vec<u128> = (0..COUNT).map(|_| Instant::now().elapsed().as_nanos()).collect();
    clock.sort_unstable();
    println!("lookup of nothing (the clock): {} ns", clock[COUNT / 2]);
    let device: Vec<usize> = (0..COUNT).map(|_| driver.device()).collect();
    let locked: Vec<usize> = (0..COUNT).map(|_| driver.locked()).collect();
    let mapped: Vec<Vec<u8>> = (0..COUNT).map(|_| vec![1; 1 << 20]).collect();
    let mapped: Vec<usize> = mapped.iter().map(|v| v.as_ptr().addr()).collect();
    hmem::cuda::look();
    time("device memory, first", Kind::Cuda, &device);
    time("device memory, again", Kind::Cuda, &device);
    time("page-locked memory", Kind::System, &locked);
    time("memory of mmap(2)", Kind::System, &mapped);
}
