//! Both wake-ups under loom, with fences; membarrier(2) is argued for in the module above.

use loom::sync::Arc;
use loom::thread;

use super::super::producer::Producer;
use super::super::ring::Consumer;
use super::super::ring::model::LoomMem;
use super::*;
use crate::twin::Twin;

const NONE: Barrier = Barrier { registered: false, usable: false };

/// A frame is published while its receiver goes to sleep.
fn frame(fence: Twin) {
    loom::model(move || {
        let mem = Arc::new(LoomMem::new(4, Twin::Sound, Twin::Sound, fence));
        let mut tx = Producer::new(mem.clone(), 0);
        let rx = Consumer::new(mem);
        let sender = thread::spawn(move || {
            assert!(tx.reserve(8).unwrap());
            tx.publish(8);
            must_notify(tx.mem(), false)
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
        let mut tx = Producer::new(mem.clone(), 0);
        let mut rx = Consumer::new(mem);
        for _ in 0..3 {
            assert!(tx.reserve(8).unwrap());
            tx.publish(8);
        }
        let receiver = thread::spawn(move || {
            assert_eq!(rx.peek(), Ok(Some(8)));
            assert!(rx.advance().1);
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
