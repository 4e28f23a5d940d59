//! What becomes of a domain that a panic was inside.

mod common;

use std::sync::Arc;
use std::thread;

use common::{MemoryLink, Network, Node, Pair, patient, readable};
use engine::{Config, Domain};
use link::ShmLink;
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
