//! A slot that is filled twice, and a wake-up beside two steps, under loom.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{Ordering, fence};
use loom::thread;

use super::*;
use crate::twin::{Twin, TwinWord, WideTwin};

/// One member fills its slot for two steps, another takes both.
fn slot(published: Twin, finishes: Twin) {
    loom::model(move || {
        let twins = [WideTwin::new(published), WideTwin::new(Twin::Sound), WideTwin::new(finishes)];
        let shared = Arc::new((twins, UnsafeCell::new(0u64)));
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let ([step, print, done], slot) = &*theirs;
            for n in 1..=2 {
                while arrival(step, print, n, 7) != Arrival::Here {
                    thread::yield_now();
                }
                // SAFETY: loom hands out a valid pointer, and fails the test if another one writes.
                slot.with(|slot| assert_eq!(unsafe { *slot }, n));
                finish(done, n);
            }
        });
        let ([step, print, done], slot) = &*shared;
        for n in 1..=2 {
            while finished(done) + 1 < n {
                thread::yield_now();
            }
            // SAFETY: as above.
            slot.with_mut(|slot| unsafe { *slot = n });
            publish(step, print, n, 7);
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_slot_is_filled_again_when_its_reader_has_finished() {
    slot(Twin::Sound, Twin::Sound);
}

#[test]
#[should_panic]
fn twin_that_publishes_relaxed() {
    slot(Twin::Release, Twin::Sound);
}

#[test]
#[should_panic]
fn twin_that_loads_the_step_relaxed() {
    slot(Twin::Acquire, Twin::Sound);
}

#[test]
#[should_panic]
fn twin_that_finishes_relaxed() {
    slot(Twin::Sound, Twin::Release);
}

#[test]
#[should_panic]
fn twin_that_loads_what_is_finished_relaxed() {
    slot(Twin::Sound, Twin::Acquire);
}

/// Two members publish while a third, which waits for both, goes to sleep.
fn wake(fences: Twin) {
    loom::model(move || {
        let order = move || {
            if fences != Twin::Fence {
                fence(Ordering::SeqCst);
            }
        };
        let wide = || (WideTwin::new(Twin::Sound), WideTwin::new(Twin::Sound));
        let word = || TwinWord::new(Twin::Sound);
        let shared = Arc::new(([wide(), wide()], word(), word()));
        let publishers = [0, 1].map(|member: usize| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (steps, asleep, any) = &*shared;
                publish(&steps[member].0, &steps[member].1, 1, 7);
                if !may_sleep(any, order) {
                    return false;
                }
                begin_wake(any, order);
                take_sleeper(asleep)
            })
        });
        let (steps, asleep, any) = &*shared;
        sleep(asleep, any, order);
        let awaited =
            steps.iter().filter(|(step, print)| arrival(step, print, 1, 7) != Arrival::Here).count();
        let woken = publishers.map(|publisher| publisher.join().unwrap());
        assert!(awaited == 0 || woken.contains(&true), "sleeps on a step");
    });
}

#[test]
fn no_wake_up_is_lost() {
    wake(Twin::Sound);
}

#[test]
#[should_panic(expected = "sleeps on a step")]
fn twin_without_fences_misses_a_step() {
    wake(Twin::Fence);
}
