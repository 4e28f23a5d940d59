//! A thread that makes progress for borrowers while the program of the lender makes no call: one for all that
//! a process lends.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::thread::{self, Builder, JoinHandle, sleep};
use std::time::Duration;

use crate::Error;
use crate::core::Context;
use crate::core::forked;

/// Between two looks where nothing wakes.
const SHORT: Duration = Duration::from_micros(200);
/// How long it sleeps at most, in milliseconds: it has to see that it is to end; and where the path does not
/// promise to wake it.
const LONG: i32 = 50;
const UNSURE: i32 = 1;

#[derive(Debug)]
pub(super) struct Helper {
    flags: Arc<Flags>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Flags {
    over: AtomicBool,
    /// What arrives makes the descriptor readable, on the paths to all borrowers.
    wakes: AtomicBool,
}

impl Helper {
    pub(super) fn start(context: &Arc<Context>, wakes: bool) -> Result<Helper, Error> {
        let flags = Arc::new(Flags { over: false.into(), wakes: wakes.into() });
        let (context, its) = (Arc::downgrade(context), flags.clone());
        let thread = Builder::new().name("rpipe-lender".into()).spawn(move || run(&context, &its));
        let thread = thread.map_err(|e| {
            Error::Exhausted(format!(
                "starting a thread that makes progress: {e}; raise RLIMIT_NPROC (ulimit -u)"
            ))
        })?;
        Ok(Helper { flags, thread: Some(thread) })
    }

    /// It makes progress for another borrower too.
    pub(super) fn add(&self, wakes: bool) {
        self.flags.wakes.fetch_and(wakes, Relaxed);
    }

    /// It is to end, and may be this thread. Dropping waits for that.
    pub(super) fn end(&self) {
        self.flags.over.store(true, Relaxed);
    }

    /// It does, or has, for want of progress.
    pub(super) fn ends(&self) -> bool {
        self.flags.over.load(Relaxed) || self.thread.as_ref().is_none_or(|thread| thread.is_finished())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
        match self.thread.take() {
            // It is the parent's.
            Some(thread) if forked::is_child() => std::mem::forget(thread),
            // It had the last reference to the job.
            Some(thread) if thread.thread().id() == thread::current().id() => {}
            Some(thread) => drop(thread.join()),
            None => {}
        }
    }
}

fn run(context: &Weak<Context>, flags: &Flags) {
    while let Some(context) = context.upgrade() {
        if flags.over.load(Relaxed) || context.progress().is_err() || flags.over.load(Relaxed) {
            break;
        }
        nap(&context, if flags.wakes.load(Relaxed) { LONG } else { UNSURE });
    }
}

fn nap(context: &Context, most: i32) {
    let (fd, armed) = {
        let mut inner = context.lock();
        (inner.backend().descriptor(), inner.backend().arm())
    };
    let Some(fd) = fd.filter(|_| armed) else { return sleep(SHORT) };
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, most) };
}
