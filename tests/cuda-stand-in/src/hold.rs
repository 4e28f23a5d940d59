//! A kernel that runs, as far as cudaFree is concerned: that waits for all kernels, and holds the driver's
//! lock meanwhile, so that every other call of the process waits for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

static KERNEL: AtomicBool = AtomicBool::new(false);
static FREEING: AtomicUsize = AtomicUsize::new(0);

const A_WHILE: Duration = Duration::from_micros(200);

/// From now on a kernel runs, or none does.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_kernel(runs: i32) {
    KERNEL.store(runs != 0, SeqCst);
}

/// Threads that wait in cudaFree.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_freeing() -> i32 {
    FREEING.load(SeqCst) as i32
}

/// What each call begins with.
pub(crate) fn wait(name: &str) {
    while FREEING.load(SeqCst) > 0 && name != "cuMemFree_v2" {
        std::thread::sleep(A_WHILE);
    }
}

/// As cudaFree begins.
pub(crate) fn free() {
    FREEING.fetch_add(1, SeqCst);
    while KERNEL.load(SeqCst) {
        std::thread::sleep(A_WHILE);
    }
    FREEING.fetch_sub(1, SeqCst);
}

/// The room for kernels that wait for others, where that is for one alone (`CUDA_STAND_IN_ROOM`).
pub(crate) fn room(waits: bool) -> Option<MutexGuard<'static, ()>> {
    static ROOM: Mutex<()> = Mutex::new(());
    static IS_LITTLE: OnceLock<bool> = OnceLock::new();
    let is_little = || *IS_LITTLE.get_or_init(|| std::env::var_os("CUDA_STAND_IN_ROOM").is_some());
    (waits && is_little()).then(|| ROOM.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether the device fails in a kernel that waits for others, of which the launch knew nothing
/// (`waiting-kernel` of `CUDA_STAND_IN_FAIL`).
pub(crate) fn fails(waits: bool) -> Result<(), i32> {
    if waits { stand_in::fault::enter("CUDA", "waiting-kernel", -1) } else { Ok(()) }
}
