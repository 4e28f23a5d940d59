//! Peers that end, or are cut off, or never come.

use link_api::{Channel, Connect, Event, FrameLink as _, Gone, Link as _, Parting, Refused};

use crate::harness::{Drive, next, taken};
use crate::{Ends, Harness, bytes};

/// [`Event::Closed`]: "Every frame it had sent has been delivered before."
pub fn an_end_is_reported_once_and_after_all_frames<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let mut sent = 3;
    (0..sent).for_each(|i| h.say(&mut a, to_b, &bytes(900, i)));
    while sent < 30 && a.send(to_b, &bytes(900, sent), &[], 0, 0).is_ok() {
        sent += 1;
    }
    h.end(a);
    for i in 0..sent {
        assert!(h.take(&mut b) == (to_a, bytes(900, i)), "frame {i} of a peer that has ended");
    }
    assert_eq!(h.closed(&mut b), (to_a, Gone::Reset));
    assert_eq!(b.channel(to_a), Channel::None, "a peer that has ended is not connected");
    h.quiet(&mut b);
}

/// Also where the peer never sent anything.
pub fn an_end_is_reported_to_those_that_only_sent<H: Harness>(h: &mut H) {
    let (mut a, mut b) = (h.open(), h.open());
    let to_b = a.peer(&b.addr());
    h.say(&mut a, to_b, b"hello");
    h.take(&mut b);
    h.end(b);
    assert_eq!(h.closed(&mut a), (to_b, Gone::Reset));
    h.quiet(&mut a);
}

/// "Frames sent to it are refused from now on", by [`Refused::Gone`], and
/// [`channel`](link_api::Link::channel).
pub fn nothing_is_sent_to_a_peer_that_has_ended<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, b, .. } = h.pair();
    h.end(b);
    // Before that is reported, a frame may still find room, but not for ever.
    h.until("a link that knows of an end", |_| a.channel(to_b) != Channel::Open || next(&mut a).is_some());
    let mut reported = a.channel(to_b) == Channel::None;
    while !reported {
        reported = matches!(h.event(&mut a, "the end"), Event::Closed(peer, _) if peer == to_b);
    }
    for _ in 0..3 {
        let answer = h.send(&mut a, to_b, b"behind", &[], 0, 0);
        assert!(matches!(answer, Err(Refused::Gone(_))), "a frame to a peer that has ended: {answer:?}");
    }
    assert_eq!(a.channel(to_b), Channel::None, "a peer that has ended is not connected");
    h.quiet(&mut a);
}

/// [`Parting::CutOff`].
pub fn a_peer_that_is_cut_off_is_closed_and_others_are_not<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let mut c = h.open();
    let (c_to_b, to_c) = (c.peer(&b.addr()), b.peer(&c.addr()));
    h.say(&mut c, c_to_b, b"also");
    assert_eq!(h.take(&mut b), (to_c, b"also".to_vec()));
    h.say(&mut a, to_b, &bytes(700, 1));
    while a.send(to_b, &bytes(700, 1), &[], 0, 0).is_ok() {}
    // One at least is there.
    assert_eq!(h.take(&mut b), (to_a, bytes(700, 1)));
    b.dismiss(to_a, Parting::CutOff);
    h.say(&mut c, c_to_b, b"still");
    let (mut ended, mut heard) = (false, false);
    h.until("the end of the one, and a frame of the other", |_| {
        match next(&mut b) {
            Some(Event::Closed(peer, why)) => {
                assert_eq!(
                    (peer, why, ended),
                    (to_a, Gone::Denied, false),
                    "the peer that was cut off, once"
                );
                ended = true;
            }
            Some(Event::Frame(f)) => {
                let (from, bytes) = taken(&mut b, f);
                assert_eq!((from, &bytes[..]), (to_c, &b"still"[..]), "a frame of a peer that was cut off");
                heard = true;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        ended && heard
    });
    h.quiet(&mut b);
    // A second time.
    h.say(&mut b, to_c, b"bye");
    assert_eq!(h.take(&mut c).1, b"bye");
}

/// [`Connect::Expected`]: "`Event::Closed` says so".
pub fn an_expected_peer_that_never_comes_is_given_up<H: Harness>(h: &mut H) {
    let (mut a, name) = (h.open(), h.nowhere());
    let to = a.peer(&name);
    assert_eq!(a.connect(to, Connect::Expected), Ok(()));
    let mut found = None;
    h.until("that a peer is given up", |h| {
        found = next(&mut a);
        h.pass_long();
        found.is_some()
    });
    assert!(matches!(found, Some(Event::Closed(peer, Gone::Refused)) if peer == to), "{found:?}");
    h.quiet(&mut a);
}

/// A peer that comes in time is not reported.
pub fn an_expected_peer_that_comes_is_not_given_up<H: Harness>(h: &mut H) {
    let (mut a, mut b) = (h.open(), h.open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    assert_eq!(a.connect(to_b, Connect::Expected), Ok(()));
    h.say(&mut b, to_a, b"here");
    assert_eq!(h.take(&mut a), (to_b, b"here".to_vec()));
    for _ in 0..20 {
        h.pass_long();
        if let Some(event) = next(&mut a) {
            panic!("a peer that is there was expected, and now {event:?}");
        }
    }
    assert_eq!(a.channel(to_b), Channel::Open);
}
