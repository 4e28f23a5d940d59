//! Rings that are page-locked for a device, over the stand-in for CUDA's driver.

use cuda_stand_in::driver::Driver;
use hmem::{Kind, Span, registry};

use super::*;

/// Memory of a device's.
fn device(cu: &Driver) -> Span {
    let at = cu.alloc(4096);
    assert_eq!(hmem::classify(at, 4096), Kind::Cuda);
    // SAFETY: memory of the device's, which stays.
    unsafe { Span::new(at, 4096, Kind::Cuda) }
}

#[test]
fn a_ring_is_page_locked_anew_when_the_context_is_gone_that_it_was_locked_in() {
    let cu = Driver::start();
    hmem::cuda::find_driver();
    let (segment, _fd) = Segment::create(MIN_RING).unwrap();
    let at = segment.span(0, 8).addr() as usize;
    let is_locked = || registry::of(Kind::Cuda).is_host_locked(at);
    segment.lock_for(&[Span::leak(8)]);
    assert!(!is_locked());
    let ctx = cu.make_context(0);
    segment.lock_for(&[device(&cu)]);
    assert!(is_locked());
    cu.end_context(ctx);
    cu.enter(0);
    assert!(!is_locked());
    let there = device(&cu);
    let before = cu.calls(c"cuMemHostRegister_v2");
    (0..ASKS).for_each(|_| segment.lock_for(&[there]));
    assert!(is_locked(), "of so many copies one finds out");
    (0..4 * ASKS).for_each(|_| segment.lock_for(&[there]));
    assert_eq!(cu.calls(c"cuMemHostRegister_v2"), before + 1);
    // Its pages stay.
    assert!(!segment.give_back(0));
    drop(segment);
    assert!(!is_locked());
}
