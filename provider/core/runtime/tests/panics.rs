//! What becomes of a domain that a panic was inside.

mod common;

use std::sync::Arc;
use std::thread;

use common::{MemoryLink, Network, Node, Pair, patient, readable};
use engine::{Config, Domain, OpFlags};
use hmem::Span;
use link::{OpenOptions, ShmLink};
use runtime::{Deadline, Error, Idle, Progress, Runtime, Step, Wait, Watched, catch};

/// A panic of some call that is inside.
fn panic_inside<L: Pair>(runtime: &Runtime<L>) {
    let ended = catch(|| {
        let _engine = runtime.lock();
        std::panic::resume_unwind(Box::new("for a test"));
    });
    assert_eq!(ended, Err::<(), _>(Error::Poisoned));
}

/// That every call fails, and none hangs.
fn assert_poisoned<L: Pair>(node: &Node<L>) {
    let runtime = &node.runtime;
    for _ in 0..3 {
        assert_eq!(runtime.enter().err(), Some(Error::Poisoned));
        assert_eq!(runtime.enter_to_poll().err(), Some(Error::Poisoned));
        assert_eq!(catch(|| drop(runtime.lock())), Err(Error::Poisoned));
        assert_eq!(runtime.try_wait(|_| Watched::Cq(node.cq), &node.wait), Err(Error::Poisoned));
        assert_eq!(runtime.forget(&node.wait), Err(Error::Poisoned));
        let look = || Step::<()>::Wait(Watched::Cq(node.cq));
        let slept = runtime.block(&node.wait, Idle::Sleep, Deadline::NEVER, look);
        assert_eq!(slept, Err(Error::Poisoned));
    }
}

#[test]
fn later_calls_fail() {
    let ([a, b], _) = ShmLink::nodes(Progress::Auto);
    for node in [&a, &b] {
        panic_inside(&node.runtime);
        assert_poisoned(node);
        // The progress thread has ended, or does so now.
        node.runtime.close();
    }
}

/// What a door does for each close.
fn close_all<L: Pair>(node: &mut Node<L>) {
    node.let_go();
    let runtime = &node.runtime;
    assert_eq!(runtime.take_back(|engine| engine.ep_close(node.ep)), Ok(()));
    assert_eq!(runtime.close_in(Some(&node.wait), |engine| engine.cq_close(node.cq)), Ok(()));
    assert_eq!(runtime.close_in(Some(&node.cntr_wait), |engine| engine.cntr_close(node.cntr)), Ok(()));
    assert_eq!(runtime.close_in(None, |engine| engine.av_close(node.av)), Ok(()));
}

#[test]
fn all_of_it_can_be_closed_and_peers_see_the_end() {
    for progress in [Progress::Manual, Progress::Auto] {
        let ([a, mut b], [to_b, _]) = ShmLink::nodes(progress);
        let took = |node: &Node<ShmLink>| patient(|| node.poll());
        b.recv(Span::leak(8), 7);
        a.send(to_b, b"12345678", OpFlags::COMPLETION);
        assert_eq!((took(&a).err, took(&b).err), (None, None));
        // No receive is posted for it, and it is too long to be sent without one.
        a.send(to_b, &[1; 1 << 20], OpFlags::COMPLETION);
        assert!(a.poll().is_none());
        panic_inside(&b.runtime);
        for _ in 0..2 {
            close_all(&mut b);
        }
        let failed = patient(|| {
            let mut engine = a.runtime.lock_to_poll();
            engine.progress();
            engine.cq_error(a.cq)
        });
        assert_eq!(failed.err, Some(engine::Error::Reset));
        assert_poisoned(&b);
        // The name is free.
        let bind = Some(b.addr.sock());
        drop(ShmLink::open(OpenOptions { bind, ..OpenOptions::default() }).unwrap());
    }
}

#[test]
fn a_link_that_fails_again_is_let_go_of() {
    let network = Network::new();
    let (link, fd) = network.link();
    let mut node = Node::new(link, fd, Progress::Manual);
    panic_inside(&node.runtime);
    network.break_link(node.addr);
    close_all(&mut node);
    assert_eq!(network.waited(node.addr), []);
    close_all(&mut node);
}

#[test]
fn a_panic_in_a_close_is_followed_by_one_that_works() {
    let ([mut a, _b], _) = ShmLink::nodes(Progress::Auto);
    let ended = catch(|| a.runtime.take_back(|_| std::panic::resume_unwind(Box::new("for a test"))));
    assert_eq!(ended, Err(Error::Poisoned));
    close_all(&mut a);
}

/// A peer that is stopped inside is waited for, no longer than elsewhere.
#[test]
fn memory_that_is_in_use_is_not_given_back() {
    let network = Network::new();
    let (link, fd) = network.link();
    let node = Node::new(link, fd, Progress::Manual);
    network.set_inside(node.addr, true);
    panic_inside(&node.runtime);
    let close = || node.runtime.take_back(|engine| engine.ep_close(node.ep));
    assert_eq!(close(), Err(engine::Error::Busy));
    network.set_inside(node.addr, false);
    assert_eq!(close(), Ok(()));
}

/// As a forked child has it where another thread of its parent's was inside.
#[test]
fn a_forked_child_closes_what_a_thread_that_it_has_not_was_inside_of() {
    let ([mut a, _b], _) = ShmLink::nodes(Progress::Manual);
    let guard = a.runtime.lock();
    // SAFETY: the child closes, which takes no lock but that of the domain, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a time limit, should it wait.
        unsafe { libc::alarm(20) };
        let closed = catch(|| a.runtime.take_back(|engine| engine.ep_close(a.ep)));
        // SAFETY: nothing of this process is run or written any more.
        unsafe { libc::_exit(i32::from(closed != Ok(Ok(())))) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for what became of it.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(guard);
    close_all(&mut a);
}

#[test]
fn a_panic_outside_does_no_harm() {
    let ([a, _b], _) = ShmLink::nodes(Progress::Manual);
    let ended = catch(|| {
        a.runtime.lock().leave();
        std::panic::resume_unwind(Box::new("for a test"));
    });
    assert_eq!(ended, Err::<(), _>(Error::Poisoned));
    assert!(a.runtime.enter().is_ok());
}

#[test]
fn sleepers_are_woken() {
    let ([a, _b], _) = MemoryLink::nodes(Progress::Manual);
    patient(|| a.runtime.try_wait(|_| Watched::Cq(a.cq), &a.wait).unwrap().then_some(()));
    patient(|| a.runtime.try_wait(|e| Watched::cntr(e, a.cntr), &a.cntr_wait).unwrap().then_some(()));
    assert!(!readable(&a.wait, 0) && !readable(&a.cntr_wait, 0));
    panic_inside(&a.runtime);
    assert!(readable(&a.wait, 0) && readable(&a.cntr_wait, 0));
    assert_poisoned(&a);
}

#[test]
fn a_panic_in_the_progress_thread_ends_blocking_calls() {
    let network = Network::new();
    let (link, fd) = network.link();
    let node = Node::new(link, fd, Progress::Auto);
    thread::scope(|s| {
        let sleeper = s.spawn(|| {
            let look = || Step::<()>::Wait(Watched::Cq(node.cq));
            node.runtime.block(&node.wait, Idle::Sleep, Deadline::NEVER, look)
        });
        network.break_link(node.addr);
        assert_eq!(sleeper.join().unwrap(), Err(Error::Poisoned));
    });
    assert_poisoned(&node);
}

#[test]
fn a_serialized_domain_is_poisoned_too() {
    let config = Config { virt_addr: false, rma_order: false };
    // SAFETY: one thread has it.
    let runtime = unsafe { Runtime::<ShmLink>::serialized(Domain::new(config)) };
    let (cq, wait) = (runtime.lock().cq_open(8), Arc::new(Wait::default()));
    assert_eq!(runtime.try_wait(|_| Watched::Cq(cq), &wait), Ok(true));
    panic_inside(&runtime);
    assert_eq!(runtime.enter().err(), Some(Error::Poisoned));
    assert!(readable(&wait, 0));
}
