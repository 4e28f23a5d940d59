//! A process that uses a buffer of the host, loads CUDA's driver, and passes its memory at once.

use cuda_stand_in::driver::Driver;
use hmem::{Kind, classify};

/// The clock by which answers become old: the kernel's ticks.
fn tick() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_nsec
}

#[test]
fn memory_of_a_driver_that_was_started_since_the_last_answer_is_a_devices() {
    let heap = vec![0u8; 1 << 20];
    let begin = tick();
    while tick() == begin {
        std::hint::spin_loop();
    }
    // A whole tick is left, for which this answer holds.
    assert_eq!(classify(heap.as_ptr().addr(), 8), Kind::System);
    let at = Driver::start().alloc(8);
    assert_eq!(classify(at, 8), Kind::Cuda);
}
