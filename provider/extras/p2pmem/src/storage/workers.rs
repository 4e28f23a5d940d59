//! Threads that do what is not to be waited for. There are none while there is nothing to do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::bounce::WORKERS;

pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    todo: VecDeque<Job>,
    threads: usize,
    /// The process that the threads are of: a forked child has none of them.
    process: u32,
}

/// Those of a file.
#[derive(Clone, Default)]
pub(super) struct Workers(Arc<Mutex<State>>);

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Workers")
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// Has a thread do it; this one, if there is none to be had. It does not panic.
    pub fn post(&self, job: Job) {
        if !self.put(job) {
            work(&self.0);
        }
    }

    /// Has a thread do it, and never this one: what is posted here may be anything. If there is none to be
    /// had it stays for the next one.
    pub fn leave(&self, job: Job) {
        if !self.put(job) {
            lock(&self.0).threads -= 1;
        }
    }

    /// Whether a thread does it; else this one counts as one.
    fn put(&self, job: Job) -> bool {
        let begins = {
            let mut state = lock(&self.0);
            let process = std::process::id();
            if state.process != process {
                (state.process, state.threads) = (process, 0);
                // Its parent does those.
                state.todo.clear();
            }
            state.todo.push_back(job);
            let begins = state.threads < WORKERS;
            state.threads += usize::from(begins);
            begins
        };
        let state = Arc::clone(&self.0);
        let begin =
            || std::thread::Builder::new().name("strait-storage".into()).spawn(move || work(&state)).is_ok();
        !begins || ipc::without_signals(begin)
    }
}

/// Until nothing is left.
fn work(state: &Mutex<State>) {
    loop {
        let job = {
            let mut state = lock(state);
            let job = state.todo.pop_front();
            if job.is_none() {
                state.threads -= 1;
            }
            job
        };
        match job {
            Some(job) => job(),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// Not a test: what the process of the next one does.
    #[test]
    fn process_without_threads() {
        if std::env::var("STRAIT_STORAGE_TEST_NO_THREADS").is_err() {
            return;
        }
        let own = std::thread::current().id();
        let (says, said) = channel();
        let job = |name| -> Job {
            let says = says.clone();
            Box::new(move || says.send((name, std::thread::current().id())).unwrap())
        };
        let workers = Workers::default();
        workers.leave(job("left"));
        assert!(said.try_recv().is_err(), "the caller has done it");
        workers.post(job("posted"));
        let all: Vec<_> = said.try_iter().collect();
        assert_eq!(all, [("left", own), ("posted", own)]);
        assert_eq!(lock(&workers.0).threads, 0);
        println!("done");
    }

    /// Without threads the rest waits, and what is posted is done by the caller.
    #[test]
    fn without_threads_the_caller_does_what_it_posts() {
        // No thread gets so long a stack.
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "storage::workers::tests::process_without_threads",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("STRAIT_STORAGE_TEST_NO_THREADS", "1")
            .env("RUST_MIN_STACK", (1u64 << 60).to_string())
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
        assert!(child.status.success() && out.contains("done"), "{out}{err}");
    }
}
