//! Blocking calls in a process without descriptors. By itself, since it takes all that its process may have.

mod common;

use std::fs::File;
use std::thread;
use std::time::Duration;

use common::{Node, Pair, patient, readable};
use engine::OpFlags;
use hmem::Span;
use link::ShmLink;
use runtime::{Deadline, Idle, Progress, Step, Watched};

/// A blocking call for one completion.
fn read<L: Pair>(node: &Node<L>, until: Deadline) -> Option<usize> {
    let look = || node.poll().map_or(Step::Wait(Watched::Cq(node.cq)), |c| Step::Done(c.ctx.0));
    node.runtime.block(&node.wait, Idle::Sleep, until, look).expect("it needs no descriptor")
}

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_blocking_call_for_which_no_descriptor_is_free_looks_again_and_again() {
    let ([a, b], [to_b, _]) = ShmLink::nodes(Progress::Manual);
    // They meet, and the application has a descriptor to sleep on.
    b.recv(Span::leak(8), 0);
    a.send(to_b, b"message!", OpFlags::default());
    patient(|| b.poll());
    assert!(!readable(&b.wait, 0));
    // SAFETY: a valid limit.
    let limit =
        |n| unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: n, rlim_max: 1 << 10 }) };
    assert_eq!(limit(256), 0);
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    assert_eq!(read(&b, Deadline::after_ms(20)), None);
    // First with none, then with one too few, then with enough.
    for (ctx, free) in [(1, 0), (2, 2), (3, 3)] {
        all.truncate(all.len() - free);
        b.recv(Span::leak(8), ctx);
        thread::scope(|s| {
            let reader = s.spawn(|| read(&b, Deadline::NEVER));
            thread::sleep(Duration::from_millis(50));
            assert!(!reader.is_finished());
            a.send(to_b, b"message!", OpFlags::default());
            assert_eq!(reader.join().unwrap(), Some(ctx));
        });
    }
    // They are made once.
    drop(all);
    let before = open();
    for _ in 0..1000 {
        assert_eq!(read(&b, Deadline::after_ms(0)), None);
    }
    assert_eq!(read(&b, Deadline::after_ms(20)), None);
    assert_eq!(open(), before);
}
