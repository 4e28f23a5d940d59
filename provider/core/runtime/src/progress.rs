//! Automatic progress: a thread that makes progress while the application does not.
//!
//! An application that polls is left alone: the thread only looks, every millisecond, whether it
//! still does. Otherwise the thread makes progress until there is nothing to do, and sleeps until a
//! peer or a post wakes it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use link_api::RmaLink;

use crate::poison::catch;
use crate::{Deadline, Error, Runtime};

/// How long after its last call an application still counts as polling.
const STAY_OUT: Duration = Duration::from_millis(1);
/// How long to leave a peer alone whose ring is full.
const FULL: Duration = Duration::from_micros(20);

/// What a [`Runtime`] is part of, so that a thread can keep it.
pub trait Host: Send + Sync + 'static {
    /// The way to peers.
    type Link: RmaLink;

    /// The runtime.
    fn runtime(&self) -> &Runtime<Self::Link>;
}

impl<L: RmaLink + 'static> Host for Runtime<L>
where
    Runtime<L>: Send + Sync,
{
    type Link = L;

    fn runtime(&self) -> &Runtime<L> {
        self
    }
}

/// Starts the thread of a runtime with automatic progress. It keeps the host until [`Runtime::close`].
pub fn start<H: Host>(host: &Arc<H>) -> Result<(), Error> {
    let Some(own) = host.runtime().progress_thread() else { return Ok(()) };
    let mut thread = own.thread.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_some() {
        return Ok(());
    }
    // Now, so that running out of descriptors is the opener's error.
    own.wait.fd()?;
    own.stop.store(false, Ordering::SeqCst);
    let theirs = host.clone();
    let _blocked = Signals::block();
    let body = move || {
        // A panic has been logged, and the next call fails.
        let runtime = theirs.runtime();
        let _ = catch(|| {
            run(runtime);
            runtime.lock_for_progress_thread().set_kept(false);
        });
    };
    let spawned = thread::Builder::new().name("strait".into()).spawn(body);
    *thread = Some((spawned.map_err(|e| Error::system("pthread_create", &e))?, std::process::id()));
    Ok(())
}

fn run<L: RmaLink>(runtime: &Runtime<L>) {
    let Some(own) = runtime.progress_thread() else { return };
    while !own.is_ending() {
        if own.polled.swap(false, Ordering::Relaxed) {
            thread::park_timeout(STAY_OUT);
            continue;
        }
        own.wait.lower();
        if own.is_ending() {
            return;
        }
        let mut engine = runtime.lock_for_progress_thread();
        engine.set_kept(true);
        let done = engine.progress();
        let sleep = done == 0 && engine.arm();
        engine.set_asleep(sleep);
        drop(engine);
        if sleep {
            if own.wait.sleep(Deadline::NEVER).is_err() {
                thread::park_timeout(STAY_OUT);
            }
        } else if done == 0 {
            thread::sleep(FULL);
        }
    }
}

/// All signals blocked, as long as this lives: they are for the application's threads. But for those of a
/// fault, which `hmem::guard` handles in the thread that has it; blocked, they would end the process.
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    pub(crate) fn block() -> Signals {
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

#[cfg(test)]
mod tests {
    use engine::{Config, Domain};
    use link::ShmLink;

    use super::*;
    use crate::Progress;

    fn runtime() -> Runtime<ShmLink> {
        let config = Config { virt_addr: false, rma_order: false };
        Runtime::new(Domain::new(config), Progress::Auto)
    }

    /// The thread is not started here: the test does what it does.
    #[test]
    fn a_call_wakes_the_thread_whenever_it_sleeps() {
        let runtime = runtime();
        let own = runtime.progress_thread().unwrap();
        let calls: [fn(&Runtime<ShmLink>); 3] =
            [|r| drop(r.lock()), |r| r.lock().leave(), |r| drop(r.enter_to_poll())];
        for call in calls {
            for asleep in [true, false, true] {
                own.wait.lower();
                runtime.lock_for_progress_thread().set_asleep(asleep);
                assert!(!own.wait.is_raised(), "it wakes itself");
                call(&runtime);
                assert_eq!(own.wait.is_raised(), asleep);
            }
        }
    }

    #[test]
    fn closing_ends_the_thread_and_lets_go_of_the_host() {
        let host = Arc::new(runtime());
        for _ in 0..2 {
            start(&host).unwrap();
            start(&host).unwrap();
            assert_eq!(Arc::strong_count(&host), 2);
            host.close();
            assert_eq!(Arc::strong_count(&host), 1);
        }
    }

    #[test]
    fn a_forked_child_waits_for_no_thread() {
        let host = Arc::new(runtime());
        start(&host).unwrap();
        // SAFETY: the child closes, which takes no lock that another thread may have had, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let closed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| host.close()));
            // SAFETY: nothing of this process is run or written any more.
            unsafe { libc::_exit(i32::from(closed.is_err())) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a place for what became of it.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        host.close();
    }
}
