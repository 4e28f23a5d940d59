//! What it takes to find out which memory an address is of, in a process with a live CUDA context:
//! nanoseconds, medians. `ci/gpu/openmpi` runs it.

use std::time::Instant;

use cuda_stand_in::driver::Driver;
use hmem::{Kind, classify};

const EACH: usize = 64 << 10;
const COUNT: usize = 1000;

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
    let driver = Driver::start_real();
    // The clock alone.
    let mut clock: Vec<u128> = (0..COUNT).map(|_| Instant::now().elapsed().as_nanos()).collect();
    clock.sort_unstable();
    println!("lookup of nothing (the clock): {} ns", clock[COUNT / 2]);
    let device: Vec<usize> = (0..COUNT).map(|_| driver.alloc(EACH)).collect();
    let locked: Vec<usize> = (0..COUNT).map(|_| driver.alloc_host(EACH)).collect();
    let mapped: Vec<Vec<u8>> = (0..COUNT).map(|_| vec![0; 1 << 20]).collect();
    let mapped: Vec<usize> = mapped.iter().map(|v| v.as_ptr().addr()).collect();
    hmem::cuda::find_driver();
    time("device memory, first", Kind::Cuda, &device);
    time("device memory, again", Kind::Cuda, &device);
    time("page-locked memory", Kind::System, &locked);
    time("memory of mmap(2)", Kind::System, &mapped);
}
