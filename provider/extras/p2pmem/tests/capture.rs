//! Transfers while the program captures a stream into a graph. A file of its own, and one test at a time: a
//! capture concerns all threads of a process.

#[path = "support/stream.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use p2pmem::storage::Request;
use support::{BIG, Gate, Scratch, content, on, read, results, write};

fn alone() -> (MutexGuard<'static, ()>, Driver) {
    static ONE: Mutex<()> = Mutex::new(());
    (ONE.lock().unwrap_or_else(PoisonError::into_inner), Driver::start())
}

#[test]
fn a_stream_that_is_captured_is_refused_and_the_capture_goes_on() {
    let (_alone, cu) = alone();
    let scratch = Scratch::new(BIG);
    let file = scratch.open();
    let (stream, other, at) = (cu.stream(), cu.stream(), cu.alloc(BIG));
    cu.capture(stream);
    // SAFETY: refused.
    let refused = unsafe { Request::submit_on(&file, &[read(at, BIG, 0)], stream) }.unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    assert!(refused.to_string().contains("captured into a graph"), "{refused}");
    // Meanwhile other streams, and threads, do what they are asked, and disturb nothing.
    assert_eq!(results(&on(&file, &[read(at, BIG, 0)], other)), [BIG]);
    // SAFETY: memory of this test's.
    assert_eq!(results(&unsafe { Request::submit(&file, &[write(at, BIG, 0)]) }), [BIG]);
    assert!(cu.end_capture(stream));
    assert_eq!(results(&on(&file, &[read(at, BIG, 0)], stream)), [BIG]);
    assert!(cu.read(at, BIG) == content(BIG, 0) && scratch.bytes() == content(BIG, 0));
    [stream, other].into_iter().for_each(|s| cu.drop_stream(s));
    cu.free(at);
}

#[test]
fn what_was_queued_before_a_capture_is_waited_for_during_it() {
    let (_alone, cu) = alone();
    let scratch = Scratch::new(BIG);
    let file = scratch.open();
    let (stream, at) = (cu.stream(), cu.alloc(BIG));
    let gate = Gate::on(cu, stream);
    let request = on(&file, &[read(at, BIG, 0)], stream);
    cu.capture(stream);
    // Long enough for the stream to be looked at.
    assert!(!request.wait(Some(Duration::from_millis(300))) && !request.poll());
    gate.open();
    assert_eq!(results(&request), [BIG]);
    assert!(cu.end_capture(stream));
    assert!(cu.read(at, BIG) == content(BIG, 0));
    cu.drop_stream(stream);
    cu.free(at);
}
