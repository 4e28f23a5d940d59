//! A thread that makes progress for borrowers while the program of the lender makes no call.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle, sleep};
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
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// `wakes`: what arrives makes the descriptor readable.
    pub(super) fn start(context: &Arc<Context>, wakes: bool) -> Result<Helper, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let (context, ends) = (context.clone(), over.clone());
        let body = move || {
            while !ends.load(Relaxed) && context.progress().is_ok() {
                nap(&context, if wakes { LONG } else { UNSURE });
            }
        };
        let thread = Builder::new().name("rpipe-lender".into()).spawn(body);
        let thread = thread.map_err(|e| Error::system("starting a thread that makes progress", &e))?;
        Ok(Helper { over, thread: Some(thread) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        match self.thread.take() {
            // It is the parent's.
            Some(thread) if forked::is_child() => std::mem::forget(thread),
            Some(thread) => drop(thread.join()),
            None => {}
        }
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
