//! A lock that the thread which uses it alone takes by two plain stores. The first thread that enters is its
//! owner: it says that it is inside, and looks whether it is the owner still. Another thread ends that for
//! good: it says that there is no owner, has every thread of the process pass a full barrier (membarrier(2)),
//! and waits until the owner is outside. From then on a mutex is the lock.
//!
//! One of the two sees what the other has stored, since the barrier stands for the fence between the owner's
//! store and its load. Where the kernel has no such barrier, the mutex is the lock from the beginning.
//!
//! A call from within a call of the same thread (of a signal's handler) is an error.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipc::fence::Barrier;

use crate::Error;
use crate::core::{Contenders, forked};

/// No thread has entered yet.
const NONE: usize = 0;
/// The mutex is the lock.
const SHARED: usize = 1;
/// This process is a forked child of the one that made the lock.
const FORKED: usize = 2;

/// A word, and the fences of the two sides: those of the program, or of a model.
pub(crate) trait Words {
    fn owner(&self) -> usize;
    fn set_owner(&self, owner: usize);
    fn inside(&self) -> bool;
    /// `false` is a release.
    fn set_inside(&self, inside: bool);
    /// Between the owner's store and its load.
    fn light(&self);
    /// Between another thread's store and its load; `false`: it cannot be had.
    fn heavy(&self) -> bool;
}

/// How a thread enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is inside, as the owner.
    Owner,
    /// It is inside already.
    Twice,
    /// The slow way.
    Slow,
}

/// The owner's way in.
#[inline(always)]
pub(crate) fn enter<W: Words>(words: &W, me: usize) -> Entry {
    if words.owner() != me {
        return Entry::Slow;
    }
    if words.inside() {
        return Entry::Twice;
    }
    words.set_inside(true);
    words.light();
    if words.owner() == me {
        return Entry::Owner;
    }
    words.set_inside(false);
    Entry::Slow
}

/// A thread that has the mutex: it becomes the owner, or ends that there is one. `true`: it is inside as the
/// owner. `pause`: waits a little, for the owner to be outside; `false` to give up.
pub(crate) fn enter_with_mutex<W: Words>(
    words: &W,
    me: usize,
    mut pause: impl FnMut() -> bool,
) -> Result<bool, Error> {
    let owner = words.owner();
    match owner {
        SHARED => return Ok(false),
        FORKED => return Err(forked::error()),
        // It may be the owner still, of which another thread has given up.
        _ if owner == NONE || owner == me => {
            words.set_inside(true);
            words.set_owner(me);
            return Ok(true);
        }
        _ => words.set_owner(SHARED),
    }
    if !words.heavy() {
        words.set_owner(owner);
        return Err(Error::System("membarrier(2) fails: use each pipe in one thread".into()));
    }
    while words.inside() {
        if !pause() {
            words.set_owner(owner);
            return Err(Error::Again);
        }
    }
    Ok(false)
}

#[derive(Debug)]
struct Atomics {
    owner: AtomicUsize,
    inside: AtomicUsize,
    barrier: Barrier,
}

impl Words for Atomics {
    #[inline(always)]
    fn owner(&self) -> usize {
        self.owner.load(Relaxed)
    }

    #[inline(always)]
    fn set_owner(&self, owner: usize) {
        self.owner.store(owner, Relaxed);
    }

    #[inline(always)]
    fn inside(&self) -> bool {
        // Acquire: what the owner did inside comes before.
        self.inside.load(Acquire) != 0
    }

    #[inline(always)]
    fn set_inside(&self, inside: bool) {
        // Release: what was done inside comes before.
        self.inside.store(usize::from(inside), Release);
    }

    #[inline(always)]
    fn light(&self) {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }

    fn heavy(&self) -> bool {
        self.barrier.heavy()
    }
}

/// The threads that wait for a lock, as the one sees them that has it and itself waits for something.
#[derive(Debug, Default)]
pub(crate) struct Others {
    waiting: AtomicUsize,
    met: AtomicBool,
}

impl Others {
    /// Waits in `take`, as one of them.
    fn wait<T>(&self, take: impl FnOnce() -> T) -> T {
        self.met.store(true, Relaxed);
        self.waiting.fetch_add(1, Relaxed);
        let taken = take();
        self.waiting.fetch_sub(1, Relaxed);
        taken
    }

    /// Stays outside until one of them is inside, for the `rounds`th time: longer each time, since that one
    /// waits as well, and is let sleep.
    pub(crate) fn let_in(&self, rounds: u32) {
        for _ in 0..100 {
            if !self.wait_now() {
                break;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        std::thread::sleep(Duration::from_micros(20 * u64::from(rounds.min(50))));
    }
}

impl Contenders for Others {
    #[inline]
    fn wait_now(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    fn were_met(&self) -> bool {
        self.met.load(Relaxed)
    }
}

/// A value that one thread at a time gets at.
pub(crate) struct Biased<T> {
    others: Others,
    words: Atomics,
    mutex: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: `Guard` is the only way to the value, and the protocol above lets one exist at a time, each after
// the one before.
unsafe impl<T: Send> Sync for Biased<T> {}

/// Inside.
pub(crate) struct Guard<'a, T> {
    lock: &'a Biased<T>,
    /// `None`: as the owner.
    held: Option<MutexGuard<'a, ()>>,
}

impl<T> Biased<T> {
    pub(crate) fn new(value: T, barrier: Barrier) -> Biased<T> {
        // Without both, the owner could be inside and another thread not see it.
        let owner = if barrier.registered && barrier.usable { NONE } else { SHARED };
        let words = Atomics { owner: owner.into(), inside: 0.into(), barrier };
        Biased { others: Others::default(), words, mutex: Mutex::new(()), value: UnsafeCell::new(value) }
    }

    /// Enters.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Result<Guard<'_, T>, Error> {
        match enter(&self.words, me()) {
            Entry::Owner => Ok(Guard { lock: self, held: None }),
            entry => self.lock_slowly(entry),
        }
    }

    /// Enters as the owner, if that is this thread, and outside.
    #[inline(always)]
    pub(crate) fn lock_as_owner(&self) -> Option<Guard<'_, T>> {
        (enter(&self.words, me()) == Entry::Owner).then(|| Guard { lock: self, held: None })
    }

    /// An error if this thread never gets in.
    fn lets_in(&self, entry: Entry) -> Result<(), Error> {
        if entry == Entry::Twice {
            return Err(Error::Invalid(
                "this thread is in a call of this pipe, or this memory, already (a signal's handler?)".into(),
            ));
        }
        if self.words.owner() == FORKED { Err(forked::error()) } else { Ok(()) }
    }

    /// As [`Biased::lock`], until `is_over`: [`Error::Again`] then.
    pub(crate) fn lock_until(&self, is_over: impl Fn() -> bool) -> Result<Guard<'_, T>, Error> {
        loop {
            match enter(&self.words, me()) {
                Entry::Owner => return Ok(Guard { lock: self, held: None }),
                entry => self.lets_in(entry)?,
            }
            if let Some(guard) = self.try_lock() {
                return Ok(guard);
            }
            if is_over() {
                return Err(Error::Again);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    #[cold]
    fn lock_slowly(&self, entry: Entry) -> Result<Guard<'_, T>, Error> {
        self.lets_in(entry)?;
        if let Some(guard) = self.try_lock() {
            return Ok(guard);
        }
        self.others.wait(|| self.lock_waiting())
    }

    fn lock_waiting(&self) -> Result<Guard<'_, T>, Error> {
        let held = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let mut turns = 0;
        let owns = enter_with_mutex(&self.words, me(), || {
            turns += 1;
            // The owner may be waiting for a message.
            if turns < 200 {
                std::thread::yield_now()
            } else {
                std::thread::sleep(Duration::from_micros(200))
            }
            true
        })?;
        Ok(Guard { lock: self, held: (!owns).then_some(held) })
    }

    /// Enters, if no thread is inside, and none may be.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if enter(&self.words, me()) == Entry::Owner {
            return Some(Guard { lock: self, held: None });
        }
        if self.words.owner() == FORKED || self.words.inside() {
            return None;
        }
        let held = self.mutex.try_lock().ok()?;
        let owns = enter_with_mutex(&self.words, me(), || false).ok()?;
        Some(Guard { lock: self, held: (!owns).then_some(held) })
    }

    /// Those that wait for it.
    pub(crate) fn others(&self) -> &Others {
        &self.others
    }

    /// In a forked child: no thread gets in any more. It is one store.
    pub(crate) fn end_in_child(&self) {
        self.words.set_owner(FORKED);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one, and borrowed for as long.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.held.is_none() {
            self.lock.words.set_inside(false);
        }
    }
}

impl<T> fmt::Debug for Biased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Biased").field("words", &self.words).finish_non_exhaustive()
    }
}

/// A number that no other thread has at the same time, above those that say something else: where its own
/// variables are.
#[inline(always)]
fn me() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let me: usize;
        // SAFETY: loads the thread control block's first word, which is its own address in every ABI of
        // x86-64.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) me, options(nostack, pure, readonly, preserves_flags))
        };
        me
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        thread_local!(static PLACE: u64 = const { 0 });
        PLACE.with(|place| std::ptr::from_ref(place).addr())
    }
}

#[cfg(all(test, loom))]
#[path = "model_loom.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn threads_come_one_at_a_time_also_when_a_second_one_appears() {
        const ROUNDS: u64 = 20_000;
        let lock = Biased::new((0u64, 0u64), Barrier::probe());
        let add = || {
            for _ in 0..ROUNDS {
                let mut both = lock.lock().unwrap();
                let (a, b) = *both;
                assert_eq!(a, b);
                both.0 = a + 1;
                std::hint::black_box(&mut both.0);
                both.1 = b + 1;
            }
        };
        add();
        std::thread::scope(|s| (0..3).for_each(|_| drop(s.spawn(add))));
        assert_eq!(*lock.lock().unwrap(), (4 * ROUNDS, 4 * ROUNDS));
    }

    #[test]
    fn a_call_within_a_call_is_an_error_and_a_forked_child_gets_nothing() {
        let lock = Biased::new((), Barrier { registered: true, usable: true });
        let held = lock.lock().unwrap();
        assert!(matches!(lock.lock(), Err(Error::Invalid(_))));
        assert!(lock.try_lock().is_none());
        drop(held);
        drop(lock.lock().unwrap());
        lock.end_in_child();
        assert!(matches!(lock.lock(), Err(Error::Invalid(_))));
        assert!(lock.try_lock().is_none());
    }
}
