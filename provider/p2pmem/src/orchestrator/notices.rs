//! Those that want to know when a buffer is revoked.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

type Notice = Box<dyn FnOnce(&str) + Send>;

/// A notice that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeId(u64);

#[derive(Default)]
struct State {
    next: u64,
    list: Vec<(u64, Notice)>,
    /// Why it was revoked.
    why: Option<String>,
    /// The thread that calls notices now.
    telling: Option<ThreadId>,
}

#[derive(Default)]
pub(super) struct Notices {
    state: Mutex<State>,
    told: Condvar,
}

/// Nothing is being told any more, also after a notice that panicked.
struct Telling<'a>(&'a Notices);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.state().telling = None;
        self.0.told.notify_all();
    }
}

impl Notices {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it was revoked; `None` if it was not.
    pub fn why(&self) -> Option<String> {
        self.state().why.clone()
    }

    /// Asks for a call; it comes at once if it was revoked.
    pub fn add(&self, notice: Notice) -> NoticeId {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        match state.why.clone() {
            None => state.list.push((id, notice)),
            Some(why) => {
                drop(state);
                notice(&why);
            }
        }
        NoticeId(id)
    }

    /// Takes a notice back: when this returns it is not being called and will not be, unless this is called
    /// by it.
    pub fn cancel(&self, NoticeId(id): NoticeId) {
        let mut state = self.state();
        if let Some(at) = state.list.iter().position(|(of, _)| *of == id) {
            drop(state.list.swap_remove(at));
            return;
        }
        let own = Some(std::thread::current().id());
        while state.telling.is_some() && state.telling != own {
            state = self.told.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Calls all notices, the first time.
    pub fn revoke(&self, why: &str) {
        let mut state = self.state();
        if state.why.is_some() {
            return;
        }
        state.why = Some(why.to_owned());
        state.telling = Some(std::thread::current().id());
        let _telling = Telling(self);
        while let Some((_, notice)) = state.list.pop() {
            drop(state);
            notice(why);
            state = self.state();
        }
        drop(state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_notice_that_was_taken_back_is_not_called_and_one_that_runs_is_waited_for() {
        let all = Arc::new(Notices::default());
        let (calls, called) = channel();
        let add = |n: u32| {
            let calls = calls.clone();
            all.add(Box::new(move |_| calls.send(n).unwrap()))
        };
        let first = add(1);
        add(2);
        all.cancel(first);
        let (begun, begins) = channel();
        let (go, goes) = channel::<()>();
        let running = Arc::new(Mutex::new(true));
        let (flag, own) = (running.clone(), all.clone());
        let slow = all.add(Box::new(move |_| {
            begun.send(()).unwrap();
            goes.recv().unwrap();
            // By itself it is not waited for.
            own.cancel(NoticeId(99));
            *flag.lock().unwrap() = false;
        }));
        let other = all.clone();
        let teller = std::thread::spawn(move || other.revoke("gone"));
        begins.recv().unwrap();
        let (other, flag) = (all.clone(), running.clone());
        let cancels = std::thread::spawn(move || {
            other.cancel(slow);
            assert!(!*flag.lock().unwrap(), "it is still being called");
        });
        go.send(()).unwrap();
        cancels.join().unwrap();
        teller.join().unwrap();
        assert_eq!(called.try_iter().collect::<Vec<_>>(), [2]);
        all.revoke("again");
        add(3);
        assert_eq!((called.try_iter().collect::<Vec<_>>(), all.why()), (vec![3], Some("gone".into())));
    }
}
