//! The slow link with keys, put to the checks.

use link_kit::keyed::KeyedHarness;

link_kit::conform! { KeyedHarness::new(); frames polls peers ends returns hostile sleep threads frames_only handles flights sleep_in_flight }

/// What a target checks besides: number and secret of a key, its range, and what it allows.
mod keys {
    use hmem::Span;
    use link_api::{Connect, Direct, Event, Grant, HandleNote, Link as _, OpId, PeerId, RmaLink as _, Way};
    use link_kit::keyed::{Access, KeyedLink, KeyedNet, Pace};
    use link_kit::{bytes, name, text};
    use std::thread::sleep;
    use std::time::{Duration, Instant};
    use wire::{Handle, Seg};

    const LEN: usize = 20_000;

    fn event(link: &mut KeyedLink) -> Event {
        let start = Instant::now();
        loop {
            if let Some(event) = link.poll() {
                return event;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
            sleep(Duration::from_micros(20));
        }
    }

    /// A target, and an initiator that knows it.
    struct Two {
        net: KeyedNet,
        target: KeyedLink,
        to_user: PeerId,
        user: KeyedLink,
        to_target: PeerId,
    }

    fn two() -> Two {
        let mut net = KeyedNet::new(Pace::default());
        let names = [net.name(), net.name()];
        let [mut user, mut target] = names.map(|name| net.open(name).expect("a name that is free"));
        let (to_target, to_user) = (user.peer(&names[1]), target.peer(&names[0]));
        while user.connect(to_target, Connect::Now).is_err() {
            sleep(Duration::from_micros(20));
        }
        while target.connect(to_user, Connect::Now).is_err() {
            sleep(Duration::from_micros(20));
        }
        Two { net, target, to_user, user, to_target }
    }

    impl Two {
        fn handle(&mut self, span: Span) -> Handle {
            let all = self.target.export_handles(self.to_user, &[span], Way::Get).expect("host memory");
            assert_eq!(all.len(), 1);
            all[0]
        }

        /// Starts a copy between all of `span` and memory that holds `seed`; which.
        fn start(&mut self, way: Way, span: Span, seed: usize) -> (OpId, Span) {
            let here = Span::leak(span.len());
            hmem::write(&[here], 0, &bytes(span.len(), seed));
            let remote = [Seg { addr: span.addr().into(), len: (span.len() as u64).into() }];
            let op = self.user.start(
                way,
                self.to_target,
                &Direct::new(Grant::Request(name(1, 1)), &remote, &[here], span.len()),
            );
            (op.expect("memory of which a handle is known"), here)
        }

        /// Whether such a copy succeeds; if not, nothing is touched.
        fn copies(&mut self, way: Way, span: Span) -> bool {
            let before = text(&[span]);
            let (op, here) = self.start(way, span, 77);
            let Event::Done(which, ok) = event(&mut self.user) else { panic!("no end of an operation") };
            assert_eq!(which, op);
            let (ours, theirs) = (text(&[here]), text(&[span]));
            let original = bytes(span.len(), 77);
            match (ok, way) {
                (true, Way::Get) => assert!(ours == before && theirs == before),
                (true, Way::Put) => assert!(ours == original && theirs == original),
                (false, _) => assert!(ours == original && theirs == before, "{way:?} has touched something"),
            }
            ok
        }
    }

    #[test]
    fn a_key_allows_what_it_was_made_for() {
        let mut two = two();
        for (read, write) in [(true, true), (true, false), (false, true), (false, false)] {
            let span = Span::leak(LEN);
            two.target.register(span, Access { read, write });
            let handle = two.handle(span);
            two.user.note_handle(two.to_target, HandleNote::Imported(&handle));
            assert_eq!(two.copies(Way::Get, span), read, "a read, where {read} and {write}");
            assert_eq!(two.copies(Way::Put, span), write, "a write, where {read} and {write}");
        }
        assert_eq!(two.net.started(), 8);
    }

    #[test]
    fn a_key_that_is_wrong_or_stale_is_refused() {
        let mut two = two();
        let span = Span::leak(LEN);
        let key = two.target.register(span, Access::ALL);
        let handle = two.handle(span);
        let mut guessed = handle;
        guessed.token[0] ^= 1;
        let unknown = Handle { id: (key + 1_000).into(), ..handle };
        for wrong in [guessed, unknown] {
            two.user.note_handle(two.to_target, HandleNote::Imported(&wrong));
            assert!(!two.copies(Way::Get, span) && !two.copies(Way::Put, span));
        }
        two.user.note_handle(two.to_target, HandleNote::Imported(&handle));
        assert!(two.copies(Way::Get, span) && two.copies(Way::Put, span));
        two.target.deregister(key);
        assert!(!two.copies(Way::Get, span) && !two.copies(Way::Put, span));
        // Registered anew it has another key.
        let again = two.handle(span);
        assert_ne!(again.id.get(), key);
        assert!(!two.copies(Way::Get, span));
        two.user.note_handle(two.to_target, HandleNote::Imported(&again));
        assert!(two.copies(Way::Get, span));
    }

    #[test]
    fn a_handle_that_says_more_than_its_key_allows_no_more() {
        let mut two = two();
        let all = Span::leak(LEN);
        let inner = all.part(1_000, 8_000).expect("a part of it");
        two.target.register(inner, Access::ALL);
        let honest = two.handle(inner);
        let more = Handle { base: all.addr().into(), len: (LEN as u64).into(), ..honest };
        two.user.note_handle(two.to_target, HandleNote::Imported(&more));
        for (off, len) in [(999, 10), (8_991, 10), (0, LEN), (9_000, 1), (10_000, 5_000)] {
            let part = all.part(off, len).expect("a part of it");
            assert!(!two.copies(Way::Get, part) && !two.copies(Way::Put, part), "{off}+{len}");
        }
        assert!(two.copies(Way::Put, inner));
    }

    #[test]
    fn keys_of_an_endpoint_that_ended_are_not_those_of_its_successor() {
        let mut two = two();
        let (span, addr) = (Span::leak(LEN), two.target.addr());
        let handle = two.handle(span);
        two.user.note_handle(two.to_target, HandleNote::Imported(&handle));
        assert!(two.copies(Way::Get, span));
        // Under another name meanwhile.
        let other = two.net.name();
        two.target = two.net.open(other).expect("a name that is free");
        assert!(matches!(event(&mut two.user), Event::Closed(..)));
        two.target = two.net.open(addr).expect("a name that is free again");
        two.to_user = two.target.peer(&two.user.addr());
        while two.user.connect(two.to_target, Connect::Now).is_err() {
            sleep(Duration::from_micros(20));
        }
        let remote = [Seg { addr: span.addr().into(), len: (LEN as u64).into() }];
        let here = [Span::leak(LEN)];
        let old = two.user.start(
            Way::Get,
            two.to_target,
            &Direct::new(Grant::Request(name(1, 1)), &remote, &here, LEN),
        );
        assert!(old.is_err(), "a handle of the one that ended");
        two.user.note_handle(two.to_target, HandleNote::Imported(&handle));
        assert!(!two.copies(Way::Get, span), "its key");
    }

    #[test]
    fn an_operation_is_in_flight_for_a_while() {
        let mut two = two();
        let span = Span::leak(256 << 10);
        let handle = two.handle(span);
        two.user.note_handle(two.to_target, HandleNote::Imported(&handle));
        let (op, here) = two.start(Way::Put, span, 5);
        // Its bytes arrive in order, a few at a time, and no poll is needed for that.
        let start = Instant::now();
        while text(&[span])[0] != bytes(1, 5)[0] {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing arrives");
        }
        let Event::Done(which, true) = event(&mut two.user) else { panic!("it does not succeed") };
        assert_eq!(which, op);
        assert!(text(&[span]) == text(&[here]));
    }
}
