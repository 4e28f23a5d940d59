//! A device that takes its time holds no thread up but the one whose operation it is.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{MemoryLink, Node, Pair, patient};
use engine::OpFlags;
use hmem::{Span, fake};
use link::ShmLink;
use runtime::Progress;
use testkit::{msg, pattern};

/// What completes next at a node, by context, while another one goes on as well.
fn completes<L: Pair>(node: &Node<L>, other: &Node<L>) -> usize {
    let next = || {
        other.runtime.lock().progress();
        node.poll()
    };
    patient(next).ctx.0
}

/// One thread posts an operation on a device's memory whose copies are held, another one then exchanges
/// messages with the same peer through the same domains. If a call waited for the device inside of the
/// domain, these would never complete.
fn others_go_on_while_a_device_copies<L: Pair>() {
    const LEN: usize = 1_000_000;
    let ([a, b], [to_b, to_a]) = L::nodes(Progress::Manual);
    let memory = fake::alloc(LEN);
    hmem::write(&[memory.span()], 0, &pattern(LEN, 1));
    memory.hold(true);
    let room = Span::leak(LEN);
    b.recv(room, 1);
    thread::scope(|s| {
        s.spawn(|| {
            a.runtime.lock().send(a.ep, &msg(to_b, &[memory.span()], 1)).unwrap();
        });
    });
    patient(|| {
        assert_eq!((a.poll(), b.poll()), (None, None));
        (memory.in_flight() > 0).then_some(())
    });
    let bytes = pattern(3000, 2);
    for ctx in 10..20 {
        b.recv(Span::leak(3000), ctx);
        thread::scope(|s| {
            s.spawn(|| a.send(to_b, &bytes, OpFlags::default()));
            assert_eq!(completes(&b, &a), ctx);
        });
        a.recv(Span::leak(3000), ctx);
        b.send(to_a, &bytes, OpFlags::default());
        assert_eq!(completes(&a, &b), ctx);
    }
    assert!(memory.in_flight() > 0, "they came before");
    memory.hold(false);
    let done = patient(|| {
        a.poll();
        b.poll()
    });
    assert_eq!((done.ctx.0, done.len, done.err), (1, LEN, None));
    let mut got = vec![0; LEN];
    hmem::read(&[room], 0, &mut got);
    assert!(got == pattern(LEN, 1));
}

/// The same while a call injects a device's memory, and waits for the device itself.
fn others_go_on_while_a_message_is_injected<L: Pair>() {
    let ([a, b], [to_b, to_a]) = L::nodes(Progress::Manual);
    // Both have met.
    b.recv(Span::leak(8), 1);
    a.send(to_b, b"message!", OpFlags::default());
    assert_eq!(completes(&b, &a), 1);
    let memory = fake::alloc(100);
    hmem::write(&[memory.span()], 0, &pattern(100, 1));
    memory.hold(true);
    let returned = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let iov = [memory.span()];
            let op = engine::Send { flags: OpFlags::INJECT, ..msg(to_b, &iov, 1) };
            let mut leaving = a.runtime.lock().start_send(a.ep, &op).unwrap().expect("a device's memory");
            while !a.runtime.lock().has_left(&mut leaving) {
                thread::yield_now();
            }
            returned.store(true, Ordering::SeqCst);
        });
        patient(|| (memory.in_flight() > 0).then_some(()));
        for ctx in 10..20 {
            a.recv(Span::leak(8), ctx);
            b.send(to_a, b"message!", OpFlags::default());
            assert_eq!(completes(&a, &b), ctx);
        }
        assert!(!returned.load(Ordering::SeqCst) && memory.in_flight() > 0);
        memory.hold(false);
        patient(|| returned.load(Ordering::SeqCst).then_some(()));
    });
    hmem::write(&[memory.span()], 0, &[0; 100]);
    let room = Span::leak(100);
    b.recv(room, 2);
    assert_eq!(completes(&b, &a), 2);
    let mut got = vec![0; 100];
    hmem::read(&[room], 0, &mut got);
    assert_eq!(got, pattern(100, 1));
}

mod memory {
    use super::*;

    #[test]
    fn others_go_on_while_a_device_copies() {
        super::others_go_on_while_a_device_copies::<MemoryLink>();
    }

    #[test]
    fn others_go_on_while_a_message_is_injected() {
        super::others_go_on_while_a_message_is_injected::<MemoryLink>();
    }
}

mod shm {
    use super::*;

    #[test]
    fn others_go_on_while_a_device_copies() {
        super::others_go_on_while_a_device_copies::<ShmLink>();
    }

    #[test]
    fn others_go_on_while_a_message_is_injected() {
        super::others_go_on_while_a_message_is_injected::<ShmLink>();
    }
}
