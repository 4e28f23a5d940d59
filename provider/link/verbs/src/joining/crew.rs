//! A few threads that make the calls which may take long.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

/// Of a thread.
const STACK: usize = 128 << 10;
/// Most threads. A call for which there is none waits for one before it.
const MOST: usize = 32;

pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    threads: usize,
}

/// The threads of one endpoint, as many as calls are under way. They end when there are no more, also where
/// the endpoint is closed before.
#[derive(Default)]
pub(crate) struct Crew(Mutex<State>);

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        write!(f, "Crew({} threads, {} calls wait)", state.threads, state.waiting.len())
    }
}

impl Crew {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has this done by a thread, now or when one has done what it does. An error: there is none, and what
    /// was to be done is dropped.
    pub(super) fn give(self: &Arc<Crew>, job: Job) -> io::Result<()> {
        let mut state = self.lock();
        state.waiting.push_back(job);
        if state.threads == MOST {
            return Ok(());
        }
        let crew = self.clone();
        let thread = Builder::new().name("strait-connect".into()).stack_size(STACK);
        match ipc::without_signals(|| thread.spawn(move || crew.work())) {
            Ok(_) => state.threads += 1,
            // One that there is does it.
            Err(_) if state.threads > 0 => {}
            Err(e) => {
                let job = state.waiting.pop_back();
                drop(state);
                drop(job);
                return Err(e);
            }
        }
        Ok(())
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let Some(job) = state.waiting.pop_front() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::mpsc::channel;

    use super::*;

    /// What calls do: how many are under way, and whether they may return.
    #[derive(Default)]
    struct Calls {
        state: Mutex<(usize, bool)>,
        changed: Condvar,
    }

    #[test]
    fn so_many_calls_are_under_way_and_no_more_and_all_are_made() {
        let (crew, calls) = (Arc::new(Crew::default()), Arc::new(Calls::default()));
        let (over, made) = channel();
        for n in 0..3 * MOST {
            let (calls, over) = (calls.clone(), over.clone());
            let call = move || {
                let mut state = calls.state.lock().expect("no panic");
                state.0 += 1;
                assert!(state.0 <= MOST, "a thread too many");
                calls.changed.notify_all();
                let mut state = calls.changed.wait_while(state, |(_, may)| !*may).expect("no panic");
                state.0 -= 1;
                drop(state);
                over.send(n).expect("a test that waits");
            };
            crew.give(Box::new(call)).expect("a thread");
        }
        let state = calls.state.lock().expect("no panic");
        let mut state = calls.changed.wait_while(state, |(n, _)| *n < MOST).expect("no panic");
        assert_eq!(crew.lock().threads, MOST);
        assert_eq!(crew.lock().waiting.len(), 2 * MOST);
        state.1 = true;
        calls.changed.notify_all();
        drop(state);
        let mut all: Vec<usize> = (0..3 * MOST).map(|_| made.recv().expect("a call")).collect();
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter(0..3 * MOST));
        while crew.lock().threads > 0 {
            std::thread::yield_now();
        }
    }
}
