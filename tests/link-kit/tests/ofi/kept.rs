//! What the link over a provider below says of frames that this provider holds.

use std::time::Duration;

use crate::fake::{Fake, FakeNet};
use crate::left::{connect, fill, next, until, what_is_not_kept_arrives};
use below::{BelowLink, BelowOptions};
use link::{TcpLink, TcpOptions};
use link_api::{
    Event, FrameLink as _, Gone, Link as _, Parting, PeerId, Refused, Sent, SleepLink as _, WaitFd,
};
use link_kit::{bytes, is_readable};
use wire::session::JobKey;

type Over = BelowLink<TcpLink, Fake>;

/// Bytes of a frame.
const LEN: usize = 10_000;

/// Frames that both sides send.
const FRAMES: u32 = 1000;

fn open(fabric: Result<Fake, String>) -> Over {
    open_with(fabric, Duration::from_secs(5))
}

/// Where a peer whose frame was lost is given up after this.
fn open_with(fabric: Result<Fake, String>, grace: Duration) -> Over {
    let key = JobKey::from_secret(b"of what is kept");
    let at = "127.0.0.1:0".parse().expect("an address");
    let base = TcpLink::bind(at, TcpOptions::new(key.clone())).expect("a free name");
    let mut options = BelowOptions::new(key);
    options.grace = grace;
    BelowLink::new(base, fabric, options).expect("descriptors")
}

/// Of the first one messages leave only when it is called.
fn slow_to(net: &FakeNet) -> (Over, PeerId, Over) {
    slow_with(net, Duration::from_secs(5))
}

fn slow_with(net: &FakeNet, grace: Duration) -> (Over, PeerId, Over) {
    let mut fake = net.open();
    fake.slow = true;
    let (mut a, mut b) = (open_with(Ok(fake), grace), open(Ok(net.open())));
    let to_b = connect(&mut a, &mut b);
    (a, to_b, b)
}

#[test]
fn frames_that_are_not_kept_any_more_arrive_without_another_call() {
    let (mut a, to_b, mut b) = slow_to(&FakeNet::default());
    for _ in 0..3 {
        what_is_not_kept_arrives(&mut a, &mut b, to_b, |_| LEN);
    }
}

#[test]
fn a_frame_is_kept_until_the_provider_below_tells_of_its_end() {
    let (mut a, to_b, mut b) = slow_to(&FakeNet::default());
    assert!(!a.keeps(to_b));
    assert_eq!(a.send(to_b, b"kept", &[], 0, 0), Ok(Sent::Kept));
    assert!(a.keeps(to_b) && next(&mut b).is_none());
    assert!(!a.arm(), "nothing else wakes it");
    until("its end", || {
        assert!(next(&mut a).is_none());
        !a.keeps(to_b)
    });
    assert_eq!(next(&mut b).as_deref(), Some(&b"kept"[..]));
}

/// What was sent arrives once it is settled, and what came meanwhile is polled later.
/// As at exit(3), where nothing is handed out, and handlers that run later may go on.
#[test]
fn settled_sends_arrive_and_arrivals_meanwhile_are_polled_later() {
    let (mut a, to_b, mut b) = slow_to(&FakeNet::default());
    let to_a = b.peer(&a.addr());
    for round in 0..3u8 {
        for n in 0..4 {
            assert_eq!(a.send(to_b, &[round, n], &[], 0, 0), Ok(Sent::Kept));
        }
        for n in 0..4 {
            assert_eq!(b.send(to_a, &[round, n], &[], 0, 0), Ok(Sent::Done));
        }
        assert!(!a.settle(false), "nothing has been taken");
        let mut came = Vec::new();
        until("all to arrive", || {
            came.extend(next(&mut b));
            a.settle(false)
        });
        until("all to be polled", || {
            came.extend(next(&mut b));
            came.len() == 4
        });
        assert_eq!(came, (0..4).map(|n| vec![round, n]).collect::<Vec<_>>());
        let mut kept = Vec::new();
        until("what came meanwhile", || {
            kept.extend(next(&mut a));
            kept.len() == 4
        });
        assert_eq!(kept, (0..4).map(|n| vec![round, n]).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_never_taken_is_settled_no_more() {
    let (mut a, to_b, b) = slow_to(&FakeNet::default());
    assert_eq!(a.send(to_b, b"lost", &[], 0, 0), Ok(Sent::Kept));
    assert!(!a.settle(false) && !a.settle(true), "a peer that makes no call");
    drop(b);
    until("its end", || a.settle(false));
    assert!(matches!(a.poll(), Some(Event::Closed(peer, Gone::Reset)) if peer == to_b));
}

#[test]
fn a_link_that_was_not_asked_does_not_say_what_it_keeps() {
    let net = FakeNet::default();
    let (mut a, mut b) = (open(Ok(net.open())), open(Ok(net.open())));
    b.below().expect("a fabric").slow = true;
    connect(&mut a, &mut b);
    let to_a = b.peer(&a.addr());
    until("a frame to be sent", || {
        assert!(next(&mut a).is_none() && next(&mut b).is_none());
        b.send(to_a, b"kept", &[], 0, 0) != Err(Refused::Busy)
    });
    assert_eq!(b.send(to_a, b"kept", &[], 0, 0), Ok(Sent::Done));
    assert!(b.keeps(to_a));
}

#[test]
fn a_frame_that_has_come_does_not_wait_for_another_call_of_the_provider() {
    let net = FakeNet::default();
    let (mut a, mut b) = (open(Ok(net.open())), open(Ok(net.open())));
    let to_b = connect(&mut a, &mut b);
    for n in 0..4 {
        until("room", || {
            assert!(next(&mut a).is_none() && next(&mut b).is_none());
            a.send(to_b, &[n], &[], 0, 0) == Ok(Sent::Done)
        });
        let before = b.below().expect("a fabric").polls;
        let found = next(&mut b);
        assert_eq!((found, b.below().expect("a fabric").polls - before), (Some(vec![n]), 1));
    }
}

/// A sender that nothing else is said to learns of room by messages of their own, each of which takes what a
/// frame takes.
#[test]
fn room_is_told_of_by_halves() {
    let net = FakeNet::default();
    let (mut a, mut b) = (open(Ok(net.open())), open(Ok(net.open())));
    let to_b = connect(&mut a, &mut b);
    let to_a = b.peer(&a.addr());
    let said = |b: &Over| b.next_mark(to_a).expect("a channel").1.number;
    let before = said(&b);
    for n in 0..160 {
        until("room", || {
            assert!(next(&mut a).is_none());
            a.send(to_b, &[n], &[], 0, 0) != Err(Refused::Busy)
        });
        until("the frame", || next(&mut b).is_some());
    }
    let told = said(&b) - before;
    assert!((10..=20).contains(&told), "{told} messages for 160 frames, of which 16 may be under way");
    // What is not told of does not keep the sender from having much room.
    for n in 0..16 {
        until("frames to be taken", || next(&mut a).is_none() && a.has_room_to_spare(to_b, 0));
        until("room", || a.send(to_b, &[n], &[], 0, 0) != Err(Refused::Busy));
        until("the frame", || next(&mut b).is_some());
    }
}

/// Each finds what it was woken for by a later look.
#[test]
fn sleeps_that_end_with_a_look_too_early_are_not_in_vain() {
    let net = FakeNet::default();
    let hasty = || {
        let mut fake = net.open();
        fake.hasty = true;
        open(Ok(fake))
    };
    let (mut a, mut b) = (hasty(), hasty());
    let to_b = connect(&mut a, &mut b);
    let to_a = b.peer(&a.addr());
    let (mut sent, mut got) = ([0u32; 2], [0u32; 2]);
    until("all frames of both", || {
        for (at, (link, to)) in [(&mut a, to_b), (&mut b, to_a)].into_iter().enumerate() {
            while sent[at] < FRAMES && link.send(to, &sent[at].to_ne_bytes(), &[], 0, 0) != Err(Refused::Busy)
            {
                sent[at] += 1;
            }
            if link.is_armed()
                && !is_readable(link.wait_fd(WaitFd::All).expect("it can sleep"), Duration::ZERO)
            {
                continue;
            }
            while let Some(frame) = next(link) {
                assert_eq!(frame, got[at].to_ne_bytes());
                got[at] += 1;
            }
            link.arm();
        }
        got == [FRAMES; 2]
    });
    assert_eq!(
        (a.wait_fd(WaitFd::Worn), b.wait_fd(WaitFd::Worn)),
        (None, None),
        "a descriptor that tells of what comes is watched"
    );
}

/// How a peer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its process was killed, as far as can be seen.
    Killed,
    Closed,
}

#[test]
fn what_is_kept_of_a_peer_that_ends_is_lost_and_else_not() {
    for (end, kept, lost) in
        [(End::Killed, true, true), (End::Killed, false, false), (End::Closed, true, false)]
    {
        let (mut a, to_b, mut b) = slow_to(&FakeNet::default());
        let to_a = b.peer(&a.addr());
        if kept {
            assert!(fill(&mut a, to_b, |_| LEN) > 1);
        } else {
            what_is_not_kept_arrives(&mut a, &mut b, to_b, |_| LEN);
        }
        match end {
            End::Killed => b.dismiss(to_a, Parting::CutOff),
            End::Closed => drop(b),
        }
        let closed = |event| matches!(event, Some(Event::Closed(peer, Gone::Reset)) if peer == to_b);
        // What is kept leaves one by one: the end comes before.
        a.below().expect("a fabric").stuck = true;
        until("its end", || closed(a.poll()));
        assert_eq!((a.keeps(to_b), a.keeps(to_b)), (lost, false), "{end:?}, {kept}: told once");
    }
}

#[test]
fn what_is_kept_of_a_peer_that_is_cut_off_is_lost_and_kept_until_its_end() {
    let (mut a, to_b, _b) = slow_to(&FakeNet::default());
    assert!(fill(&mut a, to_b, |_| LEN) > 1);
    a.dismiss(to_b, Parting::CutOff);
    assert_eq!((a.keeps(to_b), a.keeps(to_b)), (true, true));
    until("its end", || matches!(a.poll(), Some(Event::Closed(peer, _)) if peer == to_b));
    assert_eq!((a.keeps(to_b), a.keeps(to_b)), (true, false), "told once");
}

/// The provider below tells that a frame did not arrive: it is lost, and not complete, whether its peer ends
/// or is given up.
#[test]
fn a_frame_that_the_provider_below_loses_is_kept_until_its_peer_ends() {
    for (ends, grace) in [(true, Duration::from_secs(100)), (false, Duration::from_millis(100))] {
        let (mut a, to_b, mut b) = slow_with(&FakeNet::default(), grace);
        a.below().expect("a fabric").failing = true;
        assert_eq!(a.send(to_b, b"lost", &[], 0, 0), Ok(Sent::Kept));
        let mut end = None;
        for _ in 0..100 {
            assert!(a.keeps(to_b), "it was lost");
            end = end.or(a.poll());
        }
        let to_a = b.peer(&a.addr());
        if ends {
            b.dismiss(to_a, Parting::CutOff);
        }
        until("its end", || {
            end = end.take().or_else(|| a.poll());
            matches!(end, Some(Event::Closed(peer, Gone::Reset)) if peer == to_b)
        });
        assert_eq!((a.keeps(to_b), a.keeps(to_b)), (true, false), "told once");
    }
}

/// Frames of a peer that the fabric does not lead to go by its connection.
#[test]
fn what_waits_for_room_on_the_connection_is_kept() {
    let net = FakeNet::default();
    let (mut a, mut b) = (open(Ok(net.open())), open(Err("it is to have none".into())));
    let to_b = connect(&mut a, &mut b);
    let mut sent = 0;
    until("a full connection", || {
        sent += 1;
        match a.send(to_b, &bytes(LEN, sent - 1), &[], 0, 0) {
            Ok(sent) => sent == Sent::Kept,
            Err(why) => panic!("{why:?}"),
        }
    });
    assert!(a.keeps(to_b));
    let mut got = 0;
    until("all to leave the sender", || {
        assert!(next(&mut a).is_none());
        if let Some(frame) = next(&mut b) {
            assert!(frame == bytes(LEN, got), "frame {got}");
            got += 1;
        }
        !a.keeps(to_b)
    });
    until("all to come", || {
        got += usize::from(next(&mut b).is_some());
        got == sent
    });
    drop(b);
    until("its end", || matches!(a.poll(), Some(Event::Closed(peer, Gone::Reset)) if peer == to_b));
    assert!(!a.keeps(to_b), "all has arrived");
}
