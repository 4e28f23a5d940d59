//! Transfers that go on by themselves, and those in the order of a stream, over the stand-in for CUDA's
//! driver: that refuses calls of its functions from what a stream calls.

#[path = "support/stream.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use p2pmem::storage::{File, Op, Options, Request, Way};
use support::{BIG, Gate, Scratch, content, on, read, results, write};

#[test]
fn what_is_submitted_is_done_without_being_waited_for() {
    let cu = Driver::start();
    let scratch = Scratch::new(BIG);
    let file = scratch.open();
    let at = cu.alloc(BIG);
    let mut host = vec![0u8; 70_000];
    let ops = [
        read(at, BIG, 0),
        read(host.as_mut_ptr().expose_provenance(), 70_000, 5),
        read(at, 10, BIG + 1),
        read(0, 10, 0),
    ];
    // SAFETY: memory of this test's, or refused.
    let request = unsafe { Request::submit(&file, &ops) };
    // What is under way keeps the file.
    drop(file);
    assert!(request.wait(None) && request.poll());
    let done = request.take().unwrap();
    let bytes: Vec<_> = done.iter().take(3).map(|r| *r.as_ref().unwrap()).collect();
    assert_eq!(bytes, [BIG, 70_000, 0]);
    assert_eq!(done[3].as_ref().unwrap_err().errno(), libc::EINVAL);
    assert!(cu.read(at, BIG) == content(BIG, 0) && host == content(70_000, 5));
    assert!(request.take().unwrap().is_empty());
    // Nothing at all is done at once.
    // SAFETY: no operations, so no memory.
    assert!(unsafe { Request::submit(&scratch.open(), &[]) }.poll());
    cu.free(at);
}

#[test]
fn a_stream_has_what_was_read_before_what_comes_next_and_not_earlier() {
    let cu = Driver::start();
    let scratch = Scratch::new(BIG);
    let file = scratch.open();
    let stream = cu.stream();
    let (at, other) = (cu.alloc(BIG + 100), cu.alloc(BIG));
    for round in 0..3 {
        cu.write(at, &vec![0xee; BIG + 100]);
        let gate = Gate::on(cu, stream);
        let request = on(&file, &[read(at + 1, BIG - 9, 9)], stream);
        // What is queued behind it sees the bytes.
        cu.copy_async(other, at + 1, BIG - 9, stream);
        assert!(!request.wait(Some(Duration::from_millis(5))), "the stream is not there yet");
        assert!(cu.read(at, 4096).iter().all(|b| *b == 0xee), "{round}");
        gate.open();
        assert_eq!(results(&request), [BIG - 9]);
        cu.wait(stream);
        assert!(cu.read(other, BIG - 9) == content(BIG - 9, 9), "{round}");
        let around = (cu.read(at, 1), cu.read(at + BIG - 8, 108));
        assert!(around == (vec![0xee], vec![0xee; 108]), "{round}");
    }
    assert_eq!(file.report().bytes, [0, 0, 3 * (BIG as u64 - 9), 0]);
    assert!(file.report().last == Some(Way::Bounce) && file.report().why.contains("not wanted"));
    cu.drop_stream(stream);
    cu.free(at);
    cu.free(other);
}

/// Writes take what the stream has put there, and reads find what it has written.
#[test]
fn stream_orders_writes_and_reads_with_other_work() {
    let cu = Driver::start();
    let scratch = Scratch::new(4096);
    let file = scratch.open();
    let stream = cu.stream();
    let (at, from, back) = (cu.alloc(BIG), cu.alloc(BIG), cu.alloc(BIG));
    cu.write(from, &content(BIG, 77));
    let gate = Gate::on(cu, stream);
    cu.copy_async(at, from, BIG, stream);
    // All in one go: nothing waits for anything but the stream.
    let first = on(&file, &[write(at, BIG, 100)], stream);
    cu.copy_async(at, back, BIG, stream);
    let second = on(&file, &[read(back, BIG, 100), read(at, 4096, BIG)], stream);
    assert_eq!(scratch.bytes(), content(4096, 0));
    gate.open();
    assert_eq!(results(&first), [BIG]);
    assert_eq!(results(&second), [BIG, 100]);
    assert!(scratch.bytes()[100..] == content(BIG, 77));
    assert!(cu.read(back, BIG) == content(BIG, 77), "a read of what was not there yet when it was queued");
    // Many small ones, of both sorts, mixed, on two streams.
    let streams = [stream, cu.stream()];
    let requests: Vec<(usize, Request)> = (0..60)
        .map(|n| {
            let (len, offset) = (3000 + n, (n / 2) * 5000);
            let ops =
                if n % 4 < 2 { [write(from + offset, len, offset); 1] } else { [read(at, len, offset)] };
            (len, on(&file, &ops, streams[n % 2]))
        })
        .collect();
    for (len, request) in &requests {
        assert_eq!(results(request), [*len]);
    }
    streams.into_iter().for_each(|s| cu.drop_stream(s));
    [at, from, back].into_iter().for_each(|at| cu.free(at));
}

#[test]
fn host_memory_has_its_place_in_a_stream_too() {
    let cu = Driver::start();
    let scratch = Scratch::new(BIG);
    let file = scratch.open();
    let stream = cu.stream();
    let at = cu.alloc(BIG);
    let mut host = vec![0u8; 9_000_000];
    let gate = Gate::on(cu, stream);
    let to = host.as_mut_ptr().expose_provenance();
    let request = on(&file, &[read(at, BIG, 0), read(to, host.len(), 3), read(at, 9, 1)], stream);
    assert!(host.iter().all(|b| *b == 0));
    gate.open();
    assert_eq!(results(&request), [BIG, host.len(), 9]);
    assert!(host == content(host.len(), 3));
    assert_eq!(cu.read(at, 9), content(9, 1));
    assert!(cu.read(at + 9, BIG - 9) == content(BIG, 0)[9..]);
    cu.drop_stream(stream);
    cu.free(at);
}

#[test]
fn errors_reach_the_request_and_the_stream_goes_on() {
    let cu = Driver::start();
    let scratch = Scratch::new(BIG);
    let stream = cu.stream();
    let at = cu.alloc(BIG);
    cu.write(at, &vec![0xee; BIG]);
    // Not open for writing: known when the disk is asked.
    let file = Arc::new(File::open(&scratch.0, Options::default()).unwrap());
    let request = on(&file, &[write(at, BIG, 0), read(at, 100, 0)], stream);
    assert!(request.wait(None));
    let done = request.take().unwrap();
    assert_eq!(done[0].as_ref().unwrap_err().errno(), libc::EBADF);
    assert_eq!(*done[1].as_ref().unwrap(), 100);
    // The file is shorter than when it was queued: the rest is zeros, and the result says how many bytes it
    // is.
    let file = scratch.open();
    let gate = Gate::on(cu, stream);
    let request = on(&file, &[read(at, BIG, 0)], stream);
    std::fs::OpenOptions::new().write(true).open(&scratch.0).unwrap().set_len(5 << 20).unwrap();
    gate.open();
    assert_eq!(results(&request), [5 << 20]);
    let bytes = cu.read(at, BIG);
    assert!(bytes[..5 << 20] == content(5 << 20, 0) && bytes[5 << 20..8 << 20].iter().all(|b| *b == 0));
    // Arguments, at once.
    // SAFETY: refused.
    unsafe {
        let refused = |ops: &[Op], stream| Request::submit_on(&file, ops, stream).unwrap_err().errno();
        assert_eq!(refused(&[read(0, 10, 0)], stream), libc::EINVAL);
        assert_eq!(refused(&[read(at, 10, 0)], 0x1234_5670), libc::EINVAL);
    }
    cu.drop_stream(stream);
    cu.free(at);
}
