//! Second queue pairs where something is scarce or fails: what goes by the first ones is not touched by that.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use below::{Below as _, Dest, NotSent};
use testkit::{tagged, with_tag};

use super::apart::{closes, domains, fail, is_one_access, known, local, pairs, turn};
use super::duo::{Node, filled as host, link_over};
use super::*;

/// Two that are connected, of which the first one has memory to lend that needs a second queue pair.
fn two(src: Span) -> (Verbs, Dest, Verbs, Dest) {
    let (mut owner, mut peer) = (open(), open());
    let (to_peer, at) = join(&mut owner, &mut peer);
    assert!(owner.lend(to_peer, src, Way::Get).is_none(), "a key for all peers");
    (owner, to_peer, peer, at)
}

/// A completion queue of 64 entries has 32 for what is sent. Whatever peers have second queue pairs, messages and
/// accesses by the first ones find some, with all the peers that there is room for.
#[test]
fn second_queue_pairs_leave_room_in_the_completion_queue() {
    set("sv0:cqe=64", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    let (mut owner, mut others, mut seconds) = (open(), Vec::new(), 0);
    while let Ok(offer) = owner.offer() {
        let mut other = open();
        let far = other.offer().expect("a queue pair");
        let ip = Ipv4Addr::LOCALHOST.into();
        let to_other = owner.connect(offer.number, &far.address, (ip, true)).expect("a connection");
        let at = other.connect(far.number, &offer.address, (ip, false)).expect("a connection");
        assert!(owner.lend(to_other, src, Way::Get).is_none(), "a key for all peers");
        seconds += u32::from(join_second((&mut owner, to_other), (&mut other, at)));
        let lease = other.lend(at, host(LEN, 4), Way::Get).expect("a key");
        say(&mut other, at, &mut owner);
        let into = host(LEN, 9);
        assert!(accesses(&mut owner, (Way::Get, to_other, lease.key, lease.base), into));
        assert!(text(&[into]) == pattern(LEN, 4));
        say(&mut owner, to_other, &mut other);
        others.push(other);
        assert!(others.len() < 32, "no completion is left");
    }
    assert!(seconds >= 4 && others.len() >= 12, "{seconds} second ones of {}", others.len());
}

/// A queue pair that is closed, and not destroyed yet, is waited for where there can be no more.
#[test]
fn a_second_queue_pair_takes_the_place_of_one_that_is_closed() {
    set("sv0:qp=3", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    let (mut owner, mut gone) = (open(), open());
    let (to_gone, _) = join(&mut owner, &mut gone);
    owner.part(to_gone);
    drop(gone);
    let mut peer = open();
    let (to_peer, _) = join(&mut owner, &mut peer);
    assert!(owner.lend(to_peer, src, Way::Get).is_none(), "a key for all peers");
    assert_eq!(pairs(), 3, "with the one that is closed");
    assert!(owner.second(to_peer).is_some(), "it is waited for");
    assert_eq!(pairs(), 3 + 1, "with the one that was refused");
}

/// Nothing is received by second queue pairs: they take no places of the shared queue.
#[test]
fn second_queue_pairs_take_no_places_for_messages() {
    set("sv0", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    let places = [false, true].map(|has_second| {
        let (mut owner, to_peer, mut peer, at) = two(src);
        assert!(!has_second || join_second((&mut owner, to_peer), (&mut peer, at)));
        let mut other = open();
        let before = ibv(c"ibv_reg_mr");
        join(&mut owner, &mut other);
        ibv(c"ibv_reg_mr") - before
    });
    assert_eq!(places[0], places[1], "registrations of places for another peer");
}

/// The peer has announced its own, which cannot be connected here: it hears that there is none, and messages go on.
#[test]
fn a_second_queue_pair_that_this_side_cannot_connect_is_none() {
    set("sv0", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    // The first of these calls is of the one that begins, the next is the other's own queue pair.
    for nth in [3, 4] {
        let before = (pairs(), domains());
        let (mut owner, to_peer, mut peer, at) = two(src);
        fail(c"ibv_modify_qp", nth, libc::ENOMEM);
        assert!(!join_second((&mut owner, to_peer), (&mut peer, at)), "call {nth}");
        say(&mut owner, to_peer, &mut peer);
        say(&mut peer, at, &mut owner);
        drop((owner, peer));
        assert_eq!((pairs(), domains()), before, "what is left");
    }
}

/// The peer has connected its own: there is no way back but the end of the connection, which is no fault of the peer's.
#[test]
fn a_second_queue_pair_that_the_peer_alone_has_connected_ends_the_connection() {
    set("sv0", &[]);
    let driver = driver(2);
    let (mut owner, to_peer, mut peer, at) = two(filled(&driver, LEN, 3));
    say(&mut owner, to_peer, &mut peer);
    let address = owner.second(to_peer).expect("one that is announced");
    let answer = peer.join_second(at, &address).expect("an honest one").expect("an answer");
    fail(c"ibv_modify_qp", 1, libc::ENOMEM);
    assert_eq!(owner.join_second(to_peer, &answer), Ok(None), "an honest one");
    let Did::Failed(who, why) = happens(&mut owner) else { panic!("the connection goes on") };
    assert_eq!(who, to_peer.0);
    assert!(why.contains("ibv_modify_qp"), "{why}");
    let message =
        below::Message { who: 2, is_frame: false, front: b"now", middle: &[], body: &[], off: 0, len: 0 };
    assert!(matches!(owner.send(to_peer, &message), Err(NotSent::Error(_))));
}

/// One that has none says so once, whether it was the first to say something or the peer was.
#[test]
fn a_peer_that_announces_a_second_queue_pair_again_is_not_believed() {
    set("sv0", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    let (_owner, _, mut peer, at) = two(src);
    assert!(peer.lend(at, src, Way::Get).is_none(), "a key for all peers");
    let address = peer.second(at).expect("one that is announced");
    for is_first in [false, true] {
        let (mut owner, to_peer, ..) = two(src);
        fail(c"ibv_create_qp", 1, libc::ENOMEM);
        if is_first {
            assert_eq!(owner.second(to_peer), None);
        }
        assert_eq!(owner.join_second(to_peer, &address), Ok(Some(Vec::new())));
        assert!(owner.join_second(to_peer, &address).is_err(), "it has said so");
        assert!(owner.join_second(to_peer, &[]).is_err(), "it has said so");
    }
}

/// A driver that repeats requests may repeat a read that is over: the memory stays registered, at both ends, until a
/// later request has completed.
#[test]
fn a_driver_that_repeats_requests_accesses_memory_of_devices_by_the_second_queue_pair() {
    set("sv0:rxe,repeats", &[]);
    let (driver, mut duo) = (driver(2), Duo::new(open));
    duo.send_until_accesses(|| filled(&driver, LEN, 1));
    for seed in 0..20 {
        is_one_access(&mut duo, filled(&driver, LEN, seed), filled(&driver, LEN, 50));
        is_one_access(&mut duo, filled(&driver, LEN, seed), Span::leak(LEN));
        turn(&mut duo);
    }
    let target = filled(&driver, LEN, 3);
    let mr = known(&mut duo, target);
    let to = duo.a.peer;
    for is_device in [false, true, false, true] {
        let (from, into) = (local(&driver, is_device, 20_000, 5), local(&driver, is_device, 20_000, 9));
        let remote = [there(7, 20_000, 9)];
        for op in [write(to, &[from], &remote, 1), read(to, &[into], &remote, 2)] {
            duo.post(|a| a.domain.rma(a.ep, &op));
            assert_eq!(duo.complete(1, 0).0[0].err, None);
            assert_eq!(duo.counts.take()[2], 1, "accesses");
        }
        assert!(text(&[into]) == pattern(20_000, 5));
    }
    duo.post(|a| a.domain.rma(a.ep, &read(to, &[Span::leak(9)], &[there(0, 9, 9)], 1)));
    assert_eq!(duo.complete(1, 0).0[0].err, None);
    closes(&mut duo, mr);
    // No connection has ended with it.
    is_one_access(&mut duo, filled(&driver, LEN, 7), host(LEN, 50));
}

/// The end of a read that fails here alone is the end of the peer, also where nothing was sent to that but the first
/// message, by which the two have met.
#[test]
fn an_error_by_the_second_queue_pair_is_the_end_of_a_peer_that_was_sent_one_message() {
    set("sv0", &[]);
    let driver = driver(2);
    let counts = Arc::default();
    let (a, b) = (link_over(open(), &counts), link_over(open(), &counts));
    let names = (link_api::Link::addr(&a), link_api::Link::addr(&b));
    let mut duo = Duo { a: Node::new(a, names.1), b: Node::new(b, names.0), counts };
    let (to, made, start) = (duo.a.peer, domains(), Instant::now());
    let [src, dst] = [filled(&driver, LEN, 3), host(LEN, 9)];
    // No receive is posted for the first one, which is not answered then.
    duo.post(|a| a.domain.send(a.ep, &tagged(to, &[src], 1, 1)));
    while domains() - made < 2 {
        assert!(start.elapsed() < Duration::from_secs(30), "no second queue pair");
        duo.settle();
    }
    duo.settle();
    duo.post(|a| a.domain.send(a.ep, &tagged(to, &[src], 2, 2)));
    duo.settle();
    assert!(duo.lent() > 0, "what the second message lends");
    let status = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_status");
    // SAFETY: that function's type.
    let status: extern "C" fn(u64, u32) = unsafe { std::mem::transmute(status) };
    status(1, rdma_sys::IBV_WC_RETRY_EXC_ERR);
    duo.b.domain.recv(duo.b.rx, &with_tag(&[dst], 2, 3)).expect("a receive");
    let (sent, got) = duo.complete(2, 1);
    assert!(sent.iter().chain(&got).all(|done| done.err.is_some()), "{sent:?} {got:?}");
}
