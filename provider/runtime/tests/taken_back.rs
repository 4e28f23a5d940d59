//! Memory that a peer is inside of while it is taken back.

mod common;

use std::thread;

use common::{Network, Node};
use engine::Error;
use link_api::Patience;
use runtime::Progress;

#[test]
fn other_threads_enter_while_a_close_waits() {
    let network = Network::new();
    let (link, fd) = network.link();
    let node = Node::new(link, fd, Progress::Manual);
    network.set_inside(node.addr, true);
    let (runtime, at) = (node.runtime.clone(), node.addr);
    thread::scope(|s| {
        s.spawn(|| {
            // The close is under way.
            while network.waited(at).is_empty() {
                thread::yield_now();
            }
            let engine = runtime.lock();
            network.set_inside(at, false);
            drop(engine);
        });
        assert_eq!(node.runtime.take_back(|engine| engine.ep_close(node.ep)), Ok(()));
    });
}

/// Each call to the link comes back at once, so that all of them together take no longer than the one bound.
#[test]
fn a_close_waits_outside_of_the_links_and_once_for_all() {
    let network = Network::new();
    let (link, fd) = network.link();
    let node = Node::new(link, fd, Progress::Manual);
    network.set_inside(node.addr, true);
    let close = || node.runtime.take_back(|engine| engine.ep_close(node.ep));
    assert_eq!(close(), Err(Error::Busy));
    let waited = network.waited(node.addr);
    let (last, before) = waited.split_last().unwrap();
    // The last one is logged.
    assert_eq!(*last, Patience::LastLook);
    assert!(before.iter().all(|patience| *patience == Patience::Look), "{waited:?}");
    // Other calls that take memory back go on as ever.
    let _ = node.runtime.lock().ep_close(node.ep);
    assert_eq!(network.waited(node.addr).last(), Some(&Patience::Second));
    network.set_inside(node.addr, false);
    assert_eq!(close(), Ok(()));
}
