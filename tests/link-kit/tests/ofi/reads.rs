//! The engine over a fabric by which memory is read: what is read, and what comes in frames.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::duo::{Duo, filled};
use crate::fake::{Fake, FakeNet};
use engine::{Cntrs, Ctx, EpConfig, Error, OpFlags, Send};
use hmem::Span;
use link::{Links, OpenOptions};
use link_api::{Link as _, Patience, RmaCaps};
use link_kit::text;
use testkit::{from_any, msg, pattern};
use wire::Addr;

const LEN: usize = 90_000;

fn duo(net: &FakeNet, void: bool) -> Duo<Fake> {
    Duo::new(|| {
        let mut fake = net.open();
        (fake.reads, fake.void) = (true, void);
        fake
    })
}

#[test]
fn a_long_message_is_one_read() {
    crate::duo::a_long_message_is_one_read(duo(&FakeNet::default(), false), LEN);
}

#[test]
fn a_message_of_parts_is_read_whole() {
    let mut duo = duo(&FakeNet::default(), false);
    let (src, dst) = (filled(400_000, 3), Span::leak(400_000));
    let parts = |s: Span, at: usize| [s.part(0, at).unwrap(), s.part(at, 400_000 - at).unwrap()];
    duo.send(&parts(src, 70_000), &parts(dst, 250_000));
    let [_, bytes, _, read] = duo.counts.take();
    assert!(read == 400_000 && bytes < 2_000, "{read} bytes were read, {bytes} came in frames");
    assert_eq!(duo.lent(), 0);
}

#[test]
fn messages_from_one_buffer_are_all_read() {
    const N: usize = 8;
    let mut duo = duo(&FakeNet::default(), false);
    let (to, src) = (duo.a.peer, filled(LEN, 5));
    let rooms: Vec<Span> = (0..N).map(|_| Span::leak(LEN)).collect();
    for (i, room) in rooms.iter().enumerate() {
        // Of each a part more, so that what is registered overlaps.
        let part = [src.part(0, LEN - 1_000 * (N - i)).unwrap()];
        duo.b.domain.recv(duo.b.rx, &from_any(&[*room], i)).unwrap();
        duo.post(|a| a.domain.send(a.ep, &msg(to, &part, i)));
    }
    duo.complete(N, N);
    for (i, room) in rooms.iter().enumerate() {
        assert!(text(&[*room])[..LEN - 1_000 * (N - i)] == pattern(LEN, 5)[..LEN - 1_000 * (N - i)]);
    }
    assert_eq!(duo.lent(), 0, "what is registered when all are over");
    duo.counts.take();
    for (i, room) in rooms.iter().enumerate() {
        duo.b.domain.recv(duo.b.rx, &from_any(&[*room], i)).unwrap();
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[src], i)));
    }
    duo.complete(N, N);
    let [_, bytes, reads, _] = duo.counts.take();
    assert!(reads == N as u64 && bytes < 6_000, "{reads} reads, {bytes} bytes in frames");
    assert_eq!(duo.lent(), 0);
}

#[test]
fn what_cannot_be_read_comes_in_frames() {
    let mut duo = duo(&FakeNet::default(), true);
    duo.send(&[filled(LEN, 6)], &[Span::leak(LEN)]);
    let [_, bytes, reads, _] = duo.counts.take();
    assert!(reads == 1 && bytes >= LEN as u64, "{reads} reads, {bytes} bytes in frames");
    assert_eq!(duo.lent(), 0);
}

#[test]
fn a_send_that_is_cancelled_lends_nothing_any_more() {
    let net = FakeNet::default();
    let mut duo = duo(&net, false);
    let (to, src) = (duo.a.peer, filled(LEN, 8));
    // No receive is there; and one whose read stands still.
    for met in [false, true] {
        let room = Span::leak(LEN);
        if met {
            net.halt(Some(LEN / 2));
            duo.b.domain.recv(duo.b.rx, &from_any(&[room], 4)).unwrap();
        }
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[src], 3)));
        for _ in 0..50 {
            assert!(duo.a.next().is_none() && duo.b.next().is_none());
            sleep(Duration::from_micros(50));
        }
        assert_eq!(duo.lent(), 1);
        duo.a.domain.set_patience(Patience::Retried);
        let (mut begun, mut received, mut sent) = (None, None, None);
        let start = Instant::now();
        while let Err(why) = duo.a.domain.ep_cancel_in_turns(duo.a.ep, Ctx(3), &mut begun) {
            assert_eq!(why, Error::Busy);
            assert!(start.elapsed() < Duration::from_secs(60), "it is never cancelled");
            received = received.or_else(|| duo.b.next());
        }
        assert!(!net.is_read(src), "memory is read after it was given back");
        // What it holds from now on is another's.
        hmem::write(&[src], 0, &[0xa5; LEN]);
        net.halt(None);
        while sent.is_none() || received.is_some() != met {
            assert!(start.elapsed() < Duration::from_secs(60), "it is never over");
            sent = sent.or_else(|| duo.a.next());
            received = received.or_else(|| duo.b.next());
            sleep(Duration::from_micros(50));
        }
        let failed = sent.is_some_and(|c| c.err == Some(Error::Cancelled));
        // The receiver may have asked for frames in time.
        assert!(failed || met, "{sent:?}");
        assert!(!met || received.is_some_and(|c| c.err.is_some()) == failed, "{sent:?}, and {received:?}");
        assert!(failed || text(&[room]) == pattern(LEN, 8), "what was sent");
        assert_eq!(duo.lent(), 0);
        assert!(text(&[room]).windows(64).all(|part| part != [0xa5; 64]), "memory that was given back");
        hmem::write(&[src], 0, &pattern(LEN, 8));
    }
    // Others go on.
    duo.send(&[src], &[Span::leak(LEN)]);
}

/// The buffer of what is to be tried again is the application's, which may send something else next, or
/// nothing.
#[test]
fn a_send_or_write_that_finds_no_room_lends_nothing() {
    let net = FakeNet::default();
    for write in [false, true] {
        let mut duo = duo(&net, false);
        let (to, short, src) = (duo.a.peer, [filled(8, 1)], [filled(LEN, 2)]);
        let mut n = 0;
        while duo.a.domain.send(duo.a.ep, &Send { flags: OpFlags::INJECT, ..msg(to, &short, n) }).is_ok() {
            n += 1;
            assert!(n < 1 << 20, "there is always room");
        }
        let posted = match write {
            true => duo.a.domain.rma(duo.a.ep, &testkit::write(to, &src, &[testkit::there(0, LEN, 1)], n)),
            false => duo.a.domain.send(duo.a.ep, &msg(to, &src, n)),
        };
        assert_eq!((posted, duo.lent()), (Err(Error::Again), 0), "a write: {write}");
        // Of the peer, which makes no progress, nothing is needed.
        duo.a.domain.set_patience(Patience::Retried);
        assert_eq!(duo.a.domain.ep_close(duo.a.ep), Ok(()));
    }
}

/// Of two domains of two endpoints each the first's peer is the other domain's second. Both are closed, one
/// endpoint after another, and nothing else is called.
#[test]
fn endpoints_of_a_domain_go_on_while_another_one_is_closed() {
    let (net, counts) = (FakeNet::default(), Arc::default());
    let open = || {
        let mut fake = net.open();
        fake.reads = true;
        crate::duo::link_over(fake, &counts)
    };
    let (links, others) = ([open(), open()], [open(), open()]);
    let names = [others[1].addr(), others[0].addr()];
    let mut nodes = links.into_iter().zip(names).map(|(link, peer)| crate::node::Node::new(link, peer));
    let mut nodes = [(); 2].map(|()| nodes.next().unwrap());
    let mut open = others.into_iter().zip(&mut nodes).map(|(link, node)| {
        let av = node.domain.av_open();
        let (tx_cq, rx_cq, cntrs) = (None, None, Cntrs::default());
        node.domain.set_lasting();
        vec![node.domain.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs }), node.ep]
    });
    let mut open = [(); 2].map(|()| open.next().unwrap());
    for _ in 0..2 {
        let (src, [one, other]) = (filled(LEN, 4), &mut nodes);
        crate::node::post([one, other], |node| node.domain.send(node.ep, &msg(node.peer, &[src], 1)));
        nodes.reverse();
    }
    assert_eq!(counts.lent.load(Relaxed), 2);
    let start = Instant::now();
    while open.iter().any(|eps| !eps.is_empty()) {
        assert!(start.elapsed() < Duration::from_secs(60), "{open:?} are never closed");
        // As `fi_close` does, with a minute in the place of a second.
        let patience = if open.iter().any(Vec::is_empty) { Patience::Final } else { Patience::Retried };
        for (node, eps) in nodes.iter_mut().zip(&mut open) {
            node.domain.set_patience(patience);
            if eps.last().is_some_and(|ep| node.domain.ep_close(*ep) == Ok(())) {
                eps.pop();
            }
        }
        sleep(Duration::from_micros(50));
    }
    assert_eq!(counts.lent.load(Relaxed), 0);
}

/// One reads, and says nothing any more.
#[test]
fn an_endpoint_whose_memory_a_silent_peer_reads_is_closed() {
    let net = FakeNet::default();
    let mut duo = duo(&net, false);
    let (to, src) = (duo.a.peer, filled(LEN, 9));
    net.halt(Some(LEN / 2));
    duo.b.domain.recv(duo.b.rx, &from_any(&[Span::leak(LEN)], 2)).unwrap();
    duo.a.domain.send(duo.a.ep, &msg(to, &[src], 1)).unwrap();
    let start = Instant::now();
    while !net.is_read(src) {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never read");
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
    }
    duo.a.domain.set_patience(Patience::Retried);
    assert_eq!(duo.a.domain.ep_close(duo.a.ep), Err(Error::Busy));
    duo.a.domain.set_patience(Patience::Final);
    assert_eq!(duo.a.domain.ep_close(duo.a.ep), Ok(()));
    assert!(!net.is_read(src), "memory is read after it was given back");
    assert_eq!(duo.lent(), 0);
}

/// The provider below may go on to read memory for a reader that has gone, until the endpoint is closed that
/// it was lent by.
#[test]
fn memory_of_a_peer_that_ends_in_its_read_is_not_read_any_more() {
    let net = FakeNet::default();
    let Duo { mut a, mut b, counts } = duo(&net, false);
    let (to, src) = (a.peer, filled(LEN, 9));
    net.halt(Some(LEN / 2));
    b.domain.recv(b.rx, &from_any(&[Span::leak(LEN)], 2)).unwrap();
    a.domain.send(a.ep, &msg(to, &[src], 1)).unwrap();
    let start = Instant::now();
    while !net.is_read(src) {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never read");
        assert!(a.next().is_none() && b.next().is_none());
    }
    drop(b);
    let sent = loop {
        assert!(start.elapsed() < Duration::from_secs(60), "it is never over");
        if let Some(found) = a.next() {
            break found;
        }
    };
    assert!(sent.err.is_some(), "{sent:?}");
    assert!(!net.is_read(src), "memory is read after it was given back");
    assert_eq!(counts.lent.load(Relaxed), 0);
}

/// Memory of a read that fails half way is not read any more when its send completes.
#[test]
fn memory_of_a_failed_read_is_not_read_after_its_send_completes() {
    let net = FakeNet::default();
    let mut duo = duo(&net, false);
    for round in 0..3 {
        let src = filled(LEN, round);
        net.breaks(LEN / 2);
        duo.send(&[src], &[Span::leak(LEN)]);
        assert!(!net.is_read(src), "memory is read after it was given back");
        let [_, bytes, reads, _] = duo.counts.take();
        assert!(reads == 1 && bytes >= LEN as u64, "{reads} reads, {bytes} bytes in frames");
        // What is sent next is lent by another endpoint, and read again.
        duo.send(&[filled(LEN, 10)], &[Span::leak(LEN)]);
        let [_, bytes, reads, _] = duo.counts.take();
        assert!(reads == 1 && bytes < 3_000, "{reads} reads, {bytes} bytes in frames");
        assert_eq!((duo.lent(), duo.counts.stops.swap(0, Relaxed)), (0, 1));
    }
}

#[test]
fn memory_that_cannot_be_registered_is_sent_in_frames() {
    let net = FakeNet::default();
    let mut duo = Duo::new(|| {
        let mut fake = net.open();
        (fake.reads, fake.lends) = (true, false);
        fake
    });
    duo.send(&[filled(LEN, 6)], &[Span::leak(LEN)]);
    let [_, bytes, reads, _] = duo.counts.take();
    assert!(reads == 0 && bytes >= LEN as u64, "{reads} reads, {bytes} bytes in frames");
}

#[test]
fn a_message_that_is_shorter_than_64_kib_is_not_read() {
    let mut duo = duo(&FakeNet::default(), false);
    for (len, of) in [((64 << 10) - 1, 0), (64 << 10, 1)] {
        duo.send(&[filled(len, 6)], &[Span::leak(len)]);
        assert_eq!(duo.counts.take()[2], of, "reads for {len} bytes");
    }
}

#[test]
fn a_message_that_is_longer_than_its_receive_is_cut_to_that() {
    crate::duo::a_long_message_is_cut_to_its_receive(duo(&FakeNet::default(), false));
}

#[test]
fn more_messages_than_may_be_read_at_once_are_all_read() {
    crate::duo::many_long_messages_at_once(duo(&FakeNet::default(), false));
}

/// A send that completes leaves memory registered that another one has a part of.
/// What one send that is over has in common with another that is not stays registered.
#[test]
fn completed_send_leaves_shared_memory_registered() {
    let mut duo = duo(&FakeNet::default(), false);
    let (to, src) = (duo.a.peer, filled(LEN, 5));
    let part = src.part(1_000, LEN - 2_000).expect("a part");
    let rooms = [Span::leak(LEN), Span::leak(LEN - 2_000)];
    duo.b.domain.recv(duo.b.rx, &from_any(&[rooms[0]], 1)).unwrap();
    for sent in [src, part] {
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[sent], 1)));
    }
    duo.complete(1, 1);
    assert_eq!(duo.lent(), 1);
    duo.b.domain.recv(duo.b.rx, &from_any(&[rooms[1]], 2)).unwrap();
    duo.complete(1, 1);
    let [_, bytes, reads, _] = duo.counts.take();
    assert!(reads == 2 && bytes < 3_000, "{reads} reads, {bytes} bytes in frames");
    assert!(text(&[rooms[1]]) == pattern(LEN, 5)[1_000..LEN - 1_000] && duo.lent() == 0);
}

/// Memory of a device that stays.
fn device(len: usize, seed: Option<usize>) -> Span {
    let memory = Box::leak(Box::new(hmem::fake::alloc(len)));
    if let Some(seed) = seed {
        hmem::write(&[memory.span()], 0, &pattern(len, seed));
    }
    memory.span()
}

/// Whether bytes are read depends on the memory of the side that has a part in it alone.
#[test]
fn memory_of_devices_is_read_where_the_provider_below_reads_it() {
    for [of_a, of_b] in [[false, false], [true, false], [false, true], [true, true]] {
        let (net, mut which) = (FakeNet::default(), [of_a, of_b].into_iter());
        let mut duo = Duo::new(|| {
            let mut fake = net.open();
            (fake.reads, fake.devices) = (true, which.next().expect("two of them"));
            fake
        });
        let (src, dst) = (|i| device(LEN, Some(i)), || device(LEN, None));
        for (from, into, is_read) in [
            (src(1), dst(), of_a && of_b),
            (src(2), Span::leak(LEN), of_a),
            (filled(LEN, 3), dst(), of_b),
            (filled(LEN, 4), Span::leak(LEN), true),
        ] {
            duo.send(&[from], &[into]);
            let [_, bytes, reads, _] = duo.counts.take();
            assert_eq!((reads, bytes < 3_000), (u64::from(is_read), is_read), "{from:?} to {into:?}");
        }
        // Some of either.
        let host = |span: Span| span.part(0, 50_000).expect("a part");
        duo.send(&[host(filled(LEN, 5)), src(6)], &[dst(), host(Span::leak(LEN))]);
        let [_, bytes, reads, _] = duo.counts.take();
        assert_eq!(
            (reads > 0, bytes < 3_000),
            (of_a && of_b, of_a && of_b),
            "{reads} reads, {bytes} bytes in frames"
        );
        assert_eq!(duo.lent(), 0);
    }
}

#[test]
fn a_short_message_of_a_devices_memory_is_not_read() {
    let net = FakeNet::default();
    let mut duo = Duo::new(|| {
        let mut fake = net.open();
        (fake.reads, fake.devices) = (true, true);
        fake
    });
    for (len, of) in [(8, 0), ((64 << 10) - 1, 0), (64 << 10, 1)] {
        duo.send(&[device(len, Some(6))], &[device(len, None)]);
        assert_eq!(duo.counts.take()[2], of, "reads for {len} bytes");
    }
}

/// As FI_HMEM_P2P_DISABLED has it.
#[test]
fn an_endpoint_that_is_to_stage_devices_memory_has_none_read_below() {
    let (net, bind) = (FakeNet::default(), Some("127.0.0.1:0".parse().expect("an address")));
    let mut links = Links::open(OpenOptions { bind, ..OpenOptions::default() }).expect("a free port");
    let mut fake = net.open();
    (fake.reads, fake.devices) = (true, true);
    links.add(Box::new(crate::duo::link_over(fake, &Arc::default()))).expect("a descriptor");
    let far = links.peer(&Addr::new("192.0.2.77:7".parse().expect("an address")));
    assert_eq!(links.path(far).rma, RmaCaps::HOST_GETS | RmaCaps::DEVICE_GETS);
    links.set_device_direct(false);
    assert_eq!(links.path(far).rma, RmaCaps::HOST_GETS);
}
