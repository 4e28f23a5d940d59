//! The time of the kernel's last tick.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// clock_gettime(2): [`find`], until that has found the vDSO's.
static CLOCK_GETTIME: AtomicPtr<c_void> = AtomicPtr::new(find as *mut c_void);

/// The monotonic time of the kernel's last tick, in nanoseconds. Ticks are 1 to 10 ms apart. The vDSO reads
/// it without a system call and without the processor's time stamp, for a fraction of what the time costs.
/// Its function is called without the C library's between, which takes longer than the vDSO's itself.
#[inline]
pub fn tick() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the pointer is that of a function of this type; a valid place for the answer, which is all
    // zeros unless the function writes it.
    let now = unsafe {
        let clock_gettime = transmute::<*mut c_void, ClockGettime>(CLOCK_GETTIME.load(Relaxed));
        clock_gettime(libc::CLOCK_MONOTONIC_COARSE, now.as_mut_ptr());
        now.assume_init()
    };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The vDSO's function (vdso(7)), or the C library's where the kernel maps none or the vDSO has none.
fn of_vdso() -> ClockGettime {
    let name =
        if cfg!(target_arch = "aarch64") { c"__kernel_clock_gettime" } else { c"__vdso_clock_gettime" };
    // SAFETY: strings; nothing is loaded. What a handle is of stays, since the kernel has mapped it. The
    // symbol is that of a function of this type by vdso(7).
    unsafe {
        let vdso = libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        let found = if vdso.is_null() { ptr::null_mut() } else { libc::dlsym(vdso, name.as_ptr()) };
        if found.is_null() { libc::clock_gettime } else { transmute::<*mut c_void, ClockGettime>(found) }
    }
}

#[cold]
unsafe extern "C" fn find(clock: libc::clockid_t, to: *mut libc::timespec) -> c_int {
    let found = of_vdso();
    CLOCK_GETTIME.store(found as *mut c_void, Relaxed);
    // SAFETY: the caller's promise.
    unsafe { found(clock, to) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_no_later_than_the_time_and_goes_on() {
        let time = || {
            let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a valid place for the answer.
            assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) }, 0);
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
        };
        let first = tick();
        assert!(first > 0 && first <= time());
        let begin = time();
        while tick() == first {
            assert!(time() - begin < 5_000_000_000, "the clock stands still");
        }
        assert!(tick() <= time());
        // That of the vDSO on the systems that tests run on, but not under valgrind.
        assert_ne!(CLOCK_GETTIME.load(Relaxed), find as *mut c_void);
    }
}
