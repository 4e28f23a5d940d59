//! A process that loads CUDA's driver after it has used buffers.

use cuda_stand_in::driver::Driver;
use hmem::{Kind, classify, cuda};

#[test]
fn the_driver_is_found_when_it_comes_and_not_before() {
    let heap = vec![0u8; 1 << 20];
    assert_eq!(classify(heap.as_ptr().addr(), 8), Kind::System);
    assert!(!cuda::find_driver(), "nothing has loaded it");
    assert!(cuda::describe().is_err());
    let cu = Driver::load();
    assert!(cuda::find_driver());
    assert_eq!(classify(heap.as_ptr().addr(), 8), Kind::System, "not initialised: it knows no memory");
    assert_eq!(cu.calls(c"cuInit"), 0, "and is not initialised by us");
    let cu = Driver::start();
    let at = cu.alloc(8);
    assert_eq!(classify(at, 8), Kind::Cuda);
}
