//! The link over a provider below, put to the checks: with a provider that a test made.

use crate::fake::{Fake, FakeNet};
use crate::support::OfiHarness;

fn fakes() -> OfiHarness<Fake> {
    let net = FakeNet::default();
    OfiHarness::new(move || Ok(net.open()))
}

link_kit::conform! { fakes(); frames polls peers ends returns host hostile sleep threads frames_only }

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

/// A fabric that has more to tell when it has told of nothing.
mod hasty {
    use super::{Fake, FakeNet, OfiHarness};

    fn hasty() -> OfiHarness<Fake> {
        let net = FakeNet::default();
        OfiHarness::new(move || {
            let mut fake = net.open();
            fake.hasty = true;
            Ok(fake)
        })
    }

    link_kit::conform! { hasty(); frames polls ends sleep threads }
}

/// A fabric that finds a message by one call, and what has happened after it.
mod finds {
    use super::{Fake, FakeNet, OfiHarness};

    fn finds(many: usize) -> OfiHarness<Fake> {
        let net = FakeNet::default();
        OfiHarness::new(move || {
            let mut fake = net.open();
            fake.finds = many;
            Ok(fake)
        })
    }

    link_kit::conform! { finds(1); frames polls peers ends returns hostile sleep threads frames_only }

    mod some_at_once {
        use super::finds;

        link_kit::conform! { finds(3); frames polls peers ends returns hostile sleep threads frames_only }
    }
}

/// A fabric by which memory is read.
mod reads {
    use std::time::{Duration, Instant};

    use hmem::Span;
    use link_api::{
        Direct, Event, FrameLink as _, Grant, HandleNote, Link as _, Parting, Revoke, RmaCaps, RmaLink as _,
        Way,
    };
    use link_kit::{Harness as _, name, text};
    use wire::Seg;

    use super::{Fake, FakeNet, OfiHarness};
    use crate::support::{Driven, Over};

    const LEN: usize = 40_000;

    fn readers(stingy: bool) -> OfiHarness<Fake> {
        readers_of(&FakeNet::default(), stingy)
    }

    fn readers_of(net: &FakeNet, stingy: bool) -> OfiHarness<Fake> {
        accesses(net, stingy, RmaCaps::HOST_GETS)
    }

    pub fn accesses(net: &FakeNet, stingy: bool, caps: RmaCaps) -> OfiHarness<Fake> {
        let (net, of) = (net.clone(), net.clone());
        let mut harness = OfiHarness::new(move || {
            let mut fake = of.open();
            (fake.reads, fake.stingy) = (true, stingy);
            fake.writes = caps.contains(RmaCaps::HOST_PUTS);
            Ok(fake)
        });
        harness.caps = caps;
        harness.halt = Some(Box::new(move |at| net.halt(at)));
        harness
    }

    link_kit::conform! { readers(false); frames peers ends returns frames_only handles flights sleep_in_flight }

    mod writes {
        use super::{Fake, FakeNet, OfiHarness, RmaCaps, accesses};

        pub fn writers(stingy: bool) -> OfiHarness<Fake> {
            accesses(&FakeNet::default(), stingy, RmaCaps::HOST_GETS | RmaCaps::HOST_PUTS)
        }

        link_kit::conform! { writers(false); frames peers ends returns frames_only handles flights sleep_in_flight }

        mod where_there_is_no_room_now_and_then {
            use super::writers;

            link_kit::conform! { writers(true); handles }
        }
    }

    /// What is lent to be read is not written, and the other way round, whatever the peer makes of its handle.
    #[test]
    fn memory_is_accessed_in_the_way_that_it_is_lent_for() {
        let mut h = accesses(&FakeNet::default(), false, RmaCaps::HOST_GETS | RmaCaps::HOST_PUTS);
        crate::support::memory_is_accessed_in_the_way_that_it_is_lent_for(&mut h);
    }

    /// A provider need not be able to end one read: all are ended then.
    #[test]
    fn a_read_that_stands_still_is_cancelled_and_the_others_fail() {
        let mut h = readers(false);
        let (mut a, mut b) = (h.open(), h.open());
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        let start = Instant::now();
        while a.send(to_b, b"hello", &[], 0, 0).is_err() || !a.path(to_b).rma.contains(RmaCaps::HOST_GETS) {
            assert!(start.elapsed() < Duration::from_secs(60), "no way to the peer");
            assert!(!matches!(a.poll(), Some(Event::Closed(..))));
        }
        let (there, rooms) = (Span::leak(LEN), [Span::leak(LEN), Span::leak(LEN)]);
        let lend = |a: &mut Driven<Over<Fake>>, b: &mut Driven<Over<Fake>>| {
            // The owner may not know yet that the fabric leads to the reader.
            let handles = loop {
                assert!(start.elapsed() < Duration::from_secs(60), "nothing can be lent");
                if let Some(handles) = b.export_handles(to_a, &[there], Way::Get) {
                    break handles;
                }
            };
            handles.iter().for_each(|handle| a.note_handle(to_b, HandleNote::Imported(handle)));
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
                assert!(start.elapsed() < Duration::from_secs(60), "a read is never over");
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

    type Node = Driven<Over<Fake>>;

    /// Two owners of memory, and two that read it: both the first one's, and one of them the second one's,
    /// too.
    struct Four {
        net: FakeNet,
        h: OfiHarness<Fake>,
        owners: [Node; 2],
        readers: [Node; 2],
        start: Instant,
    }

    impl Four {
        fn new(leave: Duration) -> Four {
            let net = FakeNet::default();
            let mut h = readers_of(&net, false);
            h.leave = leave;
            let (owners, readers) = ([h.open(), h.open()], [h.open(), h.open()]);
            Four { net, h, owners, readers, start: Instant::now() }
        }

        fn wait(&mut self, what: &str) {
            assert!(self.start.elapsed() < Duration::from_secs(60), "{what}");
            self.h.pass();
        }

        /// Begins a read of bytes that are this one: the name by which its owner gives it, and where it goes.
        fn read(&mut self, reader: usize, owner: usize, byte: u8) -> (link_api::OpId, Span) {
            let (there, room) = (Span::leak(LEN), Span::leak(LEN));
            hmem::write(&[there], 0, &[byte; LEN]);
            let (addr, own) = (self.owners[owner].addr(), self.readers[reader].addr());
            let (to, from) = (self.readers[reader].peer(&addr), self.owners[owner].peer(&own));
            while self.readers[reader].send(to, b"hello", &[], 0, 0).is_err() {
                self.wait("no way to the peer");
                self.readers[reader].poll();
            }
            let handles = loop {
                match self.owners[owner].export_handles(from, &[there], Way::Get) {
                    Some(handles) => break handles,
                    None => self.wait("memory that cannot be lent"),
                }
            };
            handles
                .iter()
                .for_each(|handle| self.readers[reader].note_handle(to, HandleNote::Imported(handle)));
            let remote = [Seg { addr: there.addr().into(), len: (LEN as u64).into() }];
            let request = Grant::Request(name(u32::from(byte), 1));
            let access = Direct::new(request, &remote, std::slice::from_ref(&room), LEN);
            (self.readers[reader].start(Way::Get, to, &access).expect("memory that it was told of"), room)
        }

        /// The next read of that reader's that is over.
        fn over(&mut self, reader: usize) -> (link_api::OpId, bool) {
            loop {
                if let Some(Event::Done(op, ok)) = self.readers[reader].poll() {
                    return (op, ok);
                }
                self.wait("a read is never over");
            }
        }

        fn pass_long(&mut self, times: usize) {
            (0..times).for_each(|_| self.h.pass_long());
        }
    }

    /// One reader ends in its read, so that its owner ends all that it has lent. Another one's read of that
    /// fails, and with that no read from another owner, which would have to end what it has lent in its turn.
    #[test]
    fn an_end_of_what_one_peer_has_lent_ends_no_reads_from_others() {
        let mut four = Four::new(Duration::from_secs(60));
        four.net.halt(Some(LEN / 2));
        four.read(0, 0, 1);
        let (lost, _) = four.read(1, 0, 2);
        let (kept, room) = four.read(1, 1, 3);
        // It takes its time until the provider tells.
        four.net.silence(true);
        let gone = four.readers[0].addr();
        let gone = four.owners[0].peer(&gone);
        four.owners[0].dismiss(gone, Parting::CutOff);
        four.pass_long(30);
        assert!(four.readers[1].poll().is_none(), "a read is over of which nothing was told");
        four.net.silence(false);
        assert_eq!(four.over(1), (lost, false));
        four.net.halt(None);
        assert_eq!(four.over(1), (kept, true));
        assert_eq!(text(&[room]), [3; LEN]);
    }

    /// A read from an endpoint that was closed is ended without a notice of it.
    #[test]
    fn read_from_a_closed_endpoint_ends_without_notice() {
        let mut four = Four::new(Duration::from_millis(100));
        four.net.halt(Some(LEN / 2));
        four.read(0, 0, 1);
        let (lost, room) = four.read(1, 0, 2);
        four.net.silence(true);
        let gone = four.readers[0].addr();
        let gone = four.owners[0].peer(&gone);
        four.owners[0].dismiss(gone, Parting::CutOff);
        assert_eq!(four.over(1), (lost, false));
        four.net.halt(None);
        four.pass_long(5);
        assert!(text(&[room])[LEN / 2..] == [0; LEN / 2], "memory of a read that is over");
    }

    /// The peer wants its memory back, and gets it when the read is over: no other read ends for that.
    #[test]
    fn a_request_that_is_taken_back_in_its_read_ends_no_other_read() {
        let mut four = Four::new(Duration::from_secs(60));
        four.net.halt(Some(LEN / 2));
        let (revoked, _) = four.read(0, 0, 1);
        let (kept, room) = four.read(0, 1, 2);
        let own = four.readers[0].addr();
        let from = four.owners[0].peer(&own);
        assert!(
            four.owners[0].revoke(Revoke::Request(from, name(1, 1))).is_err(),
            "memory that is being read"
        );
        four.pass_long(30);
        assert!(
            four.owners[0].revoke(Revoke::Request(from, name(1, 1))).is_err(),
            "memory that is being read"
        );
        four.net.halt(None);
        let mut found = [four.over(0), four.over(0)];
        found.sort_by_key(|(op, _)| *op != revoked);
        assert_eq!(found, [(revoked, false), (kept, true)]);
        while four.owners[0].revoke(Revoke::Request(from, name(1, 1))).is_err() {
            four.wait("memory is never given back");
        }
        assert_eq!(text(&[room]), [2; LEN]);
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

    // Not those of `returns`, in which a link is not polled while a frame waits: then its connections wait as
    // well.
    link_kit::conform! { none(); frames polls peers ends sleep threads frames_only }
}
