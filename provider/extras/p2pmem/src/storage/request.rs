//! Transfers that go on while the program does something else.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::file::{File, Op};
use super::many::Parts;
use super::outcome::{Results, caught};
use super::stream::Queued;
use super::workers::Workers;
use crate::error::Error;

/// Transfers that are under way. Dropping it waits for them.
#[derive(Debug)]
pub struct Request {
    how: ManuallyDrop<How>,
    count: usize,
    /// Whose threads do it: a forked process has none of them.
    process: u32,
}

#[derive(Debug)]
enum How {
    Threads(Arc<Shared>),
    Stream(Queued),
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    results: Vec<Option<Result<usize, Error>>>,
    left: usize,
}

impl Shared {
    fn new(count: usize) -> Arc<Shared> {
        let state = State { results: (0..count).map(|_| None).collect(), left: count };
        Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self, n: usize, result: Result<usize, Error>) {
        let mut state = self.lock();
        state.results[n] = Some(result);
        state.left -= 1;
        drop(state);
        self.changed.notify_all();
    }
}

impl Request {
    /// Begins transfers, which go on in threads, several at once and in any order.
    ///
    /// # Safety
    /// As of [`File::batch`]; the memory stays until the request is done.
    pub unsafe fn submit(file: &Arc<File>, ops: &[Op]) -> Request {
        let shared = Shared::new(ops.len());
        for (n, op) in ops.iter().copied().enumerate() {
            let (shared, of) = (Arc::clone(&shared), Arc::clone(file));
            file.workers.post(Box::new(move || {
                let result = caught(|| of.transfer(&op));
                shared.done(n, result);
            }));
        }
        Request::made(How::Threads(shared), ops.len())
    }

    /// As [`Request::submit`], of several files: a few threads do all of them, in pieces, file after file as
    /// far as that goes.
    ///
    /// # Safety
    /// As of [`Request::submit`].
    pub unsafe fn submit_files(ops: &[(Arc<File>, Op)]) -> Request {
        let shared = Shared::new(ops.len());
        let workers = Workers::default();
        for (n, (file, op)) in ops.iter().enumerate() {
            let parts = Arc::new(Parts::new(Arc::clone(file), *op));
            for piece in 0..parts.count() {
                let (shared, parts) = (Arc::clone(&shared), Arc::clone(&parts));
                workers.post(Box::new(move || {
                    if let Some(result) = parts.piece(piece) {
                        shared.done(n, result);
                    }
                }));
            }
        }
        Request::made(How::Threads(shared), ops.len())
    }

    /// Queues transfers on a stream of CUDA's: they begin when all that is queued there is done, and what is
    /// queued after them waits for them.
    ///
    /// # Safety
    /// As of [`Request::submit`]; `stream` is a stream of this process, and stays one until the request is
    /// done.
    pub unsafe fn submit_on(file: &Arc<File>, ops: &[Op], stream: usize) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let queued = unsafe { Queued::new(file, ops, stream)? };
        Ok(Request::made(How::Stream(queued), ops.len()))
    }

    fn made(how: How, count: usize) -> Request {
        Request { how: ManuallyDrop::new(how), count, process: std::process::id() }
    }

    /// In a forked process nothing is waited for: what is under way is its parent's.
    fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Whether all of them are done.
    pub fn poll(&self) -> bool {
        self.wait(Some(Duration::ZERO))
    }

    /// Waits until all of them are done, or for so long: whether they are.
    pub fn wait(&self, most: Option<Duration>) -> bool {
        if self.is_forked() {
            return true;
        }
        let shared = match &*self.how {
            How::Threads(shared) => shared,
            How::Stream(queued) => return queued.wait(most),
        };
        let end = most.map(|most| Instant::now() + most);
        let mut state = shared.lock();
        while state.left > 0 {
            let left =
                end.map_or(Duration::from_secs(60), |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What each of them has come to, once they are done; nothing the second time.
    pub fn take(&self) -> Option<Results> {
        if !self.poll() {
            return None;
        }
        if self.is_forked() {
            let what = "a transfer that a process began does not go on in one that it has forked";
            let cancelled = |_| Err(Error::Os(what.into(), io::Error::from_raw_os_error(libc::ECANCELED)));
            return Some((0..self.count).map(cancelled).collect());
        }
        let shared = match &*self.how {
            How::Threads(shared) => shared,
            How::Stream(queued) => return queued.take(),
        };
        let all = std::mem::take(&mut shared.lock().results);
        all.into_iter().collect()
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.wait(None);
        // SAFETY: it is used no more.
        unsafe { ManuallyDrop::drop(&mut self.how) };
    }
}
