//! Endpoints that rest, under loom: what comes is noted by a look of another thread, or found by one of its
//! own.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::thread;

use super::*;

/// A descriptor in the set: whether it is watched, and has something.
struct Fd(Mutex<(bool, bool)>);

impl Fd {
    fn watch(&self) {
        self.0.lock().unwrap().0 = true;
    }

    /// What epoll_wait(2) does, and what is noted of it.
    fn look(&self, due: &Due) {
        let found = {
            let mut fd = self.0.lock().unwrap();
            std::mem::take(&mut fd.0) && fd.1
        };
        if found {
            due.note();
        }
    }
}

struct Set {
    looks: Looks,
    due: Due,
    fd: Fd,
}

/// An endpoint goes to rest while something comes and another endpoint looks.
fn rest(go: fn(&Set)) {
    loom::model(move || {
        let set = Arc::new(Set { looks: Looks::new(), due: Due::new(), fd: Fd(Mutex::new((false, true))) });
        let other = {
            let set = set.clone();
            thread::spawn(move || {
                let (own, mut seen) = (Due::new(), 0);
                set.looks.is_due(&own, &mut seen, || set.fd.look(&set.due));
            })
        };
        go(&set);
        let mut seen = 0;
        let mut poll = || set.looks.is_due(&set.due, &mut seen, || set.fd.look(&set.due));
        let early = poll();
        other.join().unwrap();
        assert!(early || poll() || poll(), "rests on what has come");
    });
}

#[test]
fn nothing_that_comes_is_missed() {
    rest(|set| set.due.forget(|| set.fd.watch()));
}

#[test]
#[should_panic(expected = "rests on what has come")]
fn twin_that_forgets_afterwards_misses_it() {
    rest(|set| {
        set.fd.watch();
        set.due.forget(|| ());
    });
}
