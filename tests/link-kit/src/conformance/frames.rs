//! Frames, from one link to another.

use hmem::Span;
use link_api::{Connect, Cork, Event, FrameLink as _, Link as _, Path, Refused, Sent};

use crate::harness::{Drive, next, taken};
use crate::{Ends, Harness, bytes, text};

/// [`send`](link_api::FrameLink::send), [`read`](link_api::FrameLink::read) and [`copy_out`](link_api::FrameLink::copy_out)
/// at any offset, of memory in any number of parts.
pub fn a_frame_is_its_head_and_the_right_part_of_its_body<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let body = [Span::leak(100), Span::leak(0), Span::leak(7), Span::leak(9_000)];
    let sent = bytes(9_107, 5);
    hmem::write(&body, 0, &sent);
    let into = [Span::leak(61), Span::leak(9_100)];
    for i in 0..40 {
        let (off, len) = (i * 13 + 1, 8_500 - i * 201);
        let head = &b"01234567890123456789012345678901234567"[..i % 38];
        assert_eq!(h.send(&mut a, to_b, head, &body, off, len), Ok(Sent::Done));
        let f = h.frame(&mut b);
        assert_eq!((f.from, f.len), (to_a, head.len() + len), "frame {i}");
        let mut back = vec![0; head.len()];
        assert_eq!(b.read(&f, 0, &mut back), head.len());
        assert_eq!(back, head, "the head of frame {i}");
        // A part in the middle, more than there is, and what is behind the end.
        let mut some = vec![0; 77];
        assert_eq!(b.read(&f, head.len() + 3, &mut some), 77);
        assert_eq!(some, sent[off + 3..off + 80], "bytes from the middle of frame {i}");
        assert_eq!(b.read(&f, f.len - 2, &mut some), 2, "the last two bytes of frame {i}");
        assert_eq!(b.read(&f, f.len, &mut some), 0, "behind the end of frame {i}");
        assert_eq!(b.copy_out(&f, head.len(), &into, 5, usize::MAX >> 1), len);
        assert!(text(&into)[5..5 + len] == sent[off..off + len], "frame {i} in parts of other lengths");
        assert_eq!(b.copy_out(&f, head.len() + 1, &into, 60, 3), 3);
        assert_eq!(text(&into)[60..63], sent[off + 1..off + 4], "three bytes of frame {i} over two parts");
        assert_eq!(b.copy_out(&f, f.len, &into, 0, 1), 0);
        b.release(f);
    }
}

/// A frame without a body, and one without anything.
pub fn a_frame_may_have_no_body_and_no_bytes<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let body = [Span::leak(8)];
    for i in 0..20u8 {
        assert_eq!(h.send(&mut a, to_b, &[i], &body, 8, 0), Ok(Sent::Done));
        assert_eq!(h.send(&mut a, to_b, &[], &body, 3, 0), Ok(Sent::Done));
        assert_eq!(h.take(&mut b), (to_a, vec![i]));
        assert_eq!(h.take(&mut b), (to_a, vec![]));
    }
    h.quiet(&mut b);
}

/// [`Path::max_frame`], at least [`Path::LEAST_FRAME`].
pub fn frames_up_to_the_longest_arrive<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let most = a.path(to_b).max_frame;
    assert!(most >= Path::LEAST_FRAME, "frames of {most} bytes are too short");
    let body = [Span::leak(most)];
    let sent = bytes(most, 7);
    hmem::write(&body, 0, &sent);
    for len in [most, most - 1, Path::LEAST_FRAME, most] {
        assert_eq!(h.send(&mut a, to_b, &sent[..20], &body, 20, len - 20), Ok(Sent::Done));
        assert!(h.take(&mut b) == (to_a, sent[..len].to_vec()), "a frame of {len} bytes");
    }
}

/// [`copy_last`](link_api::FrameLink::copy_last) of the end of a frame, short or long, once or after other copies,
/// with room for all of it or not; and the next frame behind it.
pub fn the_last_copy_of_a_frame_leaves_the_next_one_whole<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let longest = a.path(to_b).max_frame.min(300_000);
    let into = [Span::leak(61), Span::leak(longest)];
    for i in 0..48 {
        let len = [60, 3_000, 17_000, longest][i % 4].min(longest) - i;
        let sent = bytes(len, i);
        let body = [Span::leak(len)];
        hmem::write(&body, 0, &sent);
        h.say(&mut a, to_b, &sent[..11]);
        assert_eq!(h.send(&mut a, to_b, &sent[..5], &body, 5, len - 5), Ok(Sent::Done));
        if i % 3 == 0 {
            h.say(&mut a, to_b, &sent[..23]);
        }
        assert!(h.take(&mut b) == (to_a, sent[..11].to_vec()), "before frame {i}");
        let f = h.frame(&mut b);
        let mut head = [0; 5];
        assert_eq!((f.len, b.read(&f, 0, &mut head)), (len, 5), "frame {i}");
        assert_eq!(head, sent[..5]);
        if i % 5 == 1 {
            assert_eq!(b.copy_out(&f, 5, &into, 0, 9), 9);
            assert_eq!(text(&into)[..9], sent[5..14]);
        }
        let (off, most) = (5 + i % 7, if i % 4 == 2 { len / 2 } else { usize::MAX >> 1 });
        let n = most.min(len - off);
        assert_eq!(b.copy_last(&f, off, &into, 3, most), n, "of frame {i}");
        assert!(text(&into)[3..3 + n] == sent[off..off + n], "the end of frame {i}");
        b.release(f);
        if i % 3 == 0 {
            assert!(h.take(&mut b) == (to_a, sent[..23].to_vec()), "behind frame {i}");
        }
    }
    h.quiet(&mut b);
}

/// [`take`](link_api::FrameLink::take): of frames of any length, from any byte on, where there is room for the rest and where
/// there is not.
pub fn a_frame_is_taken_whole_or_stays<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let mut is_any_taken = false;
    for i in 0..48 {
        let (sent, off) = (bytes([33, 60, 700, 9_000][i % 4] + i, i), [0, 5, 32][i % 3]);
        h.say(&mut a, to_b, &sent);
        h.say(&mut a, to_b, &sent[..7]);
        let rest = sent.len() - off;
        let into = Span::leak(if i % 5 == 4 { rest - 1 } else { rest + i % 2 });
        let f = h.frame(&mut b);
        assert_eq!((f.from, f.len), (to_a, sent.len()), "frame {i}");
        if b.take(&f, off, into, i % 2 == 0) {
            assert!(rest <= into.len(), "frame {i} was taken into {} bytes of {rest}", into.len());
            assert!(text(&[into])[..rest] == sent[off..], "the bytes of frame {i}");
            is_any_taken = true;
        } else {
            assert!(taken(&mut b, f) == (to_a, sent.clone()), "frame {i}, which was not taken");
        }
        assert!(h.take(&mut b) == (to_a, sent[..7].to_vec()), "behind frame {i}");
    }
    assert!(is_any_taken || !h.takes_frames(), "no frame was taken");
    h.quiet(&mut b);
}

/// What is sent between [`Cork::On`] and [`Cork::Off`], of any length and to any number of peers, comes in its
/// order, without another call of the sender's.
pub fn what_is_sent_corked_comes_in_order_when_that_is_over<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let longest = a.path(to_b).max_frame.min(40_000);
    let mut most = 0;
    for i in 0..30 {
        let all: Vec<_> = (0..i % 9).map(|k| bytes([24, 700, longest, 5_000][(i + k) % 4], k)).collect();
        a.cork(Cork::On);
        let mut sent = Vec::new();
        for bytes in all {
            let body = [Span::leak(bytes.len())];
            hmem::write(&body, 0, &bytes);
            match a.send(to_b, &[], &body, 0, bytes.len()) {
                Ok(_) => sent.push(bytes),
                // Of some links the other side has to take what there is first.
                found => assert_eq!(found, Err(Refused::Busy)),
            }
            hmem::write(&body, 0, &vec![0xee; hmem::total(&body)]);
        }
        a.cork(Cork::Off);
        most = most.max(sent.len());
        for (k, bytes) in sent.into_iter().enumerate() {
            assert!(h.take(&mut b) == (to_a, bytes), "frame {k} of {i}");
        }
        h.say(&mut a, to_b, b"behind");
        assert_eq!(h.take(&mut b).1, b"behind");
    }
    assert!(most > 1, "never more than {most} at a time");
    h.quiet(&mut b);
}

/// "When it returns `Ok` all bytes have been copied", whichever way a link has for frames of that length.
pub fn what_was_sent_is_copied_when_the_call_returns<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    for (round, len) in (1..450).chain([5_000]).enumerate() {
        let body = [Span::leak(len)];
        let sent = bytes(len, round);
        hmem::write(&body, 0, &sent);
        assert_eq!(h.send(&mut a, to_b, b"", &body, 0, len), Ok(Sent::Done));
        hmem::write(&body, 0, &vec![0xee; len]);
        h.say(&mut a, to_b, b"behind it");
        assert!(h.take(&mut b) == (to_a, sent), "{len} bytes as they were when they were sent");
        assert_eq!(h.take(&mut b).1, b"behind it");
    }
}

/// "Moves frames to and from peers, in order and without loss": two peers send to one, at once.
pub fn frames_of_each_peer_come_in_order_and_none_is_lost<H: Harness>(h: &mut H) {
    const FRAMES: usize = 300;
    let Ends { a, to_b, mut b, to_a } = h.pair();
    let (mut c, name) = (h.open(), b.addr());
    let c_to_b = c.peer(&name);
    h.say(&mut c, c_to_b, b"also");
    let to_c = b.peer(&c.addr());
    assert_eq!(h.take(&mut b), (to_c, b"also".to_vec()));
    let frame = |of: usize, i: usize| bytes(1 + (i * 337) % 5_000, of * 1_000 + i);
    let mut senders = [(a, to_b, 0), (c, c_to_b, 0)];
    let mut got = [0; 2];
    h.until("all frames of both", |_| {
        for (of, (link, to, sent)) in senders.iter_mut().enumerate() {
            while *sent < FRAMES {
                match link.send(*to, &frame(of, *sent), &[], 0, 0) {
                    Ok(Sent::Done) => *sent += 1,
                    Err(Refused::Busy) => break,
                    other => panic!("a peer that is there is refused: {other:?}"),
                }
            }
        }
        while let Some(event) = next(&mut b) {
            let Event::Frame(f) = event else { panic!("no frame, but {event:?}") };
            let (from, bytes) = taken(&mut b, f);
            let of = [to_a, to_c].into_iter().position(|p| p == from).expect("one of both");
            assert!(bytes == frame(of, got[of]), "frame {} of sender {of} is next", got[of]);
            got[of] += 1;
        }
        got == [FRAMES; 2]
    });
    h.quiet(&mut b);
}

/// [`Refused::Busy`]: "the same call may succeed later. Nothing was sent."
pub fn a_link_that_is_busy_has_sent_nothing_and_takes_the_same_frame_later<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let frame = |i: usize| bytes(1_000 + i % 7, i);
    let mut next = 0;
    for _ in 0..5 {
        let (mut sent, first) = (1, next);
        // A link may have closed what it had, and takes a frame as soon as it is connected.
        h.say(&mut a, to_b, &frame(next));
        next += 1;
        loop {
            match a.send(to_b, &frame(next), &[], 0, 0) {
                Ok(Sent::Done) => (next, sent) = (next + 1, sent + 1),
                other => {
                    assert_eq!(other, Err(Refused::Busy));
                    break;
                }
            }
            assert!(sent < 100_000, "a peer that takes nothing is sent to without end");
        }
        // What found no room is not there later either.
        for i in first..next {
            assert!(h.take(&mut b) == (to_a, frame(i)), "frame {i} is next");
        }
        h.quiet(&mut b);
        h.say(&mut a, to_b, &frame(next));
        assert!(h.take(&mut b) == (to_a, frame(next)), "the frame that found no room is next");
        next += 1;
    }
}

/// "A received frame, which its link holds until `release`": also when more come meanwhile.
pub fn a_frame_stays_until_it_is_given_back<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    let frame = |i: usize| bytes(900, i);
    h.say(&mut a, to_b, &frame(0));
    let held = h.frame(&mut b);
    let mut next = 1;
    while a.send(to_b, &frame(next), &[], 0, 0).is_ok() {
        next += 1;
    }
    for _ in 0..20 {
        let mut back = vec![0; 900];
        assert_eq!(b.read(&held, 0, &mut back), 900);
        assert!(back == frame(0), "the frame at hand has changed");
        h.pass();
    }
    b.release(held);
    for i in 1..next {
        assert!(h.take(&mut b) == (to_a, frame(i)), "frame {i} is next");
    }
    h.quiet(&mut b);
}

/// [`peek`](link_api::FrameLink::peek).
pub fn a_peek_is_the_first_bytes_or_none<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    for len in [0, 1, 19, 20, 59, 60, 61, 3_000] {
        let sent = bytes(len, len + 3);
        h.say(&mut a, to_b, &sent);
        let f = h.frame(&mut b);
        let is = |n: usize| (len >= n).then(|| sent[..n].to_vec());
        assert_eq!(b.peek::<1>(&f).map(Vec::from), is(1), "1 of {len} bytes");
        assert_eq!(b.peek::<20>(&f).map(Vec::from), is(20), "20 of {len} bytes");
        assert_eq!(b.peek::<60>(&f).map(Vec::from), is(60), "60 of {len} bytes");
        b.release(f);
    }
}

/// An endpoint may be its own peer.
pub fn an_endpoint_reaches_itself<H: Harness>(h: &mut H) {
    let mut a = h.open();
    let name = a.addr();
    let own = a.peer(&name);
    for i in 0..200 {
        h.say(&mut a, own, &bytes(700, i));
        assert_eq!(h.take(&mut a), (own, bytes(700, i)));
    }
    h.quiet(&mut a);
}

/// [`has_room_to_spare`](link_api::FrameLink::has_room_to_spare).
pub fn there_is_room_to_spare_until_much_is_under_way<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    // A link that has closed what it had has none until it is connected.
    let has_room = |a: &mut H::Link| a.connect(to_b, Connect::Now).is_ok() && a.has_room_to_spare(to_b, 500);
    for _ in 0..3 {
        h.until("room to spare, since nothing is under way", |_| has_room(&mut a));
        let mut sent = 0;
        // A kernel that carries frames may make room after one that found none: then that is filled, too.
        let full = (0..1000).any(|_| {
            while a.send(to_b, &[0; 500], &[], 0, 0).is_ok() {
                sent += 1;
            }
            !a.has_room_to_spare(to_b, 500)
        });
        assert!(full, "nothing more finds room");
        for _ in 0..sent {
            h.take(&mut b);
        }
        h.until("room to spare", |_| has_room(&mut a));
    }
}
