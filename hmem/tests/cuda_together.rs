//! Threads that each use a buffer while CUDA's driver is being found.

use std::sync::Barrier;
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use hmem::{Kind, classify};

#[test]
fn the_driver_is_found_by_all_threads() {
    const THREADS: usize = 8;
    let cu = Driver::start();
    let at = cu.alloc(8);
    std::thread::sleep(Duration::from_millis(30));
    let all = Barrier::new(THREADS);
    let one = || {
        all.wait();
        // At other times, since the driver is found within microseconds of the first.
        (0..2000).find(|_| classify(at, 8) != Kind::Cuda)
    };
    let wrong: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..THREADS).map(|_| s.spawn(one)).collect();
        threads.into_iter().filter_map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(wrong, [], "taken for host memory");
}
