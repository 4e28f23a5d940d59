//! A call that a thread makes for an endpoint, which may leave it at any time.
//!
//! The thread begins it and has it done; the endpoint takes what it has returned, withdraws it as long as no
//! thread has begun it, or leaves it together with the queue pair that the call names. What is left is
//! destroyed by one of the two, and the queue pair never during the call.

use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
enum Stage<I, Q, T> {
    /// No thread has begun the call.
    Waits(I),
    /// The call has not returned. What is destroyed then.
    UnderWay(Option<Q>),
    Over(I, T),
    Taken,
}

/// See the module; `I`: what the call is made with, `Q`: what has to be there during the call, `T`: what it
/// returns.
#[derive(Debug)]
pub(super) struct HandOver<I, Q, T>(Mutex<Stage<I, Q, T>>);

/// What becomes of a call that was left.
#[derive(Debug)]
pub(super) enum Left<I, Q> {
    /// The caller destroys both: the call was not made.
    Unmade(I, Q),
    /// The caller destroys both: the call has returned.
    Made(I, Q),
    /// The thread does, when the call has returned.
    UnderWay,
    /// The caller destroys this: what the call was made with was taken.
    Taken(Q),
}

impl<I, Q, T> HandOver<I, Q, T> {
    pub(super) fn new(with: I) -> HandOver<I, Q, T> {
        HandOver(Mutex::new(Stage::Waits(with)))
    }

    fn lock(&self) -> MutexGuard<'_, Stage<I, Q, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread is to make the call with this. `None`: the endpoint has left it.
    pub(super) fn begin(&self) -> Option<I> {
        let mut stage = self.lock();
        match std::mem::replace(&mut *stage, Stage::UnderWay(None)) {
            Stage::Waits(with) => Some(with),
            left => {
                *stage = left;
                None
            }
        }
    }

    /// The call has returned. Both are for the thread to destroy where the endpoint has left meanwhile.
    pub(super) fn done(&self, with: I, outcome: T) -> Option<(I, Q)> {
        let mut stage = self.lock();
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::UnderWay(Some(left)) => Some((with, left)),
            _ => {
                *stage = Stage::Over(with, outcome);
                None
            }
        }
    }

    /// What the call has returned, if it has.
    pub(super) fn take(&self) -> Option<(I, T)> {
        let mut stage = self.lock();
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::Over(with, outcome) => Some((with, outcome)),
            before => {
                *stage = before;
                None
            }
        }
    }

    /// The call is not to be made, if no thread has begun it.
    pub(super) fn withdraw(&self) -> Option<I> {
        let mut stage = self.lock();
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::Waits(with) => Some(with),
            before => {
                *stage = before;
                None
            }
        }
    }

    /// The endpoint awaits the call no more.
    pub(super) fn leave(&self, during: Q) -> Left<I, Q> {
        let mut stage = self.lock();
        match std::mem::replace(&mut *stage, Stage::Taken) {
            Stage::UnderWay(_) => {
                *stage = Stage::UnderWay(Some(during));
                Left::UnderWay
            }
            Stage::Over(with, _) => Left::Made(with, during),
            Stage::Waits(with) => Left::Unmade(with, during),
            Stage::Taken => Left::Taken(during),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// What happened, in order.
    type Log = Rc<RefCell<Vec<&'static str>>>;

    /// Says when it is destroyed.
    struct Thing(&'static str, Log);

    impl Drop for Thing {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }

    /// What the endpoint does, in this order, until one of them has the call.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Does {
        Take,
        Withdraw,
        Leave,
    }

    /// One interleaving: bits of `order` say who goes on, the thread or the endpoint. `end`: destroys both.
    fn run(order: usize, does: &[Does], end: fn(Thing, Thing)) -> Vec<&'static str> {
        let log = Log::default();
        let call = HandOver::<Thing, Thing, u8>::new(Thing("id", log.clone()));
        let (mut qp, mut made, mut begun, mut at) = (Some(Thing("qp", log.clone())), None, false, 0);
        let mut thread = |made: &mut Option<Thing>| {
            match (begun, made.take()) {
                (false, _) => *made = call.begin().inspect(|_| log.borrow_mut().push("calls")),
                (true, Some(id)) => {
                    log.borrow_mut().push("returns");
                    if let Some((id, qp)) = call.done(id, 7) {
                        end(id, qp);
                    }
                }
                (true, None) => {}
            }
            begun = true;
        };
        let mut has_left = false;
        for step in 0..2 + does.len() {
            if order >> step & 1 == 0 {
                thread(&mut made);
                continue;
            }
            let Some(next) = does.get(at).filter(|_| !has_left) else { continue };
            at += 1;
            match next {
                Does::Take => {
                    if let Some((id, outcome)) = call.take() {
                        assert_eq!(outcome, 7);
                        drop(id);
                        has_left = true;
                    }
                }
                Does::Withdraw => has_left = call.withdraw().is_some(),
                Does::Leave => {
                    leave(call.leave(qp.take().expect("left once")), end);
                    has_left = true;
                }
            }
        }
        (0..2).for_each(|_| thread(&mut made));
        // What the endpoint has not left goes with it.
        if !has_left {
            leave(call.leave(qp.take().expect("not left")), end);
        }
        drop((qp, call));
        log.take()
    }

    fn leave(left: Left<Thing, Thing>, end: fn(Thing, Thing)) {
        match left {
            Left::Unmade(id, qp) | Left::Made(id, qp) => end(id, qp),
            Left::Taken(qp) => drop(qp),
            Left::UnderWay => {}
        }
    }

    /// Each is destroyed once, the id before the queue pair, and none during the call.
    fn is_right(log: &[&str]) -> bool {
        let at = |what| log.iter().position(|of| *of == what);
        let once = |what| log.iter().filter(|of| **of == what).count() == 1;
        let during = |what: Option<usize>| at("calls") < what && what < at("returns");
        let calls = at("calls").is_some();
        once("id") && once("qp") && at("id") < at("qp") && !(calls && (during(at("id")) || during(at("qp"))))
    }

    fn interleavings(end: fn(Thing, Thing)) -> Vec<Vec<&'static str>> {
        let all = [Does::Take, Does::Withdraw, Does::Leave];
        let mut logs = Vec::new();
        for n in 0..all.len().pow(3) {
            let does = [all[n % 3], all[n / 3 % 3], all[n / 9]];
            logs.extend((0..32).map(|order| run(order, &does, end)));
        }
        logs
    }

    #[test]
    fn a_call_that_is_left_is_destroyed_once_and_its_queue_pair_not_during_it() {
        let logs = interleavings(|id, qp| {
            drop(id);
            drop(qp);
        });
        assert!(logs.iter().all(|log| is_right(log)), "{logs:?}");
        // All ends are among them.
        for log in [&["id", "qp"][..], &["calls", "returns", "id", "qp"]] {
            assert!(logs.iter().any(|of| of == log), "{log:?}");
        }
    }

    #[test]
    fn a_queue_pair_that_is_destroyed_before_its_connection_is_noticed() {
        let logs = interleavings(|id, qp| {
            drop(qp);
            drop(id);
        });
        assert!(!logs.iter().all(|log| is_right(log)));
    }
}
