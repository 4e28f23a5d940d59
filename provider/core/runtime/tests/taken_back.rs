//! Memory that a peer is inside of while it is taken back.

mod common;

use std::thread;

use common::{MemoryLink, Network, Node, patient};
use engine::{Completion, Ctx, Error, FiAddr, OpFlags, Send as Message};
use hmem::Span;
use link_api::Patience;
use runtime::Progress;
use testkit::msg;

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
    assert_eq!(*last, Patience::Final);
    assert!(before.iter().all(|patience| *patience == Patience::Retried), "{waited:?}");
    // Other calls that take memory back go on as ever.
    let _ = node.runtime.lock().ep_close(node.ep);
    assert_eq!(network.waited(node.addr).last(), Some(&Patience::Second));
    network.set_inside(node.addr, false);
    assert_eq!(close(), Ok(()));
}

/// A node that has sent another one more than goes eagerly, with this context.
fn with_a_send(ctx: usize) -> (Network, [Node<MemoryLink>; 2], FiAddr) {
    let network = Network::new();
    let nodes = [(); 2].map(|()| {
        let (link, fd) = network.link();
        Node::new(link, fd, Progress::Manual)
    });
    let to = nodes[0].knows(nodes[1].addr);
    nodes[1].knows(nodes[0].addr);
    let bytes = [Span::leak(1 << 20)];
    let send = Message { flags: OpFlags::COMPLETION, ..msg(to, &bytes, ctx) };
    nodes[0].runtime.lock().send(nodes[0].ep, &send).unwrap();
    (network, nodes, to)
}

/// What the first node's queue has next of a send that failed, while both make progress.
fn failure(nodes: &[Node<MemoryLink>; 2]) -> Completion {
    patient(|| {
        nodes.iter().for_each(|node| {
            node.runtime.lock().progress();
        });
        nodes[0].runtime.lock().cq_error(nodes[0].cq)
    })
}

#[test]
fn another_thread_sends_while_a_cancel_waits() {
    let (network, nodes, to) = with_a_send(7);
    let node = &nodes[0];
    network.set_inside(node.addr, true);
    thread::scope(|s| {
        s.spawn(|| {
            while network.waited(node.addr).is_empty() {
                thread::yield_now();
            }
            node.send(to, b"meanwhile", OpFlags::empty());
            // The same context again: it is not what is cancelled.
            let bytes = [Span::leak(1 << 20)];
            node.runtime
                .lock()
                .send(node.ep, &Message { flags: OpFlags::COMPLETION, ..msg(to, &bytes, 7) })
                .unwrap();
            network.set_inside(node.addr, false);
        });
        assert_eq!(node.runtime.cancel(node.ep, Ctx(7)), Ok(()));
    });
    // Never with the domain's lock held.
    assert!(!network.waited(node.addr).contains(&Patience::Second));
    let failed = failure(&nodes);
    assert_eq!((failed.ctx, failed.err), (Ctx(7), Some(Error::Cancelled)));
    // The other one is still there.
    let room = Span::leak(1 << 20);
    (0..2).for_each(|ctx| nodes[1].recv(room, ctx));
    let sent = patient(|| {
        nodes[1].poll();
        node.poll()
    });
    assert_eq!((sent.ctx, sent.err), (Ctx(7), None));
    assert_eq!(node.runtime.cancel(node.ep, Ctx(7)), Err(Error::NotFound));
}

/// A cancel waits outside of the links, and the receiver ends the send that it is inside of.
#[test]
fn cancel_waits_outside_links_for_the_receiver_to_end_the_send() {
    let (network, nodes, _) = with_a_send(7);
    let node = &nodes[0];
    network.set_inside(node.addr, true);
    assert_eq!(node.runtime.cancel(node.ep, Ctx(7)), Ok(()));
    let waited = network.waited(node.addr);
    let (last, before) = waited.split_last().unwrap();
    assert_eq!(*last, Patience::Final);
    assert!(!before.is_empty() && before.iter().all(|patience| *patience == Patience::Retried), "{waited:?}");
    network.set_inside(node.addr, false);
    let failed = failure(&nodes);
    assert_eq!((failed.ctx, failed.err), (Ctx(7), Some(Error::Cancelled)));
}

#[test]
fn a_cancel_of_what_ends_meanwhile_cancels_nothing_else() {
    let (network, nodes, to) = with_a_send(7);
    let node = &nodes[0];
    let bytes = [Span::leak(1 << 20)];
    node.runtime.lock().send(node.ep, &Message { flags: OpFlags::COMPLETION, ..msg(to, &bytes, 7) }).unwrap();
    network.set_inside(node.addr, true);
    let room = Span::leak(1 << 20);
    thread::scope(|s| {
        s.spawn(|| {
            while network.waited(node.addr).is_empty() {
                thread::yield_now();
            }
            // The receiver finds that it may not have the bytes, and says so.
            nodes[1].recv(room, 1);
            assert_eq!(failure(&nodes).err, Some(Error::Cancelled));
            network.set_inside(node.addr, false);
        });
        assert_eq!(node.runtime.cancel(node.ep, Ctx(7)), Ok(()));
    });
    assert_eq!(node.runtime.lock().cq_error(node.cq), None);
    assert_eq!(node.runtime.cancel(node.ep, Ctx(7)), Ok(()), "the other one is there");
    assert_eq!(failure(&nodes).err, Some(Error::Cancelled));
}
