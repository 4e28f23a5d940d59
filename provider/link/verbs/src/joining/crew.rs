//! A few threads that make the calls which may take long.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

/// Of a thread.
const STACK: usize = 128 << 10;
/// Most threads. A call for which there is none waits for one before it.
const MOST: usize = 32;
/// Most calls under way that are to one host: one that answers nothing leaves threads for the others.
const OF_ONE: usize = 24;

pub(super) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<(IpAddr, Job)>,
    /// The hosts of the calls under way.
    to: Vec<IpAddr>,
    threads: usize,
}

impl State {
    /// The first call that waits and may begin.
    fn next(&mut self) -> Option<(IpAddr, Job)> {
        let may = |to: &IpAddr| self.to.iter().filter(|of| *of == to).count() < OF_ONE;
        let at = self.waiting.iter().position(|(to, _)| may(to))?;
        let next = self.waiting.remove(at)?;
        self.to.push(next.0);
        Some(next)
    }

    fn over(&mut self, to: IpAddr) {
        if let Some(at) = self.to.iter().position(|of| *of == to) {
            self.to.swap_remove(at);
        }
    }
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

    /// Has this call to a host made by a thread, now or when one has done what it does. An error: there is
    /// none, and what was to be done is dropped.
    pub(super) fn give(self: &Arc<Crew>, to: IpAddr, job: Job) -> io::Result<()> {
        let mut state = self.lock();
        state.waiting.push_back((to, job));
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
            let Some((to, job)) = state.next() else {
                state.threads -= 1;
                return;
            };
            drop(state);
            // A panic ends the call alone: others wait for the thread.
            let _ = catch_unwind(AssertUnwindSafe(job));
            self.lock().over(to);
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

    fn host(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    impl Calls {
        /// One that returns when all may.
        fn call(self: &Arc<Calls>, over: impl FnOnce() + Send + 'static) -> Job {
            let calls = self.clone();
            Box::new(move || {
                let mut state = calls.state.lock().expect("no panic");
                state.0 += 1;
                assert!(state.0 <= MOST, "a thread too many");
                calls.changed.notify_all();
                let mut state = calls.changed.wait_while(state, |(_, may)| !*may).expect("no panic");
                state.0 -= 1;
                drop(state);
                over();
            })
        }

        /// Waits until so many are under way.
        fn await_begun(&self, many: usize) {
            let state = self.state.lock().expect("no panic");
            drop(self.changed.wait_while(state, |(n, _)| *n < many).expect("no panic"));
        }

        fn let_return(&self) {
            self.state.lock().expect("no panic").1 = true;
            self.changed.notify_all();
        }
    }

    fn await_end(crew: &Crew) {
        while crew.lock().threads > 0 {
            std::thread::yield_now();
        }
        let state = crew.lock();
        assert!(state.waiting.is_empty() && state.to.is_empty());
    }

    #[test]
    fn so_many_calls_are_under_way_and_no_more_and_all_are_made() {
        let (crew, calls) = (Arc::new(Crew::default()), Arc::new(Calls::default()));
        let (over, made) = channel();
        for n in 0..3 * MOST {
            let over = over.clone();
            let call = calls.call(move || over.send(n).expect("a test that waits"));
            crew.give(host((n % 3) as u8), call).expect("a thread");
        }
        calls.await_begun(MOST);
        assert_eq!(crew.lock().threads, MOST);
        assert_eq!(crew.lock().waiting.len(), 2 * MOST);
        calls.let_return();
        let mut all: Vec<usize> = (0..3 * MOST).map(|_| made.recv().expect("a call")).collect();
        all.sort_unstable();
        assert_eq!(all, Vec::from_iter(0..3 * MOST));
        await_end(&crew);
    }

    #[test]
    fn a_host_that_answers_nothing_leaves_threads_for_the_others() {
        let (crew, calls) = (Arc::new(Crew::default()), Arc::new(Calls::default()));
        (0..3 * MOST).for_each(|_| crew.give(host(1), calls.call(|| ())).expect("a thread"));
        calls.await_begun(OF_ONE);
        // It is made before any of those has returned.
        let (over, made) = channel();
        crew.give(host(2), Box::new(move || over.send(()).expect("a test that waits"))).expect("a thread");
        made.recv().expect("a call");
        assert_eq!(calls.state.lock().expect("no panic").0, OF_ONE);
        calls.let_return();
        await_end(&crew);
    }

    #[test]
    fn a_call_that_panics_leaves_its_thread_and_its_place() {
        let crew = Arc::new(Crew::default());
        let (over, made) = channel();
        for n in 0..2 * MOST {
            let over = over.clone();
            let call = move || {
                over.send(()).expect("a test that waits");
                assert!(n % 2 == 0, "of this test");
            };
            crew.give(host(1), Box::new(call)).expect("a thread");
        }
        (0..2 * MOST).for_each(|_| made.recv().expect("a call"));
        await_end(&crew);
    }
}
