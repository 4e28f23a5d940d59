//! Runtimes that sleep and wake each other, over the engine's link in memory and over shared memory.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::{MemoryLink, Node, Pair, patient, readable};
use engine::{Completion, FiAddr, OpFlags, What};
use hmem::Span;
use link::ShmLink;
use runtime::{Deadline, Idle, Progress, Step, Watched};
use testkit::pattern;

/// Runs a test over either link.
macro_rules! over_both {
    ($($name:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $name() { super::$name::<super::MemoryLink>(); })*
        }
        mod shm {
            $(#[test] fn $name() { super::$name::<super::ShmLink>(); })*
        }
    };
}

over_both!(
    sleepers_in_poll_wake_each_other,
    blocking_calls_wake_each_other,
    each_sleeper_is_woken_for_what_it_waits_for,
    another_thread_of_the_process_wakes_a_sleeper,
    a_poll_by_another_thread_leaves_no_sleeper_asleep_for_good,
    a_blocking_call_ends_though_another_thread_has_polled,
    a_blocking_call_leaves_a_sleeper_on_the_descriptor_to_be_woken,
    wakeup_on_the_descriptor_stands_until_the_next_sleep,
    one_that_finds_something_to_do_first_leaves_the_other_to_be_woken,
    a_progress_thread_delivers_while_the_application_makes_no_call,
    several_threads_share_one_domain,
);

const ROUNDS: usize = 200;

/// Sleeps in poll(2), without a time limit, until there is a completion.
fn next<L: Pair>(node: &Node<L>) -> Completion {
    patient(|| {
        if let Some(c) = node.poll() {
            return Some(c);
        }
        if node.runtime.try_wait(|_| Watched::Cq(node.cq), &node.wait).unwrap() {
            node.sleep();
        }
        None
    })
}

/// Two nodes that send the same message to and fro, each with its own way to wait for it.
fn to_and_fro<L: Pair>(next: impl Fn(&Node<L>) -> Completion + Sync) {
    let ([a, b], [to_b, to_a]) = L::nodes(Progress::Manual);
    let play = |node: &Node<L>, to: FiAddr, first: bool| {
        let room = Span::leak(600);
        for round in 0..ROUNDS {
            let sent = pattern(1 + 3 * round, round);
            node.recv(room, round);
            if first {
                node.send(to, &sent, OpFlags::default());
            }
            let c = next(node);
            assert_eq!((c.ctx.0, c.len), (round, sent.len()));
            let mut got = vec![0; c.len];
            hmem::read(&[room], 0, &mut got);
            assert!(got == sent, "round {round}: other bytes");
            if !first {
                node.send(to, &sent, OpFlags::default());
            }
        }
        // What is under way of a message that takes several frames is the sender's to go on with.
        patient(|| {
            node.poll();
            (node.runtime.lock().ep_under_way(node.ep) == 0).then_some(())
        });
    };
    thread::scope(|s| {
        s.spawn(|| play(&b, to_a, false));
        play(&a, to_b, true);
    });
}

fn sleepers_in_poll_wake_each_other<L: Pair>() {
    to_and_fro::<L>(next);
}

fn blocking_calls_wake_each_other<L: Pair>() {
    to_and_fro::<L>(|node| {
        let look = || node.poll().map_or(Step::Wait(Watched::Cq(node.cq)), Step::Done);
        node.runtime.block(&node.wait, Idle::Sleep, Deadline::NEVER, look).unwrap().unwrap()
    });
}

fn each_sleeper_is_woken_for_what_it_waits_for<L: Pair>() {
    let ([a, b], [to_b, _]) = L::nodes(Progress::Manual);
    // A third sleeper, with a queue that has no endpoint.
    let (other_cq, other_wait) = (b.runtime.lock().cq_open(8), Arc::default());
    let woken = || [&b.wait, &b.cntr_wait, &other_wait].map(|w| readable(w, 0));
    // Registers all three, has something happen, and checks that those were woken. It is tried again: a
    // thread that had to wait for its core may find a descriptor readable because time has passed.
    let wakes = |what: &dyn Fn(), expected: [bool; 3]| {
        patient(|| {
            while b.poll().is_some() {}
            let on_cntr = b.runtime.try_wait(|e| Watched::cntr(e, b.cntr), &b.cntr_wait).unwrap();
            let on_cq = b.runtime.try_wait(|_| Watched::Cq(b.cq), &b.wait).unwrap();
            let on_other = b.runtime.try_wait(|_| Watched::Cq(other_cq), &other_wait).unwrap();
            if !(on_cntr && on_cq && on_other) || woken() != [false; 3] {
                return None;
            }
            what();
            (woken() == expected).then_some(())
        });
    };
    wakes(&|| {}, [false; 3]);
    // A change of the counter by the application is nothing to the queue's sleepers.
    wakes(&|| b.runtime.lock().cntr_add(b.cntr, 1), [false, true, false]);
    // A message concerns the queue and the counter.
    let message = || {
        b.recv(Span::leak(8), 1);
        a.send(to_b, b"message!", OpFlags::default());
        patient(|| {
            b.runtime.lock().progress();
            (!b.runtime.lock().cq_is_empty(b.cq)).then_some(())
        });
    };
    wakes(&message, [true, true, false]);
    b.runtime.forget(&other_wait).unwrap();
    b.runtime.lock().cq_close(other_cq).unwrap();
}

fn another_thread_of_the_process_wakes_a_sleeper<L: Pair>() {
    let ([a, b], [to_b, _]) = L::nodes(Progress::Manual);
    b.recv(Span::leak(8), 5);
    thread::scope(|s| {
        let sleeper = s.spawn(|| {
            // It makes no progress itself: another thread takes the message in.
            let look = || {
                let mut found = None;
                b.runtime.lock().cq_take(b.cq, 1, |_, c| found = Some(c.ctx.0));
                found.map_or(Step::Wait(Watched::Cq(b.cq)), Step::Done)
            };
            b.runtime.block(&b.wait, Idle::Sleep, Deadline::NEVER, look).unwrap()
        });
        a.send(to_b, b"message!", OpFlags::default());
        while !sleeper.is_finished() {
            b.runtime.lock().progress();
            thread::yield_now();
        }
        assert_eq!(sleeper.join().unwrap(), Some(5));
    });
    let nothing = || Step::<()>::Wait(Watched::Cq(b.cq));
    for idle in [Idle::Sleep, Idle::Yield] {
        assert_eq!(b.runtime.block(&b.wait, idle, Deadline::after_ms(5), nothing), Ok(None));
    }
}

fn a_poll_by_another_thread_leaves_no_sleeper_asleep_for_good<L: Pair>() {
    let ([a, b], [to_b, to_a]) = L::nodes(Progress::Manual);
    // Both have met before.
    a.recv(Span::leak(8), 1);
    b.send(to_a, b"message!", OpFlags::default());
    assert_eq!(next(&a).ctx.0, 1);
    b.recv(Span::leak(8), 3);
    a.send(to_b, b"message!", OpFlags::default());
    assert_eq!(next(&b).ctx.0, 3);
    b.recv(Span::leak(8), 2);
    patient(|| b.runtime.try_wait(|_| Watched::Cq(b.cq), &b.wait).unwrap().then_some(()));
    assert!(!readable(&b.wait, 0));
    // A poll that finds nothing, and is the last one of its thread: peers know by it that no wake-up is
    // needed.
    b.runtime.lock_to_poll().progress();
    a.send(to_b, b"message!", OpFlags::default());
    assert!(readable(&b.wait, 60_000), "the sleeper is not woken");
    assert_eq!(next(&b).ctx.0, 2);
}

/// One thread sleeps without a time limit, another one of the same domain polls now and then, and never when
/// the message comes: nothing but its last poll could have the sleeper look.
fn a_blocking_call_ends_though_another_thread_has_polled<L: Pair>() {
    let ([a, b], [to_b, _]) = L::nodes(Progress::Manual);
    let done = AtomicU64::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            for round in 0..ROUNDS {
                b.recv(Span::leak(8), round);
                let look = || {
                    let mut engine = b.runtime.lock_to_poll();
                    engine.progress();
                    let mut found = None;
                    engine.cq_take(b.cq, 1, |_, c| found = Some(c.ctx.0));
                    found.map_or(Step::Wait(Watched::Cq(b.cq)), Step::Done)
                };
                let got = b.runtime.block(&b.wait, Idle::Sleep, Deadline::NEVER, look).unwrap();
                assert_eq!(got, Some(round));
                done.store(round as u64 + 1, Ordering::SeqCst);
            }
        });
        for round in 0..ROUNDS {
            // With and without one, at any time from before the sleep to long after it.
            for _ in 0..round % 4 {
                b.runtime.lock_to_poll().progress();
                thread::sleep(Duration::from_micros(round as u64 % 7 * 50));
            }
            a.send(to_b, b"message!", OpFlags::default());
            patient(|| (done.load(Ordering::SeqCst) > round as u64).then_some(()));
        }
    });
}

/// The application sleeps on the descriptor, and a blocking call for the same queue ends: the last look of
/// that one has disarmed the links.
fn a_blocking_call_leaves_a_sleeper_on_the_descriptor_to_be_woken<L: Pair>() {
    let ([a, b], [to_b, _]) = L::nodes(Progress::Manual);
    for round in 0..3 {
        b.recv(Span::leak(8), round);
        patient(|| b.runtime.try_wait(|_| Watched::Cq(b.cq), &b.wait).unwrap().then_some(()));
        let look = || b.poll().map_or(Step::Wait(Watched::Cq(b.cq)), Step::Done);
        assert_eq!(b.runtime.block(&b.wait, Idle::Sleep, Deadline::after_ms(5), look), Ok(None));
        a.send(to_b, b"message!", OpFlags::default());
        assert!(readable(&b.wait, 20_000), "the sleeper is not woken");
        assert_eq!(next(&b).ctx.0, round);
    }
}

/// What wakes a sleeper on the descriptor stands until that one sleeps again.
/// Other threads look meanwhile, in a blocking call or before they sleep on the descriptor, too.
fn wakeup_on_the_descriptor_stands_until_the_next_sleep<L: Pair>() {
    let ([_a, b], _) = L::nodes(Progress::Manual);
    let changed = |from| move |_: &_| Watched::Cntr(b.cntr, from, 0);
    for n in 0..3 {
        patient(|| b.runtime.try_wait(changed(n), &b.cntr_wait).unwrap().then_some(()));
        b.runtime.lock().cntr_add(b.cntr, 1);
        let look = || Step::Done(b.runtime.lock().cntr_read(b.cntr));
        assert_eq!(b.runtime.block(&b.cntr_wait, Idle::Sleep, Deadline::NEVER, look), Ok(Some(n + 1)));
        assert!(readable(&b.cntr_wait, 0), "a blocking call has forgotten it");
        assert_eq!(b.runtime.try_wait(changed(n), &b.cntr_wait), Ok(false));
        assert!(readable(&b.cntr_wait, 0), "one that will not sleep has forgotten it");
    }
    patient(|| b.runtime.try_wait(changed(3), &b.cntr_wait).unwrap().then_some(()));
    assert!(!readable(&b.cntr_wait, 0));
}

/// More has come than one look takes in: another thread may not sleep yet. The one that does hears of the
/// change.
fn one_that_finds_something_to_do_first_leaves_the_other_to_be_woken<L: Pair>() {
    let ([a, b], [to_b, _]) = L::nodes(Progress::Manual);
    let unchanged = |_: &_| Watched::Cntr(b.cntr, 0, 0);
    patient(|| {
        b.poll();
        a.send(to_b, b"message!", OpFlags::default());
        b.runtime.try_wait(unchanged, &b.cntr_wait).unwrap().then_some(())
    });
    patient(|| {
        for _ in 0..500 {
            let _ = a.runtime.lock().send(a.ep, &common::message(to_b));
        }
        (!b.runtime.try_wait(unchanged, &b.cntr_wait).unwrap()).then_some(())
    });
    // All is taken in, and no peer wakes it.
    for _ in 0..2_000 {
        b.poll();
    }
    b.runtime.lock().cntr_add(b.cntr, 1);
    assert!(readable(&b.cntr_wait, 0), "it is not woken");
}

fn a_progress_thread_delivers_while_the_application_makes_no_call<L: Pair>() {
    let ([a, b], [to_b, _]) = L::nodes(Progress::Auto);
    for len in [8, 500, 5_000, 300_000] {
        let (sent, room) = (pattern(len, len), Span::leak(len));
        b.recv(room, 1);
        // From here on only the progress thread calls for `b`: that the message is delivered says that it
        // did.
        a.send(to_b, &sent, OpFlags::COMPLETION | OpFlags::DELIVERY);
        let done = next(&a);
        assert_eq!((done.what, done.err), (What::MSG | What::SEND, None));
        let mut got = vec![0; len];
        hmem::read(&[room], 0, &mut got);
        assert!(got == sent, "{len} bytes arrived as others");
    }
    assert_eq!(b.runtime.lock().cntr_read(b.cntr), 4);
    assert_eq!((a.runtime.attached(), b.runtime.attached()), (0, 1));
}

fn several_threads_share_one_domain<L: Pair>() {
    const EACH: u64 = 300;
    let ([a, b], [to_b, _]) = L::nodes(Progress::Auto);
    let room = Span::leak(64);
    let taken = AtomicU64::new(0);
    thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                (0..EACH).for_each(|_| a.send(to_b, b"from one of three threads", OpFlags::default()))
            });
        }
        for _ in 0..2 {
            s.spawn(|| {
                while taken.fetch_add(1, Ordering::Relaxed) < 3 * EACH {
                    b.recv(room, 0);
                    patient(|| b.poll());
                }
            });
        }
        s.spawn(|| {
            while taken.load(Ordering::Relaxed) < 3 * EACH {
                a.poll();
                thread::yield_now();
            }
        });
    });
    assert_eq!(b.runtime.lock().cntr_read(b.cntr), 3 * EACH);
    assert_eq!(b.poll(), None);
}

const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    any_thread::<runtime::Wait>();
    any_thread::<runtime::Runtime<ShmLink>>();
    any_thread::<runtime::Runtime<MemoryLink>>();
};

#[test]
fn none_sleeps_until_a_counter_changes_that_others_may_write() {
    let ([a, _b], _) = ShmLink::nodes(Progress::Manual);
    let memory = Span::leak(32);
    let words = memory.part((8 - memory.addr() as usize % 8) % 8, 16).unwrap();
    let shared = a.runtime.lock().cntr_open_at(words).unwrap();
    let may_sleep = |cntr| a.runtime.try_wait(|e| Watched::cntr(e, cntr), &a.cntr_wait).unwrap();
    patient(|| may_sleep(a.cntr).then_some(()));
    assert!(!may_sleep(shared), "the change would wake nothing");
    // A call that blocks goes on looking.
    let mut looks = 0;
    let found = a.runtime.block(&a.cntr_wait, Idle::Sleep, Deadline::after_ms(-1), || {
        looks += 1;
        if looks == 1000 {
            hmem::write(&[words], 0, &[1]);
        }
        let engine = a.runtime.lock();
        match engine.cntr_read(shared) {
            0 => Step::Wait(Watched::cntr(&engine, shared)),
            n => Step::Done(n),
        }
    });
    assert_eq!((found, looks), (Ok(Some(1)), 1000));
}

/// Each for a value of its own: the one that is woken first forgets what has woken it.
#[test]
fn of_several_threads_that_sleep_on_one_object_each_is_woken() {
    let ([a, _b], _) = ShmLink::nodes(Progress::Manual);
    thread::scope(|s| {
        let sleepers = [1, 2, 3, 4].map(|enough| {
            let a = &a;
            s.spawn(move || {
                let look = || {
                    let engine = a.runtime.lock();
                    let n = engine.cntr_read(a.cntr);
                    if n >= enough { Step::Done(n) } else { Step::Wait(Watched::cntr(&engine, a.cntr)) }
                };
                a.runtime.block(&a.cntr_wait, Idle::Sleep, Deadline::after_ms(20_000), look).unwrap()
            })
        });
        for n in 1..=4 {
            // All that wait are asleep by then, as a rule.
            thread::sleep(Duration::from_millis(20));
            a.runtime.lock().cntr_add(a.cntr, 1);
            patient(|| sleepers[n - 1].is_finished().then_some(()));
        }
        assert!(sleepers.map(|s| s.join().unwrap().is_some()).iter().all(|woken| *woken));
    });
}
