//! Streams that share a hardware queue.

use hmem::cuda::{Stream, has_one_queue, share_a_queue};

use super::alone;

#[test]
fn streams_of_one_hardware_queue_are_found_out() {
    let (_alone, cu) = alone();
    for (channels, wanted) in [(1, [true; 3]), (2, [false; 3]), (0, [false; 3])] {
        cu.channels(channels);
        let at = cu.alloc(64);
        assert_eq!(has_one_queue(Some(at)), Ok(Some(channels == 1)), "{channels}");
        // SAFETY: streams until they are destroyed below.
        let [a, b, c] = [(); 3].map(|()| unsafe { Stream::new(cu.stream()) }.unwrap());
        cu.channels(0);
        for ((first, second), shared) in [(a, b), (a, c), (b, c)].into_iter().zip(wanted) {
            assert_eq!(share_a_queue(first, second), Ok(Some(shared)), "{channels}");
            assert_eq!(share_a_queue(second, first), Ok(Some(shared)), "{channels}");
        }
        assert!(share_a_queue(a, a).is_err());
        [a, b, c].into_iter().for_each(|s| cu.drop_stream(s.handle()));
        cu.free(at);
    }
}

#[test]
fn streams_that_are_used_are_left_alone() {
    let (_alone, cu) = alone();
    // SAFETY: streams until they are destroyed below.
    let [a, b] = [(); 2].map(|()| unsafe { Stream::new(cu.stream()) }.unwrap());
    let word = cu.alloc_host(64);
    cu.write(word, &[0; 8]);
    cu.wait_word(a.handle(), word as u64, 1);
    assert_eq!(share_a_queue(a, b), Ok(None));
    assert_eq!(share_a_queue(b, a), Ok(None));
    cu.write(word, &1u64.to_ne_bytes());
    a.wait().unwrap();
    cu.capture(b.handle());
    assert_eq!(share_a_queue(a, b), Ok(None));
    assert!(cu.end_capture(b.handle()), "the capture goes on");
    assert_eq!(share_a_queue(a, b), Ok(Some(false)));
    [a, b].into_iter().for_each(|s| cu.drop_stream(s.handle()));
}

/// Of a queue that the program's stream holds up nothing is learned, and no call waits for it.
#[test]
fn a_queue_that_is_held_up_already_is_not_waited_for() {
    let (_alone, cu) = alone();
    let (at, word) = (cu.alloc(64), cu.alloc_host(64));
    cu.write(word, &[0; 8]);
    cu.channels(1);
    // SAFETY: a stream until it is destroyed below.
    let held = unsafe { Stream::new(cu.stream()) }.unwrap();
    cu.wait_word(held.handle(), word as u64, 1);
    let count = |name| cu.calls(name);
    let destroyed = count(c"cuStreamDestroy_v2");
    let before = count(c"cuStreamCreate");
    assert_eq!(has_one_queue(Some(at)), Ok(None));
    let (made, locked) = (count(c"cuStreamCreate"), count(c"cuMemHostRegister_v2"));
    // Until that try has ended there is no other one.
    for _ in 0..3 {
        assert_eq!(has_one_queue(Some(at)), Ok(None));
    }
    assert_eq!((count(c"cuStreamCreate"), count(c"cuMemHostRegister_v2")), (made, locked));
    cu.write(word, &1u64.to_ne_bytes());
    held.wait().unwrap();
    // In another thread of the stand-in's.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while has_one_queue(Some(at)) != Ok(Some(true)) {
        assert!(std::time::Instant::now() < until, "the try does not end");
    }
    assert_eq!(count(c"cuStreamDestroy_v2") - destroyed, count(c"cuStreamCreate") - before);
    cu.channels(0);
    assert_eq!(has_one_queue(Some(at)), Ok(Some(false)));
    cu.drop_stream(held.handle());
    cu.free(at);
}
