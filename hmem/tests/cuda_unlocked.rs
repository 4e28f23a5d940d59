//! Copies from a device to host memory where none can be page-locked, over the stand-in for CUDA's driver.

use cuda_stand_in::driver::Driver;
use hmem::pending::Part;
use hmem::{Kind, cuda, registry};

#[test]
fn without_page_locked_memory_the_driver_copies() {
    let cu = Driver::start();
    cuda::find_driver();
    let len = (9 << 20) + 1;
    let text: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    let (a, mut host) = (cu.alloc(len), vec![0u8; len]);
    cu.write(a, &text);
    cu.fail(c"cuMemHostRegister_v2", 0, 2);
    for _ in 0..10 {
        host.fill(0);
        let part = Part { dst: host.as_mut_ptr().expose_provenance(), src: a, len };
        // SAFETY: `host` outlives the copy.
        let mut flight = unsafe { registry::of(Kind::Cuda).start_to_host(&[part], Vec::new()) }.unwrap();
        let mut polls = 0;
        while !flight.poll().unwrap() {
            polls += 1;
        }
        assert!(host == text && (9..100).contains(&polls), "{polls}");
    }
    assert!(cu.calls(c"cuMemHostRegister_v2") <= 8, "what was refused is not asked for again");
}
