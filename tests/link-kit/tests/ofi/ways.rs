//! Which way frames of the link over a provider below go, and what is said of that.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fake::{Fake, FakeNet};
use crate::support::{Driven, OfiHarness, Over};
use link_api::{Event, FrameLink as _, Gone, Link as _, PeerId, Refused, Sent};
use link_kit::Harness as _;

type End = Driven<Over<Fake>>;

/// Endpoints whose fabrics are changed by `each`, which is told the number of each.
fn harness(mut each: impl FnMut(usize, &mut Fake) -> bool + 'static) -> OfiHarness<Fake> {
    let (net, mut n) = (FakeNet::default(), 0);
    OfiHarness::new(move || {
        let mut fake = net.open();
        n += 1;
        if each(n - 1, &mut fake) { Ok(fake) } else { Err("it is not to have one".into()) }
    })
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        sleep(Duration::from_micros(50));
    }
}

/// Sends a frame and receives it; how often either side was told of another path.
fn exchange(from: &mut End, to: PeerId, at: &mut End, bytes: &[u8]) -> usize {
    let (mut changes, mut sent, mut got) = (0, false, None);
    until("a frame", || {
        if !sent {
            sent = match from.send(to, bytes, &[], 0, 0) {
                Ok(Sent::Done) => true,
                other => {
                    assert_eq!(other, Err(Refused::Busy));
                    false
                }
            };
        }
        for link in [&mut *from, &mut *at] {
            match link.poll() {
                Some(Event::PathChanged(_)) => changes += 1,
                Some(Event::Frame(frame)) => {
                    let mut copy = vec![0; frame.len];
                    link.read(&frame, 0, &mut copy);
                    link.release(frame);
                    got = Some(copy);
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        got.is_some()
    });
    assert_eq!(got.as_deref(), Some(bytes));
    changes
}

/// Two ends that talk both ways; how often they were told of another path, and what they say of it.
fn talk(h: &mut OfiHarness<Fake>) -> (usize, [String; 2]) {
    let (mut a, mut b) = (h.open(), h.open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    let mut changes = exchange(&mut a, to_b, &mut b, b"hello");
    changes += exchange(&mut b, to_a, &mut a, b"hi");
    for i in 0..100u8 {
        changes += exchange(&mut a, to_b, &mut b, &[i; 500]);
    }
    (changes, [a.describe(to_b), b.describe(to_a)])
}

#[test]
fn frames_go_by_the_fabric_where_both_have_it() {
    let (changes, lines) = talk(&mut harness(|_, _| true));
    assert_eq!(changes, 0);
    assert!(
        lines.iter().all(|line| line.starts_with("fake ") && line.contains("set up over tcp")),
        "{lines:?}"
    );
}

#[test]
fn frames_go_by_tcp_where_one_has_none() {
    for without in [0, 1] {
        let (changes, lines) = talk(&mut harness(move |n, _| n != without));
        assert_eq!(changes, 1, "the side that has one");
        assert!(lines.iter().all(|line| line.starts_with("connected")), "{lines:?}");
        assert!(lines[without].contains("it is not to have one"), "{lines:?}");
    }
}

#[test]
fn frames_go_by_tcp_where_fabrics_are_of_two_sorts() {
    let (changes, lines) = talk(&mut harness(|n, fake| {
        fake.name = if n == 0 { "fake" } else { "other" };
        true
    }));
    assert_eq!(changes, 2);
    assert!(lines.iter().all(|line| line.starts_with("connected")), "{lines:?}");
    assert!(lines.concat().contains("it has other, and this is fake"), "{lines:?}");
}

#[test]
fn frames_go_by_tcp_where_nothing_gets_through() {
    for deaf in [0, 1] {
        let mut h = harness(move |n, fake| {
            fake.deaf = n == deaf;
            true
        });
        h.patience = Duration::from_secs(1);
        let (changes, lines) = talk(&mut h);
        assert_eq!(changes, 2);
        assert!(lines.concat().contains("no message gets there and back"), "{lines:?}");
    }
}

#[test]
fn a_peer_is_unreachable_where_tcp_may_not_be_used() {
    let mut h = harness(|n, fake| {
        fake.deaf = n == 1;
        true
    });
    h.fallback = false;
    h.patience = Duration::from_secs(1);
    let (mut a, mut b) = (h.open(), h.open());
    let to_b = a.peer(&b.addr());
    let mut ends = Vec::new();
    until("the end", || {
        let _ = a.send(to_b, b"hello", &[], 0, 0);
        ends.extend(a.poll());
        assert!(!matches!(b.poll(), Some(Event::Frame(_))), "a frame by a way that was not allowed");
        !ends.is_empty()
    });
    // Whichever side decides; the other one sees an end.
    assert!(
        matches!(ends[..], [Event::Closed(peer, Gone::Unreachable | Gone::Reset)] if peer == to_b),
        "{ends:?}"
    );
}

/// Two ends that talk by the fabric alone, whose first messages are lost: those of one side, of the other,
/// and of both.
fn first_messages_are_lost(lose: fn(&mut Fake)) {
    for which in [[true, false], [false, true], [true, true]] {
        let mut h = harness(move |n, fake| {
            if which[n] {
                lose(fake);
            }
            true
        });
        h.fallback = false;
        let (changes, lines) = talk(&mut h);
        assert_eq!(changes, 0);
        assert!(lines.iter().all(|line| line.starts_with("fake ")), "{lines:?}");
    }
}

/// A provider's connection may be lost while two endpoints meet that live.
#[test]
fn messages_that_fail_while_two_meet_are_sent_again() {
    first_messages_are_lost(|fake| fake.fails = 2);
}

/// Nor need its end be told.
#[test]
fn messages_that_are_lost_without_a_word_while_two_meet_are_sent_again() {
    first_messages_are_lost(|fake| fake.drops = 1);
}

#[test]
fn frames_go_by_tcp_where_messages_fail_all_the_time() {
    let start = Instant::now();
    let (changes, lines) = talk(&mut harness(|n, fake| {
        fake.failing = n == 0;
        true
    }));
    assert_eq!(changes, 2);
    assert!(lines.iter().all(|line| line.starts_with("connected")), "{lines:?}");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "the time in which it has to turn out is no time to wait"
    );
}

#[test]
fn a_peer_is_unreachable_where_messages_fail_all_the_time() {
    let mut h = harness(|_, fake| {
        fake.failing = true;
        true
    });
    h.fallback = false;
    h.patience = Duration::from_secs(1);
    let (mut a, mut b) = (h.open(), h.open());
    let (to_b, start) = (a.peer(&b.addr()), Instant::now());
    let mut end = None;
    until("the end", || {
        let _ = a.send(to_b, b"hello", &[], 0, 0);
        assert!(!matches!(b.poll(), Some(Event::Frame(_))), "a frame by a way that was not allowed");
        end = end.take().or_else(|| a.poll());
        end.is_some()
    });
    assert!(matches!(end, Some(Event::Closed(peer, _)) if peer == to_b), "{end:?}");
    assert!(start.elapsed() >= h.patience, "it was not tried again");
}

/// Two that connect to each other at once may lose both connections.
#[test]
fn one_side_alone_sends_before_it_has_received() {
    let mut h = harness(|_, fake| {
        fake.deaf = true;
        true
    });
    let (mut a, mut b) = (h.open(), h.open());
    let to_b = a.peer(&b.addr());
    let mut sent = [0; 2];
    until("a message", || {
        assert_eq!(a.send(to_b, b"hello", &[], 0, 0), Err(Refused::Busy));
        assert!(a.poll().is_none() && b.poll().is_none());
        sent = [&mut a, &mut b].map(|end| end.with(|l| l.below().expect("a fabric").sent));
        sent != [0, 0]
    });
    sleep(Duration::from_millis(200));
    assert!(a.poll().is_none() && b.poll().is_none());
    let sent = [&mut a, &mut b].map(|end| end.with(|l| l.below().expect("a fabric").sent));
    assert!(sent.contains(&0), "{sent:?}");
}

#[test]
fn a_fabric_that_fails_ends_its_peers() {
    let mut h = harness(|_, _| true);
    let (mut a, mut b) = (h.open(), h.open());
    let to_b = a.peer(&b.addr());
    exchange(&mut a, to_b, &mut b, b"hello");
    a.with(|l| l.below().expect("a fabric").failing = true);
    let mut end = None;
    until("the end", || {
        let _ = a.send(to_b, b"more", &[], 0, 0);
        end = end.take().or_else(|| a.poll());
        end.is_some()
    });
    assert!(matches!(end, Some(Event::Closed(peer, Gone::Reset)) if peer == to_b), "{end:?}");
}

#[test]
fn a_fabric_that_is_dead_ends_its_peers_and_tcp_follows() {
    let mut h = harness(|_, _| true);
    let (mut a, mut b) = (h.open(), h.open());
    let to_b = a.peer(&b.addr());
    exchange(&mut a, to_b, &mut b, b"hello");
    a.with(|l| l.below().expect("a fabric").dead = true);
    let mut end = None;
    until("the end", || {
        end = end.take().or_else(|| a.poll());
        end.is_some()
    });
    assert!(matches!(end, Some(Event::Closed(peer, Gone::Reset)) if peer == to_b), "{end:?}");
    until("the end there", || matches!(b.poll(), Some(Event::Closed(..))));
    assert_eq!(exchange(&mut a, to_b, &mut b, b"again"), 2, "both are told of another path");
}

/// Names of links, whether they are to be had, and words.
fn standing(end: &End) -> Vec<(&'static str, bool, String)> {
    let words = |offers: Result<String, String>| offers.unwrap_or_else(|why| why);
    end.standing().into_iter().map(|s| (s.link, s.offers.is_ok(), words(s.offers))).collect()
}

#[test]
fn both_ways_are_told_of_with_what_is_lacking() {
    let mut h = harness(|n, _| n < 2);
    let with = h.open();
    let all = standing(&with);
    assert_eq!(all.iter().map(|s| (s.0, s.1)).collect::<Vec<_>>(), [("ofi", true), ("tcp", true)]);
    assert!(all[0].2.starts_with("over fake (") && !all[0].2.contains("refused"), "{all:?}");
    with.with(|l| l.note_refused(&["cxi: not there".into(), "efa: not there".into()]));
    let words = &standing(&with)[0].2;
    assert!(words.ends_with("; refused before it: cxi: not there; efa: not there"), "{words}");
    h.fallback = false;
    let all = standing(&h.open());
    assert_eq!(all.iter().map(|s| (s.0, s.1)).collect::<Vec<_>>(), [("ofi", true), ("tcp", false)]);
    assert!(all[1].2.starts_with("only meets peers for ofi"), "{all:?}");
    h.fallback = true;
    let without = h.open();
    without.with(|l| l.note_refused(&["cxi: not there".into()]));
    let all = standing(&without);
    assert_eq!((all[0].0, all[0].1, &*all[0].2), ("ofi", false, "it is not to have one"));
    assert!(all[1].1, "{all:?}");
}
