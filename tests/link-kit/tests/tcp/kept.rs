//! What the link over TCP says of frames that the kernel has no room for.

use crate::pair::{event, open, options, say, take, until};
use crate::sockets::narrow;
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink, Gone, Link, Parting, PeerId, Refused, Sent, Setting};
use link_kit::bytes;

/// Bytes of a frame that is kept where a longer one is refused.
const SHORT: usize = 10_000;

/// Two that have met, of which the first one says what it keeps.
fn pair_of(options: impl Fn() -> TcpOptions) -> (TcpLink, PeerId, TcpLink) {
    let (mut a, mut b) = (open(options()), open(options()));
    a.set(Setting::Kept);
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
    (a, to_b, b)
}

/// Sends until something is kept. How many frames.
fn send_until_kept(a: &mut TcpLink, to_b: PeerId) -> usize {
    for sent in 0.. {
        match a.send(to_b, &bytes(SHORT, sent), &[], 0, 0) {
            Ok(Sent::Done) => assert!(!a.keeps(to_b), "frame {sent}"),
            Ok(Sent::Kept) => {
                assert!(a.keeps(to_b));
                return sent + 1;
            }
            Err(why) => panic!("{why:?}"),
        }
    }
    0
}

/// Takes all frames, the last ones without a call of the sender.
fn take_all(a: &mut TcpLink, to_b: PeerId, b: &mut TcpLink, sent: usize) {
    let mut got = 0;
    until("all to leave the sender", || {
        assert!(a.poll().is_none(), "nothing was to come");
        if a.keeps(to_b) {
            assert_eq!(take(b, a).1, bytes(SHORT, got), "frame {got} of {sent}");
            got += 1;
        }
        !a.keeps(to_b)
    });
    let mut c = open(options("key"));
    while got < sent {
        assert_eq!(take(b, &mut c).1, bytes(SHORT, got), "frame {got} of {sent}");
        got += 1;
    }
}

#[test]
fn what_is_not_kept_any_more_arrives_without_another_call() {
    let (mut a, to_b, mut b) = pair_of(|| options("key"));
    for _ in 0..3 {
        let sent = send_until_kept(&mut a, to_b);
        take_all(&mut a, to_b, &mut b, sent);
    }
}

#[test]
fn a_link_that_was_not_asked_does_not_say_what_it_keeps() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    until("a full connection", || match a.send(to_b, &bytes(SHORT, 1), &[], 0, 0) {
        Ok(sent) => {
            assert_eq!(sent, Sent::Done);
            false
        }
        Err(why) => {
            assert_eq!(why, Refused::Busy);
            true
        }
    });
    assert!(a.keeps(to_b));
}

#[test]
fn what_is_kept_of_a_peer_that_ends_is_lost_and_else_not() {
    for lost in [true, false] {
        let (mut a, to_b, mut b) = pair_of(|| options("key"));
        let sent = send_until_kept(&mut a, to_b);
        if !lost {
            take_all(&mut a, to_b, &mut b, sent);
        }
        drop(b);
        let mut c = open(options("key"));
        assert!(matches!(event(&mut a, &mut c), Event::Closed(peer, Gone::Reset) if peer == to_b));
        assert_eq!((a.keeps(to_b), a.keeps(to_b)), (lost, false), "told once");
    }
}

#[test]
fn what_is_kept_of_a_peer_that_is_cut_off_is_lost_and_kept_until_its_end() {
    let (mut a, to_b, mut b) = pair_of(|| options("key"));
    send_until_kept(&mut a, to_b);
    a.dismiss(to_b, Parting::CutOff);
    assert_eq!((a.keeps(to_b), a.keeps(to_b)), (true, true));
    assert!(matches!(event(&mut a, &mut b), Event::Closed(peer, Gone::Denied) if peer == to_b));
    assert_eq!((a.keeps(to_b), a.keeps(to_b)), (true, false), "told once");
}

#[test]
fn what_a_rail_keeps_is_kept_though_the_connection_has_room() {
    // An address of this test's own.
    let rail = [127, 0, 0, 77];
    let railed = || {
        let mut options = options("key");
        (options.rails, options.rails_at, options.striped) = (2, vec![rail.into()], 1);
        options
    };
    let (mut a, to_b, mut b) = pair_of(railed);
    until("rails", || {
        assert!(a.poll().is_none() && b.poll().is_none(), "nothing was to come");
        a.describe(to_b).contains("over 2 rails")
    });
    assert!(narrow(rail, 1) >= 2);
    let sent = send_until_kept(&mut a, to_b);
    assert!(sent < 100, "the connection has room for more than {sent} frames");
    take_all(&mut a, to_b, &mut b, sent);
}
