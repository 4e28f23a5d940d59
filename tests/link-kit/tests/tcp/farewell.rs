//! What an endpoint over TCP has sent arrives after it has closed, whatever its receiver sends to it
//! meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::pair::{PATIENCE, open, options, say, take, until};
use crate::played::railed;
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink, Gone, Link, PeerId, Sent, Setting};
use link_kit::bytes;

/// An endpoint sends as many frames as find room, and closes once none of them is kept in the process; the
/// other one sends to it all the while, and begins to receive when it has begun to close. Returns how many
/// frames were sent, and came.
fn part(len: usize, rails: usize) -> (usize, usize) {
    let (mut a, mut b) = (open(railed(rails)), open(railed(rails)));
    a.set(Setting::Kept);
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    let (to_a, _) = take(&mut b, &mut a);
    let all = format!("over {rails} rails");
    until("rails", || {
        assert!(a.poll().is_none() && b.poll().is_none(), "nothing was to come");
        rails == 1 || a.describe(to_b).contains(&all) && b.describe(to_a).contains(&all)
    });
    let mut sent = 0;
    while a.send(to_b, &bytes(len, sent), &[], 0, 0).is_ok() {
        sent += 1;
    }
    let (mut got, closing) = (0, AtomicBool::new(false));
    let receive = |b: &mut TcpLink, got: &mut usize| match b.poll() {
        Some(Event::Frame(frame)) => {
            let mut out = vec![0; frame.len];
            assert_eq!(b.read(&frame, 0, &mut out), len);
            assert!(frame.from == to_a && out == bytes(len, *got), "frame {got}");
            b.release(frame);
            *got += 1;
            true
        }
        Some(Event::Closed(peer, why)) => {
            assert_eq!((peer, why), (to_a, Gone::Reset));
            false
        }
        Some(other) => panic!("{other:?}"),
        None => true,
    };
    // All that may complete: it is with the kernel.
    until("room", || {
        receive(&mut b, &mut got);
        a.poll().is_none() && !a.keeps(to_b)
    });
    thread::scope(|s| {
        s.spawn(|| {
            closing.store(true, Ordering::SeqCst);
            drop(a);
        });
        until("the beginning", || closing.load(Ordering::SeqCst));
        let start = Instant::now();
        loop {
            // What is refused shows that the other one has closed; what came before is to be had all the
            // same.
            let _ = b.send(to_a, b"back", &[], 0, 0);
            thread::sleep(Duration::from_micros(200));
            if !receive(&mut b, &mut got) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "no end after {got} of {sent}");
        }
    });
    (sent, got)
}

/// What was sent arrives though the receiver sends to the one that closes.
#[test]
fn frames_arrive_though_the_receiver_sends_to_the_closing_sender() {
    for (len, rails) in [(1_000, 1), (100_000, 1), (200_000, 1), (100_000, 3), (200_000, 3)] {
        let (sent, got) = part(len, rails);
        assert!(sent > 1 && sent == got, "{got} of {sent} frames of {len} bytes, {rails} connections");
    }
}

#[test]
fn two_that_close_at_once_with_much_under_way_do_not_wait_for_each_other() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    let (to_a, _) = take(&mut b, &mut a);
    let full = |link: &mut TcpLink, to: PeerId| {
        while link.send(to, &bytes(60_000, 0), &[], 0, 0) == Ok(Sent::Done) {}
    };
    full(&mut a, to_b);
    full(&mut b, to_a);
    let start = Instant::now();
    thread::scope(|s| {
        s.spawn(|| drop(a));
        s.spawn(|| drop(b));
    });
    assert!(start.elapsed() < TcpOptions::new(wire::session::JobKey::from_secret(b"key")).linger);
}

#[test]
fn a_peer_that_receives_nothing_is_not_waited_for_beyond_the_limit() {
    let linger = Duration::from_millis(200);
    let (mut a, mut b) = (open(TcpOptions { linger, ..options("key") }), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    take(&mut b, &mut a);
    while a.send(to_b, &bytes(60_000, 0), &[], 0, 0) == Ok(Sent::Done) {}
    let start = Instant::now();
    drop(a);
    assert!(start.elapsed() >= linger, "closed with frames that nothing has taken");
    assert!(start.elapsed() < PATIENCE);
}
