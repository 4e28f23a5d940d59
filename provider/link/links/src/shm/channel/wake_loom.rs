//! Both wake-ups under loom, with fences; membarrier(2) is argued for in the module above.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::ring::model::LoomMem;
use crate::twin::Twin;

const NONE: Barrier = Barrier { registered: false, usable: false };

/// A frame is published while its receiver goes to sleep.
fn frame(fence: Twin) {
    loom::model(move || {
        let mem = Arc::new(LoomMem::new(4, Twin::Sound, Twin::Sound, fence));
        let mut tx = Producer::new(mem.clone(), 0, Allowance::new(u32::MAX));
        let rx = Consumer::new(mem);
        let sender = thread::spawn(move || {
            assert!(tx.reserve(8).unwrap());
            tx.publish(8);
            consuming(tx.mem()) == Consuming::Asleep
        });
        arm(rx.mem(), NONE);
        rx.mem().fence();
        let sleeps = !rx.ready();
        let rang = sender.join().unwrap();
        assert!(rang || !sleeps, "sleeps on a frame");
    });
}

/// Room is made while the sender, which lacks it, goes to sleep.
fn room(fence: Twin) {
    loom::model(move || {
        let mem = Arc::new(LoomMem::new(4, Twin::Sound, Twin::Sound, fence));
        let mut tx = Producer::new(mem.clone(), 0, Allowance::new(u32::MAX));
        let mut rx = Consumer::new(mem);
        for _ in 0..3 {
            assert!(tx.reserve(8).unwrap());
            tx.publish(8);
        }
        let receiver = thread::spawn(move || {
            assert_eq!(rx.peek(), Ok(Some(8)));
            assert!(rx.advance());
            room_wanted(rx.mem())
        });
        want_room(tx.mem());
        let sleeps = !tx.reserve(8).unwrap();
        let notified = receiver.join().unwrap();
        assert!(notified || !sleeps, "sleeps on room");
    });
}

#[test]
fn no_wake_up_is_lost() {
    frame(Twin::Sound);
    room(Twin::Sound);
}

#[test]
#[should_panic(expected = "sleeps on a frame")]
fn twin_without_fences_misses_a_frame() {
    frame(Twin::Fence);
}

#[test]
#[should_panic(expected = "sleeps on room")]
fn twin_without_fences_misses_room() {
    room(Twin::Fence);
}

/// A consumer takes what it finds and closes; a producer publishes frames meanwhile. None that the producer
/// takes for lost was taken.
fn close_beside_a_send(bell: Twin) {
    loom::model(move || {
        let mem = Arc::new(LoomMem::with_bell(4, bell));
        let mut tx = Producer::new(mem.clone(), 0, Allowance::new(u32::MAX));
        let mut rx = Consumer::new(mem);
        let receiver = thread::spawn(move || {
            promise(rx.mem(), Barrier { registered: true, usable: true });
            let taken = rx.peek() == Ok(Some(8));
            if taken {
                rx.advance();
            }
            close(&mut rx);
            taken
        });
        assert!(tx.reserve(8).unwrap());
        tx.publish(8);
        let lost = !is_awake(tx.mem(), true) && consuming(tx.mem()) == Consuming::Closed && !tx.is_read();
        assert!(!(receiver.join().unwrap() && lost), "a frame that was taken is said to be lost");
    });
}

/// A frame is published after the consumer has closed.
fn send_behind_a_close(closes: bool) {
    loom::model(move || {
        let mem = Arc::new(LoomMem::with_bell(4, Twin::Sound));
        let mut tx = Producer::new(mem.clone(), 0, Allowance::new(u32::MAX));
        let mut rx = Consumer::new(mem);
        let receiver = thread::spawn(move || {
            promise(rx.mem(), Barrier { registered: true, usable: true });
            if closes {
                close(&mut rx);
            }
        });
        receiver.join().unwrap();
        assert!(tx.reserve(8).unwrap());
        tx.publish(8);
        let sent = is_awake(tx.mem(), true) || consuming(tx.mem()) != Consuming::Closed;
        assert!(!sent, "sent to a consumer that has closed");
    });
}

#[test]
fn a_consumer_that_has_closed_is_distinguished_from_one_that_polls() {
    close_beside_a_send(Twin::Sound);
    send_behind_a_close(true);
}

#[test]
#[should_panic(expected = "a frame that was taken is said to be lost")]
fn twin_that_closes_relaxed() {
    close_beside_a_send(Twin::Release);
}

#[test]
#[should_panic(expected = "a frame that was taken is said to be lost")]
fn twin_that_looks_relaxed_whether_it_has_closed() {
    close_beside_a_send(Twin::Acquire);
}

#[test]
#[should_panic(expected = "sent to a consumer that has closed")]
fn twin_that_does_not_say_that_it_closes() {
    send_behind_a_close(false);
}
