//! Memory of devices over queue pairs, whose dma-bufs are refused: over the stand-ins for libibverbs and CUDA, the
//! latter of which exports none.
#![cfg(not(loom))]

#[path = "support/counted.rs"]
mod counted;
#[path = "verbs/device.rs"]
#[allow(dead_code, reason = "what is of links alone")]
mod device;
#[path = "support/duo.rs"]
#[allow(dead_code, reason = "checks of memory of the host")]
mod duo;
#[path = "support/node.rs"]
mod node;
#[path = "support/ofi.rs"]
#[allow(dead_code, reason = "what is of links alone")]
mod support;

use cuda_stand_in::driver::Driver;
use hmem::{Kind, Span};
use testkit::pattern;
use verbs::Verbs;

use device::{open, set};
use duo::Duo;

const LEN: usize = 200_000;

/// Memory of the second device of the stand-in, which is never freed.
fn filled(len: usize, seed: usize) -> Span {
    let driver = Driver::start();
    hmem::registry::find_runtimes();
    driver.enter(1);
    // SAFETY: so many bytes of it.
    let span = unsafe { Span::new(driver.alloc(len), len, Kind::Cuda) };
    hmem::write(&[span], 0, &pattern(len, seed));
    span
}

/// A message from a device's memory, which arrives; how many accesses it took, and bytes in frames.
fn send(duo: &mut Duo<Verbs>, src: Span, dst: Span) -> (u64, u64) {
    duo.counts.take();
    duo.send(&[src], &[dst]);
    let [_, bytes, accesses, _] = duo.counts.take();
    assert_eq!(duo.lent(), 0, "what is registered when it is over");
    (accesses, bytes)
}

#[test]
fn a_message_of_a_device_whose_dmabuf_is_refused_goes_in_frames() {
    set("sv0", &[]);
    let src = filled(LEN, 3);
    let mut duo = Duo::new(open);
    for _ in 0..2 {
        let (accesses, bytes) = send(&mut duo, src, Span::leak(LEN));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    }
}

#[test]
fn a_message_into_a_device_goes_in_frames() {
    set("sv0", &[]);
    let dst = filled(LEN, 3);
    let mut duo = Duo::new(open);
    let (accesses, bytes) = send(&mut duo, duo::filled(LEN, 4), dst);
    assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
}
