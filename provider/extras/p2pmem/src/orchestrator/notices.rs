//! Those that want to know when a buffer is revoked.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

type Notice = Box<dyn FnOnce(&str) + Send>;

/// A requested notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeId(u64);

#[derive(Default)]
struct State {
    next: u64,
    list: Vec<(u64, Notice)>,
    /// Why it was revoked.
    why: Option<String>,
    /// The thread that calls notices now.
    calling: Option<ThreadId>,
}

#[derive(Default)]
pub(crate) struct Notices {
    state: Mutex<State>,
    called: Condvar,
}

/// Marks the end of a call of notices, also of one that panics.
struct Calling<'a>(&'a Notices);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        self.0.state().calling = None;
        self.0.called.notify_all();
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
        while state.calling.is_some() && state.calling != own {
            state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Calls all notices, the first time.
    pub fn revoke(&self, why: &str) {
        let mut state = self.state();
        if state.why.is_some() {
            return;
        }
        state.why = Some(why.to_owned());
        state.calling = Some(std::thread::current().id());
        let _calling = Calling(self);
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

    /// A notice that was taken back is not called, and one that runs is waited for.
    #[test]
    fn withdrawn_notice_is_not_called_and_running_one_is_waited_for() {
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
