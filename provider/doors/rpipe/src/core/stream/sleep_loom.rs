//! Going to sleep under loom: the flag and the word that the reader sleeps, with fences on both sides.
//! membarrier(2), which stands for the writer's, is argued for in `link`'s `shm::wake`.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::fence;
use loom::thread;

fn sleep(fences: bool) {
    loom::model(move || {
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let (writer, full) = (words.clone(), move || {
            if fences {
                fence(SeqCst)
            }
        });
        let writing = thread::spawn(move || {
            writer.0.store(1, Release);
            full();
            writer.1.load(Relaxed) != 0
        });
        words.1.store(1, Relaxed);
        full();
        let sleeps = words.0.load(Acquire) == 0;
        let woken = writing.join().unwrap();
        assert!(woken || !sleeps, "sleeps on a message");
    });
}

#[test]
fn no_wake_up_is_lost() {
    sleep(true);
}

#[test]
#[should_panic(expected = "sleeps on a message")]
fn twin_without_fences_sleeps_on_a_message() {
    sleep(false);
}

/// A reader that waits for one of two writers: a word for each, one barrier for both, and a look at each.
fn sleep_for_two(fences: bool) {
    loom::model(move || {
        let words = Arc::new([0; 2].map(|_| (AtomicU64::new(0), AtomicU64::new(0))));
        let full = move || {
            if fences {
                fence(SeqCst)
            }
        };
        let writers = [0, 1].map(|at| {
            let words = words.clone();
            thread::spawn(move || {
                let (flag, asleep) = &words[at];
                flag.store(1, Release);
                full();
                asleep.load(Relaxed) != 0
            })
        });
        words.iter().for_each(|(_, asleep)| asleep.store(1, Relaxed));
        full();
        let sleeps = words.iter().all(|(flag, _)| flag.load(Acquire) == 0);
        let woken = writers.map(|writing| writing.join().unwrap());
        assert!(!sleeps || woken == [true; 2], "sleeps on a message");
    });
}

#[test]
fn no_wake_up_of_two_writers_is_lost() {
    sleep_for_two(true);
}

#[test]
#[should_panic(expected = "sleeps on a message")]
fn twin_without_fences_sleeps_on_a_message_of_one_of_two() {
    sleep_for_two(false);
}
