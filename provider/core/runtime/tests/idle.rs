//! How often a process wakes in which nothing happens. The only test of its process, since it counts what
//! that does.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Node, Pair, patient, readable};
use engine::OpFlags;
use hmem::Span;
use link::ShmLink;
use runtime::{Deadline, Idle, Progress, Step, Watched};

/// Times that threads of this process have gone to sleep.
fn sleeps() -> i64 {
    // SAFETY: all zero is a value, and there is room for the answer.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

/// Reads in a blocking call without a time limit.
fn read<L: Pair>(node: &Node<L>) -> usize {
    let look = || node.poll().map_or(Step::Wait(Watched::Cq(node.cq)), Step::Done);
    node.runtime.block(&node.wait, Idle::Sleep, Deadline::NEVER, look).unwrap().unwrap().ctx.0
}

/// Sleeps on the descriptor of the counter, without a time limit, until it has counted so many.
fn count<L: Pair>(node: &Node<L>, most: u64) {
    loop {
        node.runtime.lock_to_poll().progress();
        let n = node.runtime.lock().cntr_read(node.cntr);
        if n >= most {
            return;
        }
        if node.runtime.try_wait(|_| Watched::Cntr(node.cntr, n, 0), &node.cntr_wait).unwrap() {
            assert!(readable(&node.cntr_wait, 60_000));
        }
    }
}

#[test]
#[cfg_attr(tsan, ignore = "ThreadSanitizer's own thread sleeps and wakes ten times a second")]
fn a_sleeper_wakes_for_its_message_and_not_before() {
    // Each link has a timer of its own, once a second (docs/faults.md), which wakes the reader and the
    // progress thread. The latter two wake each other.
    const WATCHED: Duration = Duration::from_secs(3);
    const PERIODS: usize = 4;
    for (progress, each_second) in [(Progress::Manual, 3.0), (Progress::Auto, 8.0)] {
        let ([a, b], [to_b, _]) = ShmLink::nodes(progress);
        for ctx in [1, 2] {
            b.recv(Span::leak(8), ctx);
        }
        a.send(to_b, b"message!", OpFlags::default());
        patient(|| b.poll());
        thread::scope(|s| {
            let reader = s.spawn(|| read(&b));
            let counter = s.spawn(|| count(&b, 2));
            // Time to fall asleep.
            thread::sleep(Duration::from_millis(200));
            // The kernel's own waits, such as a fault's for the map of the process, are counted too: a loaded
            // machine may have some in one period, and a thread that wakes for nothing has its own in each.
            let periods = (0..PERIODS).map(|_| {
                let (begin, before) = (Instant::now(), sleeps());
                thread::sleep(WATCHED);
                let woken = sleeps() - before;
                // The sleep may have been longer.
                (woken, begin.elapsed())
            });
            let quiet = |&(woken, time): &(i64, Duration)| woken as f64 <= each_second * time.as_secs_f64();
            let seen: Vec<_> = periods.take_while(|p| !quiet(p)).collect();
            assert!(!reader.is_finished());
            a.send(to_b, b"message!", OpFlags::default());
            assert_eq!(reader.join().unwrap(), 2);
            counter.join().unwrap();
            assert!(seen.len() < PERIODS, "{progress:?}: threads went to sleep too often: {seen:?}");
        });
    }
}
