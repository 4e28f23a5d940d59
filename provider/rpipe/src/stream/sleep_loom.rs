//! Going to sleep under loom: the flag and the word that the reader sleeps, with fences on both sides. membarrier(2), which stands for the
//! writer's, is argued for in `link`'s `shm::wake`.

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
