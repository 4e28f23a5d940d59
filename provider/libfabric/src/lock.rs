//! The lock of a domain: absent where the application promised to serialize, and otherwise one that
//! a thread polling in a tight loop cannot keep from a thread that has something to post.
//!
//! A thread that does not get the lock by spinning and yielding *parks*. Whoever unlocks while
//! somebody is parked leaves the lock reserved for the parked: newcomers, and so the unlocking
//! thread's next round too, have to wait until one of those has had it.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ffi::Poisoned;

const FREE: u32 = 0;
/// Somebody is in.
const HELD: u32 = 1;
/// Nobody is in, and only the parked may enter.
const KEPT: u32 = 2;
/// Added to `HELD`: somebody is parked.
const PARKED: u32 = 4;
/// A panic has been inside: nobody may enter any more.
const DEAD: u32 = 8;

const SPINS: u32 = 200;
const YIELDS: u32 = 10;

/// A value only one thread at a time gets at.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    parked: AtomicU32,
    shared: bool,
    value: UnsafeCell<T>,
}

// SAFETY: `Guard` is the only way to the value. Where `shared`, the lock protocol lets one guard
// exist at a time and orders one before the next. Otherwise the application promised, by asking for
// FI_THREAD_DOMAIN with manual progress, that no two threads are inside calls on this domain at the
// same time and that it orders one call before the next.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// `shared`: several threads may come at once.
    pub(crate) fn new(value: T, shared: bool) -> Self {
        Lock { state: AtomicU32::new(FREE), parked: AtomicU32::new(0), shared, value: UnsafeCell::new(value) }
    }

    /// Enters. Unwinds with [`Poisoned`] if a panic has been inside before.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let entered = if self.shared {
            self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
        } else {
            // No atomic exchange: the application serializes. The flag finds the caller that does
            // not keep that promise, nearly always, and then waits as in a shared lock.
            let free = self.state.load(Ordering::Relaxed) == FREE;
            if free {
                self.state.store(HELD, Ordering::Relaxed);
            }
            free
        };
        if !entered {
            self.wait();
        }
        Guard { lock: self }
    }

    fn enter(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        if self.state.load(Ordering::Relaxed) == DEAD {
            std::panic::resume_unwind(Box::new(Poisoned));
        }
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == FREE && self.enter(FREE, HELD) {
                return;
            }
            spin_loop();
        }
        for _ in 0..YIELDS {
            if self.state.load(Ordering::Relaxed) == FREE && self.enter(FREE, HELD) {
                return;
            }
            std::thread::yield_now();
        }
        self.park();
    }

    fn park(&self) {
        self.parked.fetch_add(1, Ordering::SeqCst);
        loop {
            match self.state.load(Ordering::SeqCst) {
                s @ (FREE | KEPT) => {
                    // The mark is set whether or not others are parked: `leave` looks again.
                    if self.enter(s, HELD | PARKED) {
                        break;
                    }
                }
                HELD => {
                    let _ =
                        self.state.compare_exchange(HELD, HELD | PARKED, Ordering::SeqCst, Ordering::SeqCst);
                }
                DEAD => {
                    self.parked.fetch_sub(1, Ordering::SeqCst);
                    futex_wake(&self.state);
                    std::panic::resume_unwind(Box::new(Poisoned));
                }
                s => futex_wait(&self.state, s),
            }
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
    }

    #[inline(always)]
    fn leave(&self) {
        if self.shared {
            if self.state.compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed).is_err() {
                self.hand_over();
            }
        } else if self.state.load(Ordering::Relaxed) == HELD {
            self.state.store(FREE, Ordering::Relaxed);
        } else {
            self.hand_over();
        }
    }

    #[cold]
    fn hand_over(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            self.state.store(KEPT, Ordering::SeqCst);
        } else {
            self.state.store(FREE, Ordering::SeqCst);
        }
        // A thread that parks from here on finds FREE or KEPT before it sleeps. One that counted
        // itself after the load above and marked `HELD` before the store sleeps on a value that is
        // gone: the wake below, or the kernel's comparison, brings it back.
        futex_wake(&self.state);
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// The one who is in.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard exists, so no other one does (see the `Sync` implementation).
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Guard<'_, T> {
    /// Leaves, without asking whether this thread panics. The guard is to be forgotten.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.lock.leave();
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lock.state.store(DEAD, Ordering::SeqCst);
            futex_wake(&self.lock.state);
            return;
        }
        self.lock.leave();
    }
}

fn futex_wait(word: &AtomicU32, seen: u32) {
    // The time limit is only a net under applications that break the promise to serialize.
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    // SAFETY: the word and the limit are valid during the call; FUTEX_WAIT only reads them. Spurious
    // returns and errors just make the caller look again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            seen,
            &raw const limit,
        );
    }
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE does not touch the word's contents.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn nobody_is_in_twice() {
        let lock = Lock::new([0u64; 2], true);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let mut both = lock.lock();
                        both[0] += 1;
                        let seen = both[0];
                        both[1] = seen;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [80_000; 2]);
    }

    #[test]
    fn a_tight_loop_keeps_nobody_out() {
        let lock = Lock::new(0u64, true);
        let stop = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        *lock.lock() += 1;
                    }
                });
            }
            let mut slowest = Duration::ZERO;
            for _ in 0..50 {
                let start = Instant::now();
                drop(lock.lock());
                slowest = slowest.max(start.elapsed());
                thread::sleep(Duration::from_micros(100));
            }
            stop.store(true, Ordering::Relaxed);
            assert!(slowest < Duration::from_secs(2), "waited {slowest:?}");
        });
    }

    #[test]
    fn a_panic_inside_ends_it_for_all() {
        let lock = Lock::new((), false);
        let end = |what: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).unwrap_err();
        end(&|| {
            let _guard = lock.lock();
            std::panic::resume_unwind(Box::new("first"));
        });
        for _ in 0..2 {
            assert!(end(&|| drop(lock.lock())).is::<Poisoned>());
        }
    }
}
