//! FI_PROGRESS_AUTO: a thread that makes progress while the application does not.
//!
//! An application that polls is left alone: the thread only looks, every millisecond, whether it
//! still does. Otherwise the thread makes progress until there is nothing to do, and sleeps until a
//! peer or a post wakes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::domain::Shared;
use crate::errno::Errno;
use crate::ffi::guard_or;
use crate::wait::{Deadline, Wait};

/// How long after its last call an application still counts as polling.
const STAY_OUT: Duration = Duration::from_millis(1);
/// How long to leave a peer alone whose ring is full.
const FULL: Duration = Duration::from_micros(20);

#[derive(Debug, Default)]
pub(crate) struct Auto {
    /// The links of all endpoints, and the way to wake the thread.
    pub wait: Wait,
    polled: AtomicBool,
    asleep: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Auto {
    /// The application makes progress itself.
    #[inline]
    pub(crate) fn polled(&self) {
        self.polled.store(true, Ordering::Relaxed);
    }

    /// Something was done that may leave more to do.
    #[inline]
    pub(crate) fn kick(&self) {
        if self.asleep.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        self.wait.raise();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wait.raise();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = thread {
            Thread::unpark(handle.thread());
            // Its body catches panics, so that there is nothing to learn from the result.
            let _ = handle.join();
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// Starts the thread of a domain that has one.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<(), Errno> {
    let Some(auto) = shared.auto() else { return Ok(()) };
    // Now, so that running out of descriptors is the opener's error.
    auto.wait.fd()?;
    let theirs = shared.clone();
    let blocked = Signals::block();
    let handle = thread::Builder::new().name("strait".into()).spawn(move || guard_or((), || run(&theirs)))?;
    drop(blocked);
    *auto.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
    Ok(())
}

fn run(shared: &Shared) {
    let Some(auto) = shared.auto() else { return };
    while !auto.stopped() {
        if auto.polled.swap(false, Ordering::Relaxed) {
            thread::park_timeout(STAY_OUT);
            continue;
        }
        auto.wait.lower();
        let mut engine = shared.lock_for_auto();
        let done = engine.progress();
        let sleep = done == 0 && engine.arm();
        // Under the lock: whoever comes in next sees it, and wakes us.
        auto.asleep.store(sleep, Ordering::Relaxed);
        drop(engine);
        if sleep {
            if auto.wait.sleep(Deadline::NEVER).is_err() {
                thread::park_timeout(STAY_OUT);
            }
            auto.asleep.store(false, Ordering::Relaxed);
        } else if done == 0 {
            thread::sleep(FULL);
        }
    }
}

/// All signals blocked, as long as this lives: they are for the application's threads. But for those of a fault,
/// which `hmem::guard` handles in the thread that has it; blocked, they would end the process.
struct Signals(libc::sigset_t);

impl Signals {
    fn block() -> Signals {
        // SAFETY: all zero is a set, and both sets are valid during the calls.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::sigdelset(&raw mut all, libc::SIGSEGV);
            libc::sigdelset(&raw mut all, libc::SIGBUS);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Signals(before)
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the set is valid during the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
