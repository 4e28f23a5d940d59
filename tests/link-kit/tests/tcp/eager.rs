//! Messages up to the longest frame over the link over TCP, each of which is sent without being asked for.

use std::time::{Duration, Instant};

use crate::pair::{open, options};
use engine::{Completion, Error};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::Link as _;
use testkit::{from, msg, pattern};

type Node = crate::node::Node<TcpLink>;

const LONGEST: usize = 256 << 10;
const LONG: usize = 200_000;
/// Messages under way at a time.
const DEEP: usize = 6;
/// More than the kernel has room for.
const MANY: usize = 200;
/// Far longer than anything here takes.
const MOST: Duration = Duration::from_secs(30);

fn railed() -> TcpOptions {
    let mut options = options("of eager frames");
    options.rails = 2;
    options.rails_at = vec![[127, 0, 0, 2].into()];
    options
}

/// Two that are connected, and have their rails, if they are to.
fn pair_of(how: fn() -> TcpOptions) -> [Node; 2] {
    let (a, b) = (open(how()), open(how()));
    let names = [a.addr(), b.addr()];
    let (mut a, mut b) = (Node::new(a, names[1]), Node::new(b, names[0]));
    let span = Span::leak(1);
    b.domain.recv(b.rx, &from(b.peer, &[span], 0)).expect("room");
    let to_b = a.peer;
    crate::node::post([&mut a, &mut b], |a| a.domain.send(a.ep, &msg(to_b, &[span], 0)));
    crate::node::complete([&mut a, &mut b], 1, 1);
    [a, b]
}

fn posted(node: &mut Node, span: Span, i: usize) -> bool {
    match node.domain.send(node.ep, &msg(node.peer, &[span], i)) {
        Ok(()) => true,
        Err(why) => {
            assert_eq!(why, Error::Again);
            false
        }
    }
}

/// The next completion of one, while the other one goes on.
fn next(of: &mut Node, other: &mut Node) -> Completion {
    let start = Instant::now();
    loop {
        other.domain.progress();
        if let Some(found) = of.next() {
            return found;
        }
        assert!(start.elapsed() < MOST, "nothing completes");
    }
}

#[test]
fn a_message_of_one_frame_is_sent_before_there_is_a_receive_for_it() {
    let [mut a, mut b] = pair_of(|| options("of eager frames"));
    let (src, dst) = (Span::leak(LONGEST), Span::leak(LONGEST));
    for i in 1..4 {
        hmem::write(&[src], 0, &pattern(LONGEST, i));
        assert!(posted(&mut a, src, i));
        let sent = next(&mut a, &mut b);
        assert_eq!((sent.ctx.0, sent.err), (i, None));
        b.domain.recv(b.rx, &from(b.peer, &[dst], i)).expect("room");
        let got = next(&mut b, &mut a);
        assert_eq!((got.ctx.0, got.len, got.err), (i, LONGEST, None));
        let mut bytes = vec![0; LONGEST];
        hmem::read(&[dst], 0, &mut bytes);
        assert!(bytes == pattern(LONGEST, i), "message {i}");
    }
}

/// Likewise of many, of which a receiver that is short of room keeps no more than it is to, and what was
/// under way.
#[test]
fn a_receiver_that_is_short_of_room_is_offered_messages() {
    let [mut a, mut b] = pair_of(|| options("of eager frames"));
    let (most, count) = (4 * LONGEST, 400);
    b.domain.set_unexpected_most(most);
    let src = Span::leak(LONGEST);
    hmem::write(&[src], 0, &pattern(LONGEST, 1));
    let (mut sent, mut last, start) = (0, 0, Instant::now());
    // A paused sender's posts are taken. The last ones are offered by then, and what was sent before has
    // come.
    while last < 100 {
        if sent < count && posted(&mut a, src, sent) {
            sent += 1;
        }
        let more = a.next().is_some() || sent < count;
        last = if more { 0 } else { last + 1 };
        b.domain.progress();
        assert!(start.elapsed() < MOST, "only {sent} were taken");
    }
    let dst = Span::leak(LONGEST);
    let kept = b.domain.unexpected();
    // What one socket holds is some MiB, of the hundred that were sent.
    assert!((most..most + (16 << 20)).contains(&kept), "{kept} bytes wait");
    for i in 0..count {
        b.domain.recv(b.rx, &from(b.peer, &[dst], i)).expect("room");
        let got = next(&mut b, &mut a);
        assert_eq!((got.ctx.0, got.len, got.err), (i, LONGEST, None));
    }
    assert_eq!(b.domain.unexpected(), 0);
}

/// Has the rail come up, and sends messages that go on it and on the connection, to so many receives: from
/// where, and how many.
fn under_way(a: &mut Node, b: &mut Node, receives: usize, most: usize) -> (Span, usize) {
    let start = Instant::now();
    while [&*a, &*b].iter().any(|n| !n.domain.ep_describe(n.ep, n.peer).unwrap().contains("over 2 rails")) {
        a.domain.progress();
        b.domain.progress();
        assert!(start.elapsed() < MOST, "no rail");
    }
    let (src, dst) = (Span::leak(LONG), Span::leak(LONG));
    for i in 0..receives {
        b.domain.recv(b.rx, &from(b.peer, &[dst], i)).expect("room");
    }
    let mut sent = 0;
    while sent < most && posted(a, src, sent) {
        // The first ones land, and of the others the kernel has what it has room for.
        if sent < DEEP {
            b.domain.progress();
        }
        sent += 1;
    }
    (src, sent)
}

/// The receiver ends: all that is under way to it ends, and what is posted then, too.
#[test]
fn a_receiver_that_ends_while_long_frames_are_on_rails() {
    for round in 0..12 {
        let [mut a, mut b] = pair_of(railed);
        let (src, mut posted) = under_way(&mut a, &mut b, round % (DEEP + 1), MANY);
        for _ in 0..round {
            b.domain.progress();
        }
        drop(b);
        let (start, mut refused) = (Instant::now(), false);
        while !refused || posted > 0 {
            if !refused {
                match a.domain.send(a.ep, &msg(a.peer, &[src], 100)) {
                    Ok(()) => posted += 1,
                    Err(why) => {
                        assert!(matches!(why, Error::Again | Error::Reset | Error::Refused), "{why:?}");
                        refused = why != Error::Again;
                    }
                }
            }
            while let Some(found) = a.next() {
                posted -= 1;
                refused |= found.ctx.0 == 100 && found.err.is_some();
            }
            assert!(start.elapsed() < MOST, "{posted} posted, refused: {refused}, round {round}");
        }
    }
}

/// The sender ends: receives that name it end, with the message or an error.
#[test]
fn a_sender_that_ends_while_long_frames_are_on_rails() {
    for round in 0..12 {
        let [mut a, mut b] = pair_of(railed);
        let (_, sent) = under_way(&mut a, &mut b, 2 * MANY, MANY);
        for _ in 0..round {
            a.domain.progress();
            b.domain.progress();
        }
        drop(a);
        let (start, mut ended, mut failed) = (Instant::now(), 0, 0);
        while ended < 2 * MANY {
            if let Some(found) = b.next() {
                ended += 1;
                failed += usize::from(found.err.is_some());
            }
            assert!(start.elapsed() < MOST, "{ended} receives have ended in round {round}");
        }
        assert!(failed >= 2 * MANY - sent, "{failed} failed of {sent} that were sent");
    }
}

/// Receives that are cancelled while frames for them are on their way end at once, or with their messages.
#[test]
fn receives_are_cancelled_while_long_frames_are_on_rails() {
    let [mut a, mut b] = pair_of(railed);
    for round in 0..12 {
        let (src, sent) = under_way(&mut a, &mut b, 2 * DEEP, DEEP);
        for _ in 0..round {
            b.domain.progress();
        }
        // One whose message has begun to come is not to be cancelled any more.
        let cancelled =
            (0..2 * DEEP).rev().filter(|i| b.domain.ep_cancel(b.ep, engine::Ctx(*i)).is_ok()).count();
        assert!(cancelled >= DEEP);
        let (start, mut ended, mut got) = (Instant::now(), 0, 0);
        while ended < 2 * DEEP {
            a.domain.progress();
            if let Some(found) = b.next() {
                ended += 1;
                got += usize::from(found.err.is_none());
            }
            assert!(start.elapsed() < MOST, "{ended} receives have ended in round {round}");
        }
        assert_eq!(got, 2 * DEEP - cancelled);
        // The other messages are there for receives that are posted now.
        for i in got..sent {
            b.domain.recv(b.rx, &from(b.peer, &[src], i)).expect("room");
            assert_eq!(next(&mut b, &mut a).err, None);
        }
        while a.next().is_some() {}
    }
}
