//! A process that loads CUDA's driver after it has used buffers, and makes no call that looks for it.

use std::time::Duration;

use cuda_stand_in::driver::Driver;
use hmem::{Kind, classify};

#[test]
fn the_driver_is_found_by_the_next_buffer() {
    let heap = vec![0u8; 1 << 20];
    assert_eq!(classify(heap.as_ptr().addr(), 8), Kind::System);
    let cu = Driver::start();
    let at = cu.alloc(8);
    // No real driver is ready sooner than this.
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(classify(at, 8), Kind::Cuda);
}
