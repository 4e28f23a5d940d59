//! Giving pages back beside locking them, under loom.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{Ordering, fence};
use loom::thread;

use super::*;
use crate::twin::{Twin, TwinWord};

/// The sender gives pages back while the consumer locks them: loom finds it if both do at the same time, or
/// if pages go that are locked.
fn lock_beside_shrink(giving: Twin, fences: Twin) {
    loom::model(move || {
        let fence = move || {
            if fences != Twin::Fence {
                fence(Ordering::SeqCst);
            }
        };
        let shared = Arc::new((TwinWord::new(giving), TwinWord::new(Twin::Sound), UnsafeCell::new(false)));
        shared.1.store(1, Relaxed);
        let theirs = shared.clone();
        let sender = thread::spawn(move || {
            let (giving, allowed, locked) = &*theirs;
            for _ in 0..2 {
                if begin(giving, allowed, fence) {
                    // SAFETY: loom hands out a valid pointer, and fails the test if another has one.
                    locked.with_mut(|locked| assert!(!unsafe { *locked }, "a locked page went"));
                    end(giving);
                }
            }
        });
        let (giving, allowed, locked) = &*shared;
        if forbid(giving, allowed, fence) {
            // SAFETY: as above.
            locked.with_mut(|locked| unsafe { *locked = true });
        }
        sender.join().unwrap();
    });
}

#[test]
fn no_page_goes_that_is_locked() {
    lock_beside_shrink(Twin::Sound, Twin::Sound);
}

#[test]
#[should_panic]
fn twin_without_fences() {
    lock_beside_shrink(Twin::Sound, Twin::Fence);
}

#[test]
#[should_panic]
fn twin_that_ends_relaxed() {
    lock_beside_shrink(Twin::Release, Twin::Sound);
}

#[test]
#[should_panic]
fn twin_that_forbids_relaxed() {
    lock_beside_shrink(Twin::Acquire, Twin::Sound);
}
