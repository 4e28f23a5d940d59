//! The lock of a domain: absent where the caller promised to serialize, and otherwise one that
//! a thread polling in a tight loop cannot keep from a thread that has something to post.
//!
//! A thread that does not get the lock by spinning and yielding *parks*. An unlock while a thread is
//! parked leaves the lock reserved for the parked ones: newcomers, and so the unlocking
//! thread's next round too, have to wait until one of those has had it.

use std::cell::UnsafeCell;
use std::fmt;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::threads::is_single;
use crate::{Poisoned, catch};

const FREE: u32 = 0;
/// A thread is in.
const HELD: u32 = 1;
/// No thread is in, and only the parked may enter.
const KEPT: u32 = 2;
/// Added to `HELD`: a thread is parked.
const PARKED: u32 = 4;
/// A panic has been inside: no thread may enter any more.
const DEAD: u32 = 8;
/// `FREE` and `HELD` of a lock whose callers serialize. Such a lock is entered and left by one comparison,
/// which says at once that it is of that sort and that no thread is in.
const OPEN: u32 = 16;
const IN: u32 = 17;

const SPINS: u32 = 200;
const YIELDS: u32 = 10;

/// A value only one thread at a time gets at. The state and the beginning of the value are on one cache line.
#[repr(C, align(64))]
pub(crate) struct Lock<T> {
    state: AtomicU32,
    parked: AtomicU32,
    shared: bool,
    /// The process that made it.
    pid: u32,
    value: ManuallyDrop<UnsafeCell<T>>,
    /// Held by the thread that has the value of a lock that is dead.
    remains: Mutex<()>,
}

// SAFETY: `Guard` is the only way to the value. Where `shared`, the lock protocol lets one guard
// exist at a time and orders one before the next. Otherwise the caller of `serialized` promised that.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Several threads may come at once.
    pub(crate) fn shared(value: T) -> Self {
        Lock {
            state: AtomicU32::new(FREE),
            parked: AtomicU32::new(0),
            shared: true,
            pid: std::process::id(),
            remains: Mutex::new(()),
            value: ManuallyDrop::new(UnsafeCell::new(value)),
        }
    }

    /// A lock that takes no atomic exchange.
    ///
    /// # Safety
    /// From one entry to the end of its guard no other thread enters, and each of these comes before the
    /// next as a synchronization between threads has it.
    pub(crate) unsafe fn serialized(value: T) -> Self {
        let mut lock = Lock::shared(value);
        (lock.state, lock.shared) = (AtomicU32::new(OPEN), false);
        lock
    }

    /// What the state is while no thread is in.
    fn free(&self) -> u32 {
        if self.shared { FREE } else { OPEN }
    }

    /// Enters. Unwinds with [`Poisoned`] if a panic has been inside before. `first`: what a thread does first
    /// that enters a lock which several may enter at once.
    #[inline(always)]
    pub(crate) fn lock(&self, first: impl FnOnce()) -> Guard<'_, T> {
        if self.enter_serialized() {
            return Guard { lock: self, exclusive: PhantomData };
        }
        first();
        if !self.step(FREE, HELD) {
            self.wait_or_unwind();
        }
        Guard { lock: self, exclusive: PhantomData }
    }

    /// Enters, unless a panic has been inside before.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_, T>, Poisoned> {
        if !self.enter_at_once() {
            self.wait()?;
        }
        Ok(Guard { lock: self, exclusive: PhantomData })
    }

    /// Enters at exit(3). `None`: another thread is in. It fails where this one may not enter, now or later.
    pub(crate) fn enter_at_exit(&self) -> Result<Option<Guard<'_, T>>, Poisoned> {
        // A forked child: a thread that it has not may have left the value in any state.
        let other = self.pid != std::process::id() || self.state.load(Ordering::Relaxed) == DEAD;
        // Where there are no other threads none enters while this one is in. One that has ended since its
        // last call passed through the kernel's locks, as has this one's question for it.
        if other || !self.shared && !is_single() {
            return Err(Poisoned);
        }
        // Not `then_some`: the guard of a lock that another thread holds would be made, and free it.
        Ok(self.step(self.free(), HELD).then(|| Guard { lock: self, exclusive: PhantomData }))
    }

    /// The value, once a panic has been inside, to one thread at a time: it may be in any state. `None`:
    /// there was no panic, or it was in another process, which a thread may have left in the middle of a
    /// store.
    pub(crate) fn remains(&self) -> Option<Remains<'_, T>> {
        let held = self.remains.lock().unwrap_or_else(PoisonError::into_inner);
        let own = self.pid == std::process::id();
        // Acquire: what the thread that panicked did inside comes before.
        (own && self.state.load(Ordering::Acquire) == DEAD).then(|| Remains { lock: self, _held: held })
    }

    #[inline(always)]
    fn enter_at_once(&self) -> bool {
        self.enter_serialized() || self.step(FREE, HELD)
    }

    /// Enters a lock whose callers serialize, without an atomic exchange. The state finds the one that does
    /// not keep that promise, nearly always, and then waits as in a shared lock.
    #[inline(always)]
    fn enter_serialized(&self) -> bool {
        let open = self.state.load(Ordering::Relaxed) == OPEN;
        if open {
            self.state.store(IN, Ordering::Relaxed);
        }
        open
    }

    #[inline(always)]
    fn step(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait_or_unwind(&self) {
        if let Err(poisoned) = self.wait() {
            std::panic::resume_unwind(Box::new(poisoned));
        }
    }

    #[cold]
    fn wait(&self) -> Result<(), Poisoned> {
        if self.state.load(Ordering::Relaxed) == DEAD {
            return Err(Poisoned);
        }
        let free = self.free();
        for _ in 0..SPINS {
            if self.state.load(Ordering::Relaxed) == free && self.step(free, HELD) {
                return Ok(());
            }
            spin_loop();
        }
        for _ in 0..YIELDS {
            if self.state.load(Ordering::Relaxed) == free && self.step(free, HELD) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        self.park()
    }

    fn park(&self) -> Result<(), Poisoned> {
        self.parked.fetch_add(1, Ordering::SeqCst);
        loop {
            match self.state.load(Ordering::SeqCst) {
                s @ (FREE | OPEN | KEPT) => {
                    // The mark is set whether or not others are parked: `leave` looks again.
                    if self.step(s, HELD | PARKED) {
                        break;
                    }
                }
                s @ (HELD | IN) => {
                    let parked = HELD | PARKED;
                    let _ = self.state.compare_exchange(s, parked, Ordering::SeqCst, Ordering::SeqCst);
                }
                DEAD => {
                    self.parked.fetch_sub(1, Ordering::SeqCst);
                    futex_wake(&self.state);
                    return Err(Poisoned);
                }
                // A forked child: the thread that is in is not there, and has left the value in any state.
                _ if self.pid != std::process::id() => self.state.store(DEAD, Ordering::SeqCst),
                s => futex_wait(&self.state, s),
            }
        }
        self.parked.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    #[inline(always)]
    fn leave(&self) {
        if self.state.load(Ordering::Relaxed) == IN {
            self.state.store(OPEN, Ordering::Relaxed);
        } else if self
            .state
            .compare_exchange(HELD, self.free(), Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            self.hand_over();
        }
    }

    /// Leaves, or ends the lock where this thread panics.
    #[inline(never)]
    fn leave_or_die(&self) {
        if std::thread::panicking() {
            self.state.store(DEAD, Ordering::SeqCst);
            futex_wake(&self.state);
            return;
        }
        self.leave();
    }

    #[cold]
    fn hand_over(&self) {
        if self.parked.load(Ordering::SeqCst) > 0 {
            self.state.store(KEPT, Ordering::SeqCst);
        } else {
            self.state.store(self.free(), Ordering::SeqCst);
        }
        // A thread that parks from here on finds FREE, OPEN or KEPT before it sleeps. One that counted
        // itself after the load above and marked the state before the store sleeps on a value that is
        // gone: the wake below, or the kernel's comparison, brings it back.
        futex_wake(&self.state);
    }
}

impl<T> Drop for Lock<T> {
    fn drop(&mut self) {
        let dead = *self.state.get_mut() == DEAD;
        if dead && self.pid != std::process::id() {
            // A forked child: as a thread of the parent's has left it, in the middle of anything.
            return;
        }
        // SAFETY: dropped here, once, and not used any more.
        let mut value = || unsafe { ManuallyDrop::drop(&mut self.value) };
        if dead {
            // It may be in any state. What it is about has ended before, if that was possible.
            let _ = catch(value);
        } else {
            value();
        }
    }
}

/// The value of a lock that a panic has been inside, while this thread has it.
#[derive(Debug)]
pub(crate) struct Remains<'a, T> {
    lock: &'a Lock<T>,
    _held: MutexGuard<'a, ()>,
}

impl<T> Deref for Remains<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock was dead when this was made, and stays so: there is no guard, since the last one
        // stored that state when it went, in this process, and none is made any more. Of these there is one
        // at a time.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Remains<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> fmt::Debug for Lock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// The value, while this thread is in.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// It is `Send` and `Sync` where a `&mut T` is.
    exclusive: PhantomData<&'a mut T>,
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

    /// What the guard gives access to, in a value of its own: for a call that is seldom made, and that would
    /// have the guard in memory where it is not made.
    #[inline(always)]
    pub(crate) fn apart(&mut self) -> Apart<'_, T> {
        Apart { lock: self.lock, exclusive: PhantomData }
    }
}

/// A guard that is borrowed: it does not leave.
pub(crate) struct Apart<'a, T> {
    lock: &'a Lock<T>,
    exclusive: PhantomData<&'a mut T>,
}

impl<T> Deref for Apart<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: it has borrowed the guard that exists, and no other one does.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Apart<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave_or_die();
    }
}

fn futex_wait(word: &AtomicU32, seen: u32) {
    // The time limit is only a net under callers that break the promise to serialize.
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
#[path = "lock_tests.rs"]
mod tests;
