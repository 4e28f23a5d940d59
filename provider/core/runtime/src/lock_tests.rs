use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;

#[test]
fn one_thread_is_in_at_a_time() {
    let lock = Lock::shared([0u64; 2]);
    thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..20_000 {
                    let mut both = lock.lock(|| ());
                    both[0] += 1;
                    let seen = both[0];
                    both[1] = seen;
                }
            });
        }
    });
    assert_eq!(*lock.lock(|| ()), [80_000; 2]);
}

#[test]
fn a_parked_thread_enters_before_the_one_that_unlocked_may_again() {
    let lock = Lock::shared(());
    for _ in 0..200 {
        let been_in = AtomicBool::new(false);
        thread::scope(|s| {
            let guard = lock.lock(|| ());
            s.spawn(|| {
                let _guard = lock.lock(|| ());
                been_in.store(true, Ordering::SeqCst);
            });
            while lock.state.load(Ordering::SeqCst) != HELD | PARKED {
                thread::yield_now();
            }
            drop(guard);
            // A tight loop: it does not park, so the lock is not reserved for it.
            while !lock.enter_at_once() {
                thread::yield_now();
            }
            let second = been_in.load(Ordering::SeqCst);
            lock.leave();
            assert!(second, "the thread that unlocked came first");
        });
    }
}

#[test]
fn all_parked_threads_enter_in_the_end() {
    let (lock, polls) = (Lock::shared(0u64), AtomicU32::new(0));
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    *lock.lock(|| ()) += 1;
                    polls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..50 {
            drop(lock.lock(|| ()));
            let seen = polls.load(Ordering::Relaxed);
            while polls.load(Ordering::Relaxed) == seen {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_panic_inside_ends_it_for_all() {
    // SAFETY: one thread has it.
    let serialized = unsafe { Lock::serialized(()) };
    for lock in [serialized, Lock::shared(())] {
        let end = |what: &dyn Fn()| catch_unwind(AssertUnwindSafe(what)).unwrap_err();
        end(&|| {
            let _guard = lock.lock(|| ());
            std::panic::resume_unwind(Box::new("first"));
        });
        for _ in 0..2 {
            assert!(end(&|| drop(lock.lock(|| ()))).is::<Poisoned>());
            assert!(lock.enter().is_err());
        }
    }
}

#[test]
fn a_forked_child_does_not_wait_for_a_thread_that_it_has_not() {
    let lock = Lock::shared(());
    let guard = lock.lock(|| ());
    // SAFETY: the child enters, which touches nothing else that another thread may have locked, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: nothing of this process is run or written any more; should it wait, it is ended.
        unsafe {
            libc::alarm(20);
            libc::_exit(i32::from(lock.enter().is_ok()));
        }
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for what became of it.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(guard);
    assert!(lock.enter().is_ok());
}

/// The thread of the test is not the only one.
#[test]
fn at_exit_no_thread_enters_beside_another_one() {
    let lock = Lock::shared(());
    assert!(matches!(lock.enter_at_exit(), Ok(Some(_))));
    let guard = lock.lock(|| ());
    assert!(matches!(lock.enter_at_exit(), Ok(None)));
    drop(guard);
    assert!(matches!(lock.enter_at_exit(), Ok(Some(_))));
    let other = thread::spawn(thread::park);
    // SAFETY: one thread has it.
    let serialized = unsafe { Lock::serialized(()) };
    assert!(serialized.enter_at_exit().is_err(), "the other one may be in, for all that is known");
    other.thread().unpark();
    other.join().unwrap();
    lock.state.store(DEAD, Ordering::SeqCst);
    assert!(lock.enter_at_exit().is_err());
}

#[test]
fn at_exit_a_forked_child_enters_nothing_of_its_parents() {
    let lock = Lock::shared(());
    // SAFETY: the child looks at the lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: nothing of this process is run or written any more.
        unsafe { libc::_exit(i32::from(lock.enter_at_exit().is_ok())) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for what became of it.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_panic_inside_ends_the_wait_of_parked_threads() {
    let lock = Lock::shared(());
    thread::scope(|s| {
        let guard = lock.lock(|| ());
        let waiters = [(); 3].map(|()| s.spawn(|| lock.enter().is_err()));
        while lock.parked.load(Ordering::SeqCst) < 3 {
            thread::yield_now();
        }
        let inside = catch_unwind(AssertUnwindSafe(move || {
            let _guard = guard;
            std::panic::resume_unwind(Box::new("inside"));
        }));
        assert!(inside.is_err());
        for waiter in waiters {
            assert!(waiter.join().unwrap(), "a parked thread entered a poisoned lock");
        }
    });
}
