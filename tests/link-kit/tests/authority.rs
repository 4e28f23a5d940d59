//! A peer is one link's: another link that is called under its name hands out nothing of the caller's, and
//! ends nothing of the peer's.
#![cfg(not(loom))]

use std::thread::sleep;
use std::time::{Duration, Instant};

use link::{Links, OpenOptions, ShmLink};
use link_api::{Channel, Event, FrameLink, Gone, Link, PeerId, Refused};
use link_kit::keyed::{KeyedLink, KeyedNet, Pace};
use wire::Addr;

fn options() -> OpenOptions {
    OpenOptions { bind: Some("127.0.0.1:0".parse().unwrap()), ..OpenOptions::default() }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        sleep(Duration::from_micros(10));
    }
}

/// The bytes of the next frame, and the peer it is of.
fn heard(link: &mut impl FrameLink) -> (PeerId, Vec<u8>) {
    let mut event = None;
    until("a frame", || {
        event = link.poll().filter(|event| !matches!(event, Event::PathChanged(_)));
        event.is_some()
    });
    let Some(Event::Frame(frame)) = event else { panic!("{event:?}, not a frame") };
    let (from, mut bytes) = (frame.from, vec![0; frame.len]);
    assert_eq!(link.read(&frame, 0, &mut bytes), frame.len);
    link.release(frame);
    (from, bytes)
}

fn say(link: &mut impl FrameLink, to: PeerId, bytes: &[u8]) {
    until("room for a frame", || match link.send(to, bytes, &[], 0, 0) {
        Err(Refused::Busy) => link.poll().is_some(),
        done => done.map(|_| true).unwrap(),
    });
}

/// Sends to `to`, which refuses: polls both until the caller has heard of its end, and nothing else came of
/// it.
fn is_cut_off(caller: &mut KeyedLink, to: PeerId, victim: &mut Links) {
    let mut closed = false;
    until("the end of a caller", || {
        if !closed {
            let _ = caller.send(to, b"forged", &[], 0, 0);
        }
        match caller.poll() {
            None => {}
            Some(Event::Closed(_, Gone::Reset)) => closed = true,
            Some(event) => panic!("{event:?}"),
        }
        let event = victim.poll();
        assert!(event.is_none(), "{event:?} of a caller under another's name");
        closed
    });
}

/// An endpoint with shared memory and a further link, and its name by that.
fn with_further(net: &mut KeyedNet) -> (Links, Addr) {
    let mut links = Links::open(options()).unwrap();
    let name = net.name();
    links.add(Box::new(net.open(name).unwrap())).unwrap();
    (links, name)
}

/// A caller under the name of a peer of shared memory is cut off, and that peer is not.
#[test]
fn caller_under_a_shared_memory_peers_name_is_cut_off() {
    let mut net = KeyedNet::new(Pace::default());
    let (mut a, name) = with_further(&mut net);
    let mut b = ShmLink::open(options()).unwrap();
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    say(&mut b, to_a, b"first");
    say(&mut a, to_b, b"back");
    assert_eq!((heard(&mut a), heard(&mut b)), ((to_b, b"first".to_vec()), (to_a, b"back".to_vec())));
    for end in [false, true] {
        let mut forger = net.open(b.addr()).unwrap();
        let to = forger.peer(&name);
        is_cut_off(&mut forger, to, &mut a);
        assert!(!a.has_frames_of(to_b) && a.channel(to_b) == Channel::Open && !a.keeps(to_b));
        if end {
            drop(forger);
        }
        assert_eq!(a.path(to_b).link, "shm");
        say(&mut b, to_a, b"second");
        say(&mut a, to_b, b"back");
        assert_eq!((heard(&mut a), heard(&mut b)), ((to_b, b"second".to_vec()), (to_a, b"back".to_vec())));
    }
    for _ in 0..500 {
        let event = a.poll();
        assert!(event.is_none(), "{event:?} after the end of a caller under another's name");
    }
}

#[test]
fn a_name_of_this_host_is_shared_memorys_before_any_peer_has_it() {
    let mut net = KeyedNet::new(Pace::default());
    let (mut a, name) = with_further(&mut net);
    let b = ShmLink::open(options()).unwrap().addr();
    let mut forger = net.open(b).unwrap();
    let to = forger.peer(&name);
    is_cut_off(&mut forger, to, &mut a);
    // Nor the endpoint's own.
    let own = a.addr();
    let mut forger = net.open(own).unwrap();
    let to = forger.peer(&name);
    is_cut_off(&mut forger, to, &mut a);
    let (mut b, me) = (ShmLink::open(OpenOptions { bind: Some(b.sock()), ..options() }).unwrap(), a.addr());
    let to_a = b.peer(&me);
    say(&mut b, to_a, b"hello");
    assert_eq!(heard(&mut a).1, b"hello");
}

#[test]
fn a_peer_of_one_further_link_is_not_taken_by_another() {
    let (mut one, mut other) = (KeyedNet::new(Pace::default()), KeyedNet::new(Pace::default()));
    let (mut a, name) = with_further(&mut one);
    let by_other = other.name();
    a.add(Box::new(other.open(by_other).unwrap())).unwrap();
    let peer_name = one.name();
    let mut b = one.open(peer_name).unwrap();
    let (to_b, to_a) = (a.peer(&peer_name), b.peer(&name));
    say(&mut a, to_b, b"1");
    assert_eq!(heard(&mut b).1, b"1");
    let mut forger = other.open(peer_name).unwrap();
    let to = forger.peer(&by_other);
    is_cut_off(&mut forger, to, &mut a);
    drop(forger);
    say(&mut b, to_a, b"2");
    assert_eq!(heard(&mut a), (to_b, b"2".to_vec()));
    assert_eq!(a.channel(to_b), Channel::Open);
}

#[test]
fn shared_memory_serves_no_peer_where_it_is_not_to_be_used() {
    let mut net = KeyedNet::new(Pace::default());
    let (mut a, _) = with_further(&mut net);
    a.set_shm(false);
    let mut b = ShmLink::open(options()).unwrap();
    let to_a = b.peer(&a.addr());
    let mut ended = false;
    until("a refusal", || {
        ended |= matches!(b.send(to_a, b"?", &[], 0, 0), Err(Refused::Gone(_)));
        ended |= matches!(b.poll(), Some(Event::Closed(..)));
        let event = a.poll();
        assert!(event.is_none(), "{event:?}");
        ended
    });
    // But for the endpoint itself.
    let own = a.addr();
    let to_self = a.peer(&own);
    say(&mut a, to_self, b"to myself");
    assert_eq!(heard(&mut a), (to_self, b"to myself".to_vec()));
}
