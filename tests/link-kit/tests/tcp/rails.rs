//! Connections with rails: what goes on them, and what is refused of peers and strangers that say to have
//! some.

use std::io::Write as _;
use std::net::TcpStream;

use crate::caller::{call, read};
use crate::pair::{event, open, options, say, take, until};
use crate::played::{Played, filled, railed, with_rail};
use crate::sockets::cut;
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink, Gone, Link, PeerId, Refused, Sent, SleepLink};
use wire::Addr;
use wire::session::{Caller, Hello, JobKey, Keys, MAC, Next, RECORD, RailNote, Role, VERDICT};

const LONG: usize = 200_000;

/// Two that are connected, the first one by its own call, and have as many as they say.
fn pair_of(a: TcpOptions, b: TcpOptions, rails: &str) -> (TcpLink, PeerId, TcpLink, PeerId) {
    let (mut a, mut b) = (open(a), open(b));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
    let to_a = b.peer(&a.addr());
    until("rails", || {
        assert!(a.poll().is_none(), "nothing was to come");
        assert!(b.poll().is_none(), "nothing was to come");
        a.describe(to_b).contains(rails) && b.describe(to_a).contains(rails)
    });
    (a, to_b, b, to_a)
}

/// Sends frames of all lengths, all at once, while both go on; each has to arrive, in order and whole.
fn stream(from: &mut TcpLink, to: PeerId, other: &mut TcpLink, count: usize) {
    let len = |i: usize| [8, LONG, 70_000, 65_536, 1, 250_000, 30_000][i % 7];
    let (mut sent, mut got, body) = (0, 0, [Span::leak(250_000)]);
    until("all frames", || {
        if sent < count {
            hmem::write(&body, 0, &filled(sent, len(sent)));
            match from.send(to, &[], &body, 0, len(sent)) {
                Ok(Sent::Done) => sent += 1,
                other => assert_eq!(other, Err(Refused::Busy)),
            }
        }
        from.progress();
        match other.poll() {
            Some(Event::Frame(frame)) => {
                let mut out = vec![0; frame.len];
                assert_eq!(other.read(&frame, 0, &mut out), frame.len);
                other.release(frame);
                assert!(out == filled(got, len(got)), "frame {got}");
                got += 1;
            }
            Some(e) => panic!("{e:?}"),
            None => {}
        }
        got == count
    });
}

#[test]
fn frames_of_all_lengths_arrive_in_order_over_rails() {
    let (mut a, to_b, mut b, to_a) = pair_of(railed(3), railed(3), "over 3 rails");
    stream(&mut a, to_b, &mut b, 300);
    stream(&mut b, to_a, &mut a, 300);
    let line = a.describe(to_b);
    assert!(line.contains("127.0.0.1 to 127.0.0.1, "), "{line}");
    assert!(line.contains(" to 127.0.0.2, ") && line.contains(" to 127.0.0.3)"), "{line}");
}

#[test]
fn as_many_rails_as_the_side_that_has_fewer_wants() {
    let (mut a, to_b, mut b, _) = pair_of(railed(2), railed(4), "over 2 rails");
    stream(&mut a, to_b, &mut b, 30);
    let (mut a, to_b, mut b, _) = pair_of(railed(4), railed(2), "over 2 rails");
    stream(&mut a, to_b, &mut b, 30);
    // One that wants none is told where it could have some, or told nothing.
    for (one, other) in [(railed(1), railed(2)), (railed(2), railed(1))] {
        let (mut a, to_b, mut b, _) = pair_of(one, other, "connected, frames");
        stream(&mut a, to_b, &mut b, 30);
        assert!(!a.describe(to_b).contains("rails"));
    }
}

#[test]
fn a_rail_that_breaks_while_nothing_is_on_it_is_not_used_any_more() {
    let mut with = railed(3);
    with.rails_at = vec![[127, 0, 0, 2].into(), [127, 0, 7, 3].into()];
    let (mut a, to_b, mut b, to_a) = pair_of(with.clone(), with, "over 3 rails");
    assert_eq!(cut([127, 0, 7, 3]), 2);
    until("its end is known", || {
        assert!(a.poll().is_none(), "nothing was to come");
        assert!(b.poll().is_none(), "nothing was to come");
        a.describe(to_b).contains("over 2 rails") && b.describe(to_a).contains("over 2 rails")
    });
    stream(&mut a, to_b, &mut b, 30);
    stream(&mut b, to_a, &mut a, 30);
}

#[test]
fn a_rail_is_attached_once_and_only_with_the_key_of_its_connection() {
    let mut b = open(railed(3));
    let played = Played::new(&mut b, 1);
    let other = Played::new(&mut b, 2);
    assert_eq!(played.at.len(), 2);
    let job = JobKey::from_secret(b"key");
    // Neither the job's nor that of another connection.
    for wrong in [&job, &other.key()] {
        assert!(played.rail(&mut b, 1, wrong).0.is_none());
    }
    // Nor another endpoint of the same name, nor a number that is too high.
    assert!(played.rail_of(&mut b, 1, &played.key(), 5).0.is_none());
    assert!(played.rail(&mut b, 3, &played.key()).0.is_none());
    let (first, _kept) = played.rail(&mut b, 1, &played.key());
    assert!(matches!(first, Some(Ok(Next::Connected(..)))), "{first:?}");
    assert!(played.rail(&mut b, 1, &played.key()).0.is_none(), "it is there already");
    let (second, _kept) = played.rail(&mut b, 2, &played.key());
    assert!(matches!(second, Some(Ok(Next::Connected(..)))), "{second:?}");
    // The connection has seen nothing of all that.
    let mut played = played;
    let header = played.keys.sealer.seal(5, b"hello");
    played.stream.write_all(&[&header[..], b"hello"].concat()).unwrap();
    assert_eq!(take(&mut b, &mut open(options("key"))).1, b"hello");
}

#[test]
fn two_callers_of_one_rail_get_one() {
    let mut b = open(railed(2));
    let played = Played::new(&mut b, 1);
    // Both have said hello before either has proved anything.
    let own = |nonce| Hello {
        role: Role::Rail(1),
        instance: 1,
        name: played.name,
        other: played.called,
        nonce: [nonce; 32],
    };
    let mut all: Vec<_> = [1, 2]
        .map(|nonce| {
            let mut stream = TcpStream::connect(played.at[0].sock()).unwrap();
            let mut caller = Caller::of_rail(&played.key(), 1, own(nonce));
            stream.write_all(&caller.hello()).unwrap();
            let Ok(Next::Say(proof)) = caller.hear(&read(&mut stream, &mut b, Hello::LEN + MAC)) else {
                panic!("no answer")
            };
            (stream, caller, proof)
        })
        .into();
    let mut taken = Vec::new();
    for (stream, caller, proof) in &mut all {
        stream.write_all(proof).unwrap();
        taken.push(matches!(caller.hear(&read(stream, &mut b, VERDICT)), Ok(Next::Connected(..))));
    }
    assert_eq!(taken, [true, false]);
}

#[test]
fn what_a_peer_says_of_rails_that_it_has_not_ends_its_connection() {
    let at = RailNote::At(vec![Addr::new(([127, 0, 0, 1], 1).into())]).encode();
    let next = RailNote::Next(1).encode();
    let cases = [
        at,
        next.clone(),
        RailNote::Up(1).encode(),
        RailNote::Up(2).encode(),
        next[..7].to_vec(),
        vec![9, 1, 0, 0, 0, 0, 0, 0],
    ];
    for (port, note) in (1..).zip(&cases) {
        let mut b = open(railed(2));
        let mut played = Played::new(&mut b, port);
        played.say(note);
        played.is_cut_off_by(&mut b);
    }
    // A rail that is attached, and of which the peer did not say that it is up; one that is up twice.
    for notes in [&[next][..], &[RailNote::Up(1).encode(), RailNote::Up(1).encode()]] {
        let mut b = open(railed(2));
        let mut played = Played::new(&mut b, 99);
        let (_, _kept) = played.rail(&mut b, 1, &played.key());
        notes.iter().for_each(|note| played.say(note));
        played.is_cut_off_by(&mut b);
    }
    // Where there are none.
    let mut b = open(options("key"));
    let (name, called) = (Addr::new(([127, 0, 0, 1], 7).into()), b.addr());
    let mut stream = TcpStream::connect(called.sock()).unwrap();
    let Ok(Next::Connected(_, keys)) = call(&mut stream, &mut b, name, called, "key") else { panic!() };
    let mut played = Played { stream, keys, at: vec![called], name, called };
    assert!(played.rail(&mut b, 1, &played.key()).0.is_none(), "it has no place");
    played.say(&RailNote::Up(1).encode());
    played.is_cut_off_by(&mut b);
}

#[test]
fn a_frame_that_was_announced_has_to_be_the_rails_next_one() {
    let mut other = open(options("key"));
    let frame =
        |keys: &mut Keys, text: &[u8]| [&keys.sealer.seal(text.len() as u32, text)[..], text].concat();
    // As it should be, also where the frame is there before it is announced.
    let mut b = open(railed(2));
    let (mut played, mut rail, mut keys) = with_rail(&mut b);
    let first = frame(&mut keys, b"first");
    rail.write_all(&first).unwrap();
    played.say(&RailNote::Next(1).encode());
    assert_eq!(take(&mut b, &mut other).1, b"first");
    // Again; one that was changed; a note on the rail.
    let note = RailNote::Up(1).encode();
    let mut changed = frame(&mut keys.clone_of(), b"second");
    changed[RECORD + 3] ^= 1;
    let sealed = [&keys.clone_of().sealer.seal_note(&note)[..], &note].concat();
    for bad in [first, changed, sealed] {
        let mut b = open(railed(2));
        let (mut played, mut rail, mut keys) = with_rail(&mut b);
        rail.write_all(&frame(&mut keys, b"first")).unwrap();
        rail.write_all(&bad).unwrap();
        for _ in 0..2 {
            played.say(&RailNote::Next(1).encode());
        }
        assert_eq!(take(&mut b, &mut other).1, b"first");
        played.is_cut_off_by(&mut b);
    }
}

trait Again {
    fn clone_of(&self) -> Keys;
}

impl Again for Keys {
    fn clone_of(&self) -> Keys {
        Keys { sealer: self.sealer.clone(), opener: self.opener.clone(), rails: None }
    }
}

#[test]
fn a_rail_that_stalls_holds_up_its_own_peer_alone() {
    let mut b = open(railed(2));
    let (mut played, mut rail, mut keys) = with_rail(&mut b);
    // Two frames are announced, of which one comes; what is behind them waits.
    let long = filled(1, LONG);
    let header = keys.sealer.seal(LONG as u32, &long[..wire::session::COVERED]);
    played.say(&RailNote::Next(1).encode());
    let hello = played.keys.sealer.seal(5, b"hello");
    played.stream.write_all(&[&hello[..], b"hello"].concat()).unwrap();
    rail.write_all(&header).unwrap();
    rail.write_all(&long[..LONG / 2]).unwrap();
    let mut c = open(options("key"));
    let to_b = c.peer(&b.addr());
    for _ in 0..20 {
        say(&mut c, to_b, &mut [&mut b], b"from another");
        assert_eq!(take(&mut b, &mut c).1, b"from another");
    }
    // It can sleep meanwhile: nothing that may be taken is there.
    until("rest", || {
        assert!(b.poll().is_none());
        b.arm()
    });
    rail.write_all(&long[LONG / 2..]).unwrap();
    assert!(take(&mut b, &mut c).1 == long);
    assert_eq!(take(&mut b, &mut c).1, b"hello");
    // And where the rest never comes, the end of the rail is that of the connection.
    played.say(&RailNote::Next(1).encode());
    drop(rail);
    match event(&mut b, &mut c) {
        Event::Closed(peer, Gone::Reset) => assert_eq!(b.peer_addr(peer), played.name),
        other => panic!("{other:?}"),
    }
}
