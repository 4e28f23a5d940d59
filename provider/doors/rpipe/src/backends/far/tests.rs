//! Peers that do not receive, that have left, and that have ended, over shared memory and over TCP.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::super::reach::Reach;
use super::Far;
use crate::{Event, Rank, Settings};

/// After so long a test fails.
const LIMIT: Duration = Duration::from_secs(60);
/// More than a ring, or a connection, holds.
const MANY: u32 = 40_000;

fn pair(shm: bool) -> [Far; 2] {
    let reach = if shm { Reach::Memory } else { Reach::Tcp };
    let [mut a, b] = [0, 1].map(|rank| Far::open(rank, &reach, &Settings::default()).unwrap());
    a.connect(1, b.addr()).unwrap();
    [a, b]
}

/// Numbers of the messages that have come, and whether the peer has ended since.
fn hear(far: &mut Far, of: Rank, heard: &mut Vec<u32>) -> bool {
    let mut events = Vec::new();
    far.progress(&mut events, &mut 0).unwrap();
    events.into_iter().any(|event| match event {
        Event::Control { from, bytes, .. } => {
            assert_eq!(from, of);
            heard.push(u32::from_le_bytes(bytes[..4].try_into().unwrap()));
            false
        }
        Event::Gone { peer, .. } => peer == of,
        other => panic!("{other:?}"),
    })
}

fn say(far: &mut Far, to: Rank, number: u32) {
    let mut bytes = vec![0; 400];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    far.send(to, &bytes, &[]).unwrap();
}

#[test]
fn messages_to_a_peer_that_makes_no_progress_wait_in_order_and_their_sender_goes_on() {
    for shm in [true, false] {
        let [mut a, mut b] = pair(shm);
        let (report, reported) = mpsc::channel();
        thread::spawn(move || {
            (0..MANY).for_each(|number| say(&mut a, 1, number));
            report.send(a).unwrap();
        });
        let mut a = reported.recv_timeout(LIMIT).expect("a call waits for a peer that makes no progress");
        assert!(a.outbox.has(1), "nothing had to wait");
        let (mut heard, until) = (Vec::new(), Instant::now() + LIMIT);
        while heard.len() < MANY as usize {
            assert!(!hear(&mut a, 1, &mut Vec::new()) && !hear(&mut b, 0, &mut heard));
            assert!(Instant::now() < until, "only {} messages have come", heard.len());
        }
        assert!(heard.into_iter().eq(0..MANY));
        assert!(a.outbox.is_empty());
    }
}

#[test]
fn a_message_to_a_peer_that_has_left_waits_for_nothing_and_its_end_is_reported() {
    for shm in [true, false] {
        let [mut a, b] = pair(shm);
        drop(b);
        say(&mut a, 1, 0);
        assert!(a.outbox.has(1), "the call has waited until it was known that the peer has left");
        let until = Instant::now() + LIMIT;
        while !hear(&mut a, 1, &mut Vec::new()) {
            assert!(Instant::now() < until, "its end is not reported");
        }
        assert!(a.outbox.is_empty() && a.send(1, b"more", &[]).is_err());
    }
}

#[test]
fn what_a_peer_has_sent_before_it_ended_comes_before_its_end() {
    for shm in [true, false] {
        let [mut a, mut b] = pair(shm);
        let (mut heard, until) = (Vec::new(), Instant::now() + LIMIT);
        // So that both are connected.
        say(&mut a, 1, 0);
        while heard.is_empty() {
            assert!(!hear(&mut a, 1, &mut Vec::new()) && !hear(&mut b, 0, &mut heard));
        }
        for number in 0..200 {
            say(&mut b, 0, number);
        }
        for _ in 0..1000 {
            hear(&mut b, 0, &mut Vec::new());
        }
        assert!(b.outbox.is_empty());
        drop(b);
        heard.clear();
        // What is sent to it now fails. Over TCP that would end what its kernel has not delivered yet.
        let wake = |a: &mut Far| {
            if shm {
                a.wake(1).unwrap()
            }
        };
        wake(&mut a);
        while !hear(&mut a, 1, &mut heard) {
            wake(&mut a);
            assert!(Instant::now() < until, "its end is not reported");
        }
        assert!(
            heard.iter().copied().eq(0..200),
            "of 200 messages {} came before its end, {shm}",
            heard.len()
        );
    }
}
