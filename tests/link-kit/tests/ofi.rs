//! The link over a provider below, put to the checks: with a provider that a test made.
#![cfg(not(loom))]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/ofi.rs"]
mod support;

use fake::{Fake, FakeNet};
use support::OfiHarness;

fn fakes() -> OfiHarness<Fake> {
    let net = FakeNet::default();
    OfiHarness::new(move || Ok(net.open()))
}

link_kit::conform! { fakes(); frames polls peers ends returns hostile sleep threads frames_only }

/// A fabric that has no room at times.
mod stingy {
    use super::{Fake, FakeNet, OfiHarness};

    fn stingy() -> OfiHarness<Fake> {
        let net = FakeNet::default();
        OfiHarness::new(move || {
            let mut fake = net.open();
            fake.stingy = true;
            Ok(fake)
        })
    }

    link_kit::conform! { stingy(); polls ends threads }
}

/// A fabric by which memory is read.
mod reads {
    use std::time::{Duration, Instant};

    use hmem::Span;
    use link_api::{Direct, Event, Grant, Link as _, RmaCaps, RmaLink as _, Way};
    use link_kit::{Harness as _, name, text};
    use wire::Seg;

    use super::support::{Driven, Over};
    use super::{Fake, FakeNet, OfiHarness};

    const LEN: usize = 40_000;

    fn readers(stingy: bool) -> OfiHarness<Fake> {
        let net = FakeNet::default();
        let of = net.clone();
        let mut harness = OfiHarness::new(move || {
            let mut fake = of.open();
            (fake.reads, fake.stingy) = (true, stingy);
            Ok(fake)
        });
        harness.reads = true;
        harness.halt = Some(Box::new(move |at| net.halt(at)));
        harness
    }

    link_kit::conform! { readers(false); frames peers ends returns frames_only handles flights sleep_in_flight }

    /// A provider need not be able to end one read: all are ended then.
    #[test]
    fn a_read_that_stands_still_is_cancelled_and_the_others_fail() {
        let mut h = readers(false);
        let (mut a, mut b) = (h.open(), h.open());
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        let start = Instant::now();
        while a.send(to_b, b"hello", &[], 0, 0).is_err() || a.path(to_b).rma != RmaCaps::HOST_GETS {
            assert!(start.elapsed() < Duration::from_secs(20), "no way to the peer");
            assert!(!matches!(a.poll(), Some(Event::Closed(..))));
        }
        let (there, rooms) = (Span::leak(LEN), [Span::leak(LEN), Span::leak(LEN)]);
        let lend = |a: &mut Driven<Over<Fake>>, b: &mut Driven<Over<Fake>>| {
            let handles = b.export_handles(to_a, &[there]).expect("memory that can be lent");
            handles.iter().for_each(|handle| a.import_handle(to_b, handle));
        };
        lend(&mut a, &mut b);
        let remote = [Seg { addr: there.addr().into(), len: (LEN as u64).into() }];
        h.halt(Some(LEN / 2));
        let start_into = |a: &mut Driven<Over<Fake>>, room: Span| {
            let access = Direct::new(Grant::Request(name(1, 1)), &remote, std::slice::from_ref(&room), LEN);
            a.start(Way::Get, to_b, &access)
        };
        let [first, second] = rooms.map(|room| start_into(&mut a, room).expect("memory that it was told of"));
        a.cancel(first);
        h.halt(None);
        hmem::write(&[there], 0, &[1; LEN]);
        let over = |a: &mut Driven<Over<Fake>>| {
            loop {
                assert!(start.elapsed() < Duration::from_secs(20), "a read is never over");
                if let Some(Event::Done(op, ok)) = a.poll() {
                    return (op, ok);
                }
            }
        };
        assert_eq!(over(&mut a), (second, false));
        // The owner lends nothing any more as soon as it knows, and then lends anew.
        loop {
            lend(&mut a, &mut b);
            let Ok(next) = start_into(&mut a, rooms[1]) else { continue };
            if over(&mut a) == (next, true) {
                break;
            }
        }
        assert_eq!(text(&[rooms[0]]), [0; LEN], "memory of a read that was cancelled");
        assert_eq!(text(&[rooms[1]]), [1; LEN]);
    }

    /// One that has no room at times.
    mod stingy {
        use super::readers;

        link_kit::conform! { readers(true); handles sleep_in_flight }
    }
}

/// Endpoints without a fabric.
mod none {
    use super::{Fake, OfiHarness};

    fn none() -> OfiHarness<Fake> {
        OfiHarness::new(|| Err("none".into()))
    }

    // Not those of `returns`, in which a link is not polled while a frame waits: then its connections wait as well.
    link_kit::conform! { none(); frames polls peers ends sleep threads frames_only }
}
