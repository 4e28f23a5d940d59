//! Polls while one peer is waited for: its ring is looked at by each, the others' now and then.

use link_api::{
    Event, FrameLink as _, FrameSource, Hint, Link as _, Parting, PeerId, PollFrame, SleepLink as _, WaitFd,
};

use super::ShmLink;
use crate::shm::pace;
use crate::shm::tests::{frame, open, say};

/// How many polls find nothing before one finds a frame, and whose.
fn polls_until_found(link: &mut ShmLink) -> (u32, PeerId) {
    for n in 0..1000 {
        let found = match link.poll_frame(FrameSource::Any) {
            PollFrame::Frame(frame) => Some(Event::Frame(frame)),
            PollFrame::Nothing => None,
            PollFrame::Unknown => link.poll(),
        };
        if let Some(Event::Frame(frame)) = found {
            let from = frame.from;
            link.release(frame);
            return (n, from);
        }
    }
    panic!("no frame")
}

/// Three, of which the last has heard from both others and waits for the first.
fn one_of_two_awaited() -> ((ShmLink, PeerId), (ShmLink, PeerId), ShmLink, [PeerId; 2]) {
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (at_a, at_b) = (a.peer(&c.addr()), b.peer(&c.addr()));
    let (from_a, from_b) = (c.peer(&a.addr()), c.peer(&b.addr()));
    for _ in 0..2 {
        say(&mut a, at_a, b"a").unwrap();
        say(&mut b, at_b, b"b").unwrap();
        frame(&mut c);
        frame(&mut c);
    }
    c.hint(Hint::ReceiveFrom(Some(from_a)));
    ((a, at_a), (b, at_b), c, [from_a, from_b])
}

#[test]
fn while_one_peer_is_waited_for_others_are_looked_at_now_and_then() {
    let ((mut a, at_a), (mut b, at_b), mut c, [from_a, from_b]) = one_of_two_awaited();
    let mut longest = 0;
    for _ in 0..50 {
        c.hint(Hint::ReceiveFrom(Some(from_a)));
        say(&mut b, at_b, b"b").unwrap();
        let (n, from) = polls_until_found(&mut c);
        assert_eq!(from, from_b);
        assert!(n < 2 * pace::OTHERS, "{n} polls");
        longest = longest.max(n);
        // What is waited for is found at once, and then nothing is.
        c.hint(Hint::ReceiveFrom(Some(from_a)));
        say(&mut b, at_b, b"b").unwrap();
        say(&mut a, at_a, b"a").unwrap();
        let both = [polls_until_found(&mut c), polls_until_found(&mut c)];
        assert!(both.iter().all(|(n, _)| *n < 2), "{both:?}");
        say(&mut b, at_b, b"b").unwrap();
        assert!(polls_until_found(&mut c).0 < 2);
    }
    assert!(longest > 1, "the others were looked at all the time");
}

#[test]
fn others_are_looked_at_as_often_where_looks_at_one_ring_come_between() {
    let (_a, (mut b, at_b), mut c, [from_a, from_b]) = one_of_two_awaited();
    for _ in 0..200 {
        c.hint(Hint::ReceiveFrom(Some(from_a)));
        say(&mut b, at_b, b"b").unwrap();
        let mut polls = 0;
        let found = loop {
            assert!(matches!(
                c.poll_frame(FrameSource::Only(from_a)),
                PollFrame::Nothing | PollFrame::Unknown
            ));
            match c.poll_frame(FrameSource::Any) {
                PollFrame::Frame(frame) => break frame,
                PollFrame::Nothing => {}
                PollFrame::Unknown => {
                    if let Some(Event::Frame(frame)) = c.poll() {
                        break frame;
                    }
                }
            }
            polls += 1;
            assert!(polls < 2 * pace::OTHERS, "{polls} polls");
        };
        assert_eq!(found.from, from_b);
        c.release(found);
    }
}

#[test]
fn a_sleeper_that_waits_for_one_peer_is_woken_by_another() {
    let (_a, (mut b, at_b), mut c, [from_a, from_b]) = one_of_two_awaited();
    for n in 0..100 {
        c.hint(Hint::ReceiveFrom(Some(from_a)));
        if n % 2 == 0 {
            say(&mut b, at_b, b"b").unwrap();
            assert!(!c.arm(), "it sleeps though a frame is there");
        } else {
            while !c.arm() {
                assert!(!matches!(c.poll(), Some(Event::Frame(_))));
            }
            say(&mut b, at_b, b"b").unwrap();
            let mut fd =
                libc::pollfd { fd: c.wait_fd(WaitFd::All).unwrap(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor, which is open.
            assert_eq!(unsafe { libc::poll(&mut fd, 1, 10_000) }, 1, "it is not woken");
        }
        let (polls, from) = polls_until_found(&mut c);
        assert_eq!((polls, from), (0, from_b));
    }
}

#[test]
fn a_peer_that_is_waited_for_and_ends_keeps_no_other_from_being_heard() {
    let ((mut a, at_a), (mut b, at_b), mut c, [from_a, from_b]) = one_of_two_awaited();
    say(&mut a, at_a, b"last").unwrap();
    drop(a);
    say(&mut b, at_b, b"b").unwrap();
    let (mut heard, mut closed) = (Vec::new(), false);
    while !closed || heard.len() < 2 {
        match c.poll_frame(FrameSource::Only(from_a)) {
            PollFrame::Frame(frame) => {
                heard.push(frame.from);
                c.release(frame);
                continue;
            }
            PollFrame::Nothing | PollFrame::Unknown => {}
        }
        match c.poll() {
            Some(Event::Frame(frame)) => {
                heard.push(frame.from);
                c.release(frame);
            }
            Some(Event::Closed(peer, _)) => {
                assert!(peer == from_a && heard.contains(&from_a));
                closed = true;
            }
            _ => {}
        }
    }
    heard.sort_by_key(|peer| peer.0);
    assert_eq!(heard, [from_a.min(from_b), from_a.max(from_b)]);
    // Its number may be another peer's next, and is waited for meanwhile.
    c.hint(Hint::ReceiveFrom(Some(from_a)));
    c.dismiss(from_a, Parting::Forgotten);
    let (mut d, mut e) = (open(), open());
    let new = c.peer(&d.addr());
    let (at_d, at_e) = (d.peer(&c.addr()), e.peer(&c.addr()));
    say(&mut d, at_d, b"d").unwrap();
    say(&mut e, at_e, b"e").unwrap();
    say(&mut b, at_b, b"b").unwrap();
    let mut all = [(); 3].map(|()| polls_until_found(&mut c).1);
    all.sort_by_key(|peer| peer.0);
    assert!(all.contains(&new) && all.contains(&from_b) && all[0] != all[1] && all[1] != all[2]);
}

#[test]
fn others_are_looked_at_by_each_of_polls_that_are_rare_while_one_peer_is_waited_for() {
    let (_a, (mut b, at_b), mut c, [from_a, from_b]) = one_of_two_awaited();
    let mut polls = |count: u32| {
        for n in 0..count {
            c.hint(Hint::ReceiveFrom(Some(from_a)));
            std::thread::sleep(std::time::Duration::from_micros(200));
            let found = match c.poll_frame(FrameSource::Any) {
                PollFrame::Frame(frame) => Some(Event::Frame(frame)),
                PollFrame::Nothing => None,
                PollFrame::Unknown => c.poll(),
            };
            if let Some(Event::Frame(frame)) = found {
                assert_eq!(frame.from, from_b);
                c.release(frame);
                return n;
            }
        }
        count
    };
    polls(300);
    for _ in 0..20 {
        say(&mut b, at_b, b"b").unwrap();
        let n = polls(100);
        assert!(n <= pace::REST, "{n} polls");
    }
}
