//! The ways to look for frames.

use link_api::{Event, FrameLink as _, FrameSource, Link as _, PeerId, PollFrame, Refused, Sent};

use crate::harness::{Drive, next, taken};
use crate::{Ends, Harness, bytes};

/// A receiver and two senders that it knows.
struct Three<L> {
    b: L,
    senders: [(L, PeerId); 2],
    /// The senders, as the receiver knows them.
    known: [PeerId; 2],
}

fn three<H: Harness>(h: &mut H) -> Three<H::Link> {
    let Ends { a, to_b, mut b, to_a } = h.pair();
    let mut c = h.open();
    let c_to_b = c.peer(&b.addr());
    h.say(&mut c, c_to_b, b"also");
    let to_c = b.peer(&c.addr());
    assert_eq!(h.take(&mut b), (to_c, b"also".to_vec()));
    Three { b, senders: [(a, to_b), (c, c_to_b)], known: [to_a, to_c] }
}

fn frame(of: usize, i: usize) -> Vec<u8> {
    bytes(1 + (i * 61) % 900, of * 1_000 + i)
}

/// [`poll`](link_api::FrameLink::poll), [`poll_frame`](link_api::FrameLink::poll_frame),
/// each [`FrameSource`]
/// in any order, and some frames are [put back](link_api::Link::put_back) first.
pub fn all_ways_to_poll_together_lose_nothing<H: Harness>(h: &mut H) {
    const FRAMES: usize = 400;
    let Three { mut b, mut senders, known } = three(h);
    let (mut sent, mut got, mut turn) = ([0; 2], [0; 2], 0usize);
    h.until("all frames, looked for in all ways", |_| {
        for (of, (link, to)) in senders.iter_mut().enumerate() {
            while sent[of] < FRAMES {
                match link.send(*to, &frame(of, sent[of]), &[], 0, 0) {
                    Ok(Sent::Done) => sent[of] += 1,
                    Err(Refused::Busy) => break,
                    other => panic!("a peer that is there is refused: {other:?}"),
                }
            }
        }
        for _ in 0..50 {
            turn += 1;
            let found = match turn % 7 {
                0 | 3 => match next(&mut b) {
                    Some(Event::Frame(f)) => Some(f),
                    None => None,
                    other => panic!("no frame, but {other:?}"),
                },
                1 | 5 => match b.poll_frame(FrameSource::Any) {
                    PollFrame::Frame(f) if turn % 3 == 0 => {
                        b.land(f, None);
                        None
                    }
                    PollFrame::Frame(f) => Some(f),
                    PollFrame::Nothing | PollFrame::Unknown => None,
                },
                6 => {
                    let wanted = known[turn / 7 % 2];
                    match b.poll_frame(FrameSource::Only(wanted)) {
                        PollFrame::Frame(f) => {
                            assert_eq!(f.from, wanted, "a frame of another peer");
                            if turn % 3 == 0 {
                                b.land(f, None);
                                None
                            } else {
                                Some(f)
                            }
                        }
                        PollFrame::Nothing | PollFrame::Unknown => None,
                    }
                }
                n => match b.poll_frame(FrameSource::Next(known[n % 2])) {
                    PollFrame::Frame(f) => Some(f),
                    _ => None,
                },
            };
            let Some(f) = found else { continue };
            let (from, bytes) = taken(&mut b, f);
            let of = known.iter().position(|p| *p == from).expect("one of both");
            assert!(bytes == frame(of, got[of]), "frame {} of sender {of} is next", got[of]);
            got[of] += 1;
        }
        got == [FRAMES; 2]
    });
    h.quiet(&mut b);
}

/// [`FrameSource::Any`]: a caller that calls [`poll`](link_api::FrameLink::poll) only behind
/// [`PollFrame::Unknown`] gets the frames of a peer that streams, of one that connects meanwhile and of one
/// that calls an idle endpoint, and hears of an end.
pub fn a_poll_finds_the_rest_where_the_quick_way_says_unknown<H: Harness>(h: &mut H) {
    const FRAMES: usize = 200;
    let Three { mut b, senders: [(mut a, a_to_b), (c, c_to_b)], known: [from_a, from_c] } = three(h);
    let (mut d, mut e) = (h.open(), h.open());
    let (d_to_b, from_d) = (d.peer(&b.addr()), b.peer(&d.addr()));
    let (e_to_b, from_e) = (e.peer(&b.addr()), b.peer(&e.addr()));
    let (mut c, mut sent, mut got) = (Some(c), [0; 4], [0; 4]);
    let mut is_c_over = false;
    h.until("all frames and the end", |h| {
        // The first one streams until the others have been heard.
        let heard = is_c_over && got[2] == 1;
        while !heard || sent[0] < FRAMES {
            match a.send(a_to_b, &frame(0, sent[0]), &[], 0, 0) {
                Ok(_) => sent[0] += 1,
                Err(why) => {
                    assert_eq!(why, Refused::Busy);
                    break;
                }
            }
            if sent[0] % 20 == 0 {
                break;
            }
        }
        if let Some(mut link) = c.take_if(|_| got[0] > FRAMES / 4) {
            h.say(&mut link, c_to_b, &frame(1, 0));
            sent[1] = 1;
            h.end(link);
        }
        if sent[2] == 0 && got[0] > FRAMES / 2 {
            sent[2] = usize::from(d.send(d_to_b, &frame(2, 0), &[], 0, 0).is_ok());
        }
        if sent[3] == 0 && heard && got[0] == sent[0] {
            sent[3] = usize::from(e.send(e_to_b, &frame(3, 0), &[], 0, 0).is_ok());
        }
        for link in [&mut a, &mut d, &mut e] {
            assert!(next(link).is_none(), "nothing was sent to a sender");
        }
        for _ in 0..20 {
            let frame_of = match b.poll_frame(FrameSource::Any) {
                PollFrame::Frame(f) => Some(f),
                PollFrame::Nothing => None,
                PollFrame::Unknown => match next(&mut b) {
                    Some(Event::Frame(f)) => Some(f),
                    Some(Event::Closed(peer, _)) => {
                        assert_eq!((peer, got[1], is_c_over), (from_c, 1, false), "the end of a peer");
                        is_c_over = true;
                        None
                    }
                    None => None,
                    other => panic!("no frame, but {other:?}"),
                },
            };
            let Some(f) = frame_of else { continue };
            let of = [from_a, from_c, from_d, from_e].iter().position(|p| *p == f.from).expect("one of them");
            let (_, bytes) = taken(&mut b, f);
            assert!(bytes == frame(of, got[of]), "frame {} of sender {of} is next", got[of]);
            got[of] += 1;
        }
        is_c_over && got[0] == sent[0] && got[1..] == [1; 3]
    });
    h.quiet(&mut b);
}

/// What [`FrameSource::Next`] gives is of the peer that was named.
pub fn frames_of_one_peer_are_those_of_that_peer<H: Harness>(h: &mut H) {
    let Three { mut b, mut senders, known } = three(h);
    for round in 0..20 {
        for (of, (link, to)) in senders.iter_mut().enumerate() {
            for i in 0..4 {
                h.say(link, *to, &frame(of, 4 * round + i));
            }
        }
        let mut next = [4 * round; 2];
        let wanted = round % 2;
        // The first one by a poll, so that there may be more of its peer.
        let (from, bytes) = h.take(&mut b);
        let of = known.iter().position(|p| *p == from).expect("one of both");
        assert!(bytes == frame(of, next[of]));
        next[of] += 1;
        while let PollFrame::Frame(f) = b.poll_frame(FrameSource::Next(known[wanted])) {
            let (from, bytes) = taken(&mut b, f);
            assert_eq!(from, known[wanted], "a frame of another peer");
            assert!(bytes == frame(wanted, next[wanted]), "frame {} is next", next[wanted]);
            next[wanted] += 1;
        }
        while next != [4 * round + 4; 2] {
            let (from, bytes) = h.take(&mut b);
            let of = known.iter().position(|p| *p == from).expect("one of both");
            assert!(bytes == frame(of, next[of]), "frame {} of sender {of} is next", next[of]);
            next[of] += 1;
        }
        h.quiet(&mut b);
    }
}

/// [`has_frames_of`](link_api::FrameLink::has_frames_of): where it says so, a frame of that peer comes; and not
/// once all were taken.
pub fn a_link_that_is_said_to_have_frames_has_one<H: Harness>(h: &mut H) {
    let Three { mut b, mut senders, known } = three(h);
    for round in 0..10 {
        assert!(!known.iter().any(|p| b.has_frames_of(*p)), "all frames were taken");
        let of = round % 2;
        let (link, to) = &mut senders[of];
        for i in 0..3 {
            h.say(link, *to, &frame(of, i));
        }
        let mut left = 3;
        for i in 0..3 {
            let f = h.frame(&mut b);
            left -= 1;
            assert_eq!(f.from, known[of]);
            let more = b.has_frames_of(known[of]);
            assert!(!more || left > 0, "more frames than were sent");
            assert!(!b.has_frames_of(known[1 - of]), "frames of a peer that sent none");
            let (_, bytes) = taken(&mut b, f);
            assert!(bytes == frame(of, i));
        }
        h.quiet(&mut b);
    }
}
