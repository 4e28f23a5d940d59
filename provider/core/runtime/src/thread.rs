//! The thread of a domain with automatic progress, as the domain has it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

use crate::Wait;

#[derive(Debug, Default)]
pub(crate) struct ProgressThread {
    /// The links of all endpoints, and the way to wake the thread.
    pub(crate) wait: Arc<Wait>,
    pub(crate) polled: AtomicBool,
    pub(crate) stop: AtomicBool,
    /// It, and the process it is of.
    pub(crate) thread: Mutex<Option<(JoinHandle<()>, u32)>>,
}

impl ProgressThread {
    /// The application makes progress itself.
    #[inline]
    pub(crate) fn polled(&self) {
        self.polled.store(true, Ordering::Relaxed);
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wait.raise();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((handle, pid)) = thread else { return };
        if pid != std::process::id() {
            // A forked child has no such thread.
            return std::mem::forget(handle);
        }
        Thread::unpark(handle.thread());
        // Its body catches panics, so that there is nothing to learn from the result.
        let _ = handle.join();
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}
