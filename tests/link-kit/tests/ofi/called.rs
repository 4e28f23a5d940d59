//! How many polls of an endpoint a peer's connection takes, and how many calls of the fabric a poll.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fake::{Fake, FakeNet};
use below::{Below as _, BelowLink, BelowOptions};
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink as _, Link as _, PeerId, Refused};
use wire::session::JobKey;

type Node = BelowLink<TcpLink, Fake>;

fn open(net: &FakeNet) -> Node {
    let key = JobKey::from_secret(b"of connections");
    let at = "127.0.0.1:0".parse().expect("an address");
    let base = TcpLink::bind(at, TcpOptions::new(key.clone())).expect("a free name");
    BelowLink::new(base, Ok(net.open()), BelowOptions::new(key)).expect("descriptors")
}

/// An endpoint that listens is polled rarely: once in 10 ms where shared memory has nothing either.
#[test]
fn an_endpoint_without_peers_reads_connections_by_each_poll() {
    let net = FakeNet::default();
    let (mut a, mut b) = (open(&net), open(&net));
    let to_b = a.peer(&b.addr());
    let mut sent = false;
    for polls in 1.. {
        assert!(polls < 32, "{polls} polls, and no frame");
        // What the one does takes no poll of the other one's.
        for _ in 0..100 {
            if !sent {
                match a.send(to_b, b"hello", &[], 0, 0) {
                    Ok(_) => sent = true,
                    Err(why) => assert_eq!(why, Refused::Busy),
                }
            }
            assert!(a.poll().is_none(), "nothing is sent to it");
        }
        sleep(Duration::from_millis(1));
        if let Some(event) = b.poll() {
            assert!(matches!(event, Event::Frame(_)), "{event:?}");
            return;
        }
    }
}

/// Two endpoints whose fabric finds so many reports by one call: a frame has gone by it, and no more is under way.
fn met(finds: usize) -> (Node, Node, PeerId) {
    let net = FakeNet::default();
    let (mut a, mut b) = (open(&net), open(&net));
    let to_b = a.peer(&b.addr());
    let start = Instant::now();
    let (mut by_fabric, mut quiet) = (false, 0);
    while !by_fabric || quiet < 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "no way by the fabric");
        if !by_fabric {
            let before = sent(&mut a);
            by_fabric = a.send(to_b, b"hello", &[], 0, 0).is_ok() && sent(&mut a) > before;
        }
        quiet += 1;
        assert!(!matches!(a.poll(), Some(Event::Frame(_) | Event::Closed(..))));
        match b.poll() {
            Some(Event::Frame(frame)) => {
                b.release(frame);
                quiet = 0;
            }
            Some(Event::Closed(..)) => panic!("the connection has ended"),
            _ => {}
        }
    }
    for link in [&mut a, &mut b] {
        link.below().expect("a fabric").finds = finds;
    }
    (a, b, to_b)
}

fn sent(link: &mut Node) -> u32 {
    link.below().expect("a fabric").sent
}

/// Sends a frame by the fabric.
fn send(from: &mut Node, to: PeerId, bytes: &[u8]) {
    let before = sent(from);
    from.send(to, bytes, &[], 0, 0).expect("room for a frame");
    assert_eq!(sent(from), before + 1);
}

/// The frame that the next poll reports.
fn polled(link: &mut Node) -> Option<Vec<u8>> {
    let Some(Event::Frame(frame)) = link.poll() else { return None };
    let mut bytes = vec![0; frame.len];
    link.read(&frame, 0, &mut bytes);
    link.release(frame);
    Some(bytes)
}

#[test]
fn a_poll_goes_on_after_a_message_that_is_no_frame() {
    for finds in 0..3 {
        let (mut a, mut b, to_b) = met(finds);
        send(&mut a, to_b, b"first");
        b.below().expect("a fabric").comes_first(vec![0xff; 64]);
        assert_eq!(polled(&mut b).as_deref(), Some(&b"first"[..]), "{finds} are found at once");
    }
}

#[test]
fn what_was_taken_with_a_frame_is_polled_behind_it_without_another_call() {
    let (mut a, mut b, to_b) = met(2);
    send(&mut a, to_b, b"first");
    send(&mut a, to_b, b"second");
    let first = polled(&mut b);
    let polls = b.below().expect("a fabric").polls;
    assert!(!b.below().expect("a fabric").has_taken(), "a frame is left in the fabric");
    assert_eq!([first, polled(&mut b)], [Some(b"first".to_vec()), Some(b"second".to_vec())]);
    assert_eq!(b.below().expect("a fabric").polls, polls);
}

#[test]
fn a_poll_that_finds_nothing_calls_the_fabric_once() {
    let (_a, mut b, _) = met(1);
    let polls = b.below().expect("a fabric").polls;
    assert_eq!(polled(&mut b), None);
    assert_eq!(b.below().expect("a fabric").polls, polls + 1);
}
