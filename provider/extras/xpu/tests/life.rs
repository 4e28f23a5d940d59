//! A thread that sleeps long, and a process that forks.

mod common;

use std::time::Duration;

use common::{Pair, options, put, until};
use xpu::{Context, Options, Pace, RingRequest};

#[test]
fn the_beat_goes_on_however_long_the_thread_may_sleep() {
    let mut context =
        Context::open(Options { pace: Pace::adapts(Duration::from_secs(1 << 30)), ..options() }).unwrap();
    context.allocate(8).unwrap();
    let ring = context.open_ring(RingRequest::new(4)).unwrap().producer();
    let blob = context.blob();
    context.connect(0, &[&blob]).unwrap();
    context.begin().unwrap();
    for _ in 0..3 {
        let beat = ring.beat();
        until(|| ring.beat() != beat);
    }
}

/// A forked child that closes ends nothing of its parent, and waits for no thread.
/// The rings' memory is shared with the child, and the thread that may be inside of a lock is not there.
#[test]
fn close_in_a_forked_child_leaves_the_parent_running() {
    let mut pair = Pair::new();
    for _ in 0..30 {
        // SAFETY: the child calls nothing but what is looked at, and ends at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(20);
                let _ = pair.here.close();
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child hung");
        assert_eq!((pair.producer.error(), pair.here.peer_error(1)), (0, 0), "the child has ended the ring");
        pair.run(&[put(&pair, 0, 0, 4, None)]);
    }
}
