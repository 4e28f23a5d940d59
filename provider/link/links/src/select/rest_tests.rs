//! Endpoints of one process that rest, and what wakes them.

use std::time::{Duration, Instant};

use link_api::{Event, Frame, FrameLink as _, FrameSource, Link as _, PollFrame, Refused, Sent};
use wire::session::JobKey;

use super::Links;
use crate::shm::OpenOptions;
use crate::tcp::{TcpLink, TcpOptions};

fn open(near: bool) -> Links {
    let bind = Some("127.0.0.1:0".parse().unwrap());
    let mut links =
        Links::open(OpenOptions { bind, port: crate::name::Port::Listens, ..OpenOptions::default() })
            .unwrap();
    links.set_shm(near);
    links.add_tcp(options()).unwrap();
    links
}

/// One whose looks are its own, whatever endpoints other tests of this process have.
fn open_alone() -> Links {
    let mut links = open(false);
    links.rest.leave();
    links
}

fn options() -> TcpOptions {
    TcpOptions::new(JobKey::from_secret(b"of the tests"))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
    }
}

fn rests(links: &Links) -> bool {
    links.rest.rests()
}

/// Polls all of them until they rest, by either way of polling.
fn settle(all: &mut [Links]) {
    until("all to rest", || {
        for (at, links) in all.iter_mut().enumerate() {
            let quick = at % 2 == 0 && matches!(links.poll_frame(FrameSource::Any), PollFrame::Nothing);
            assert!(quick || links.poll().is_none(), "nothing was sent");
        }
        all.iter().all(rests)
    });
}

/// What a poll finds, if that is a frame.
fn slow_frame(links: &mut Links) -> Option<Frame> {
    match links.poll() {
        Some(Event::Frame(frame)) => Some(frame),
        _ => None,
    }
}

/// The same of the quick way, and a poll where that says that only a poll finds out.
fn quick_frame(links: &mut Links) -> Option<Frame> {
    match links.poll_frame(FrameSource::Any) {
        PollFrame::Frame(frame) => Some(frame),
        PollFrame::Nothing => None,
        PollFrame::Unknown => slow_frame(links),
    }
}

/// A frame from one to another of them, all of which are polled in turn.
fn carry(all: &mut [Links], from: usize, to: usize) {
    let (own, name) = (all[from].addr(), all[to].addr());
    let peer = all[from].peer(&name);
    let (mut sent, mut got) = (false, 0);
    until("a frame", || {
        if !sent {
            match all[from].send(peer, b"hello", &[], 0, 0) {
                Ok(Sent::Done) => sent = true,
                Err(Refused::Busy) => {}
                other => panic!("{other:?}"),
            }
        }
        for (at, links) in all.iter_mut().enumerate() {
            if let Some(Event::Frame(frame)) = links.poll() {
                assert_eq!((at, links.peer_addr(frame.from)), (to, own));
                links.release(frame);
                got += 1;
            }
        }
        got > 0
    });
}

/// A sender that receives nothing would else ask for callers of its host every 2 microseconds.
#[test]
fn a_sender_by_a_further_link_asks_for_callers_as_rarely_as_its_receiver() {
    let mut all = [open(false), open(false)];
    assert!(all.iter().all(|links| !links.shm.is_patient()));
    carry(&mut all, 0, 1);
    assert!(all[1].shm.is_patient(), "the receiver");
    assert!(all[0].shm.is_patient(), "the sender");
}

#[test]
fn endpoints_rest_and_are_woken_by_what_comes() {
    let mut all: Vec<Links> = (0..6).map(|_| open(false)).collect();
    settle(&mut all);
    for (from, to) in [(0, 1), (1, 0), (0, 5), (5, 1), (0, 1)] {
        carry(&mut all, from, to);
        // Those that have no peer.
        assert!(all[2..5].iter().all(rests), "what is for others wakes none");
        settle(&mut all);
    }
    // An end wakes as well.
    let gone = all.remove(5);
    drop(gone);
    let mut ends = 0;
    until("two ends", || {
        for links in &mut all {
            ends += usize::from(matches!(links.poll(), Some(Event::Closed(..))));
        }
        ends == 2
    });
}

#[test]
fn an_endpoint_with_a_peer_on_its_host_does_not_rest() {
    let mut all: Vec<Links> = (0..3).map(|_| open(true)).collect();
    settle(&mut all);
    carry(&mut all, 0, 1);
    carry(&mut all, 1, 0);
    let start = Instant::now();
    until("the third to rest alone", || {
        let came = all.iter_mut().any(|links| matches!(links.poll(), Some(Event::Frame(_))));
        assert!(!came && !rests(&all[0]) && !rests(&all[1]));
        rests(&all[2]) && start.elapsed() > 20 * super::crowd::QUIET
    });
    carry(&mut all, 1, 0);
}

#[test]
fn an_endpoint_that_is_called_looks_for_what_the_caller_says_next() {
    let mut called = open_alone();
    let mut caller = TcpLink::bind("127.0.0.1:0".parse().unwrap(), options()).unwrap();
    let slow = called.pace.period();
    until("looks to be rare", || {
        assert!(called.poll().is_none(), "nothing was sent");
        called.pace.period() > 1000 * slow
    });
    let peer = caller.peer(&called.addr());
    let mut hurried = false;
    until("a frame", || {
        let _ = caller.send(peer, b"hello", &[], 0, 0);
        assert!(caller.poll().is_none(), "nothing was sent to it");
        match called.poll() {
            None => hurried |= called.pace.period() <= slow,
            Some(Event::Frame(frame)) => {
                called.release(frame);
                return true;
            }
            // What it is reached by.
            Some(_) => {}
        }
        false
    });
    assert!(hurried, "the proof was waited for as long as a first call");
}

#[test]
fn each_step_of_a_connection_that_is_made_is_taken_by_the_next_poll() {
    let mut called = open_alone();
    let mut caller = TcpLink::bind("127.0.0.1:0".parse().unwrap(), options()).unwrap();
    let peer = caller.peer(&called.addr());
    until("looks to be rare", || {
        assert!(called.poll().is_none(), "nothing was sent");
        called.pace.period() > 1000
    });
    let (mut sent, mut polls) = (false, 0);
    loop {
        // All that the caller can do before the next poll.
        for _ in 0..50 {
            sent = sent || caller.send(peer, b"hello", &[], 0, 0).is_ok();
            assert!(caller.poll().is_none(), "nothing was sent to it");
            std::thread::sleep(Duration::from_micros(20));
        }
        if polls == 0 {
            called.pace.poll_next();
        }
        polls += 1;
        match called.poll() {
            Some(Event::Frame(frame)) => break called.release(frame),
            _ => assert!(polls < 100, "waited in vain for a frame"),
        }
    }
    // The hello, the proof, the confirmation with what the peer is reached by, the frame.
    assert!(polls <= 4, "{polls} polls");
}

#[test]
fn frames_of_shared_memory_make_looks_at_a_link_that_only_listens_rare_by_either_way_of_polling() {
    for quick in [true, false] {
        let (mut a, mut b) = (open(true), open(true));
        let to_b = a.peer(&b.addr());
        let mut got = 0;
        until("all frames", || {
            if let Err(why) = a.send(to_b, b"hello", &[], 0, 0) {
                assert_eq!(why, Refused::Busy);
            }
            a.poll();
            let frame = if quick { quick_frame(&mut b) } else { slow_frame(&mut b) };
            if let Some(frame) = frame {
                b.release(frame);
                got += 1;
            }
            got == 4000
        });
        assert!(b.pace.period() >= 256, "quick {quick}: {}", b.pace.period());
    }
}

#[test]
fn shared_memory_that_has_a_frame_at_each_poll_delays_tcp_by_the_polls_between_two_looks_alone() {
    // A caller of this host is refused by tcp while shared memory serves its host.
    let (mut near, mut b) = (open(true), open_alone());
    let mut far = TcpLink::bind("127.0.0.1:0".parse().unwrap(), options()).unwrap();
    let (far_to_b, name) = (far.peer(&b.addr()), far.addr());
    let mut said = false;
    until("the first frame of a caller", || {
        said = said || far.send(far_to_b, b"hello", &[], 0, 0).is_ok();
        far.poll();
        let frame = quick_frame(&mut b);
        frame.is_some_and(|frame| {
            assert_eq!(b.peer_addr(frame.from), name);
            b.release(frame);
            true
        })
    });
    b.set_shm(true);
    let near_to_b = near.peer(&b.addr());
    let mut busy = |b: &mut Links| {
        while near.send(near_to_b, b"near", &[], 0, 0).is_ok() {}
        near.poll();
        let frame = quick_frame(b)?;
        let is_far = b.peer_addr(frame.from) == name;
        b.release(frame);
        Some(is_far)
    };
    let mut got = 0;
    until("frames of shared memory", || {
        got += usize::from(busy(&mut b).is_some());
        got == 4000
    });
    let period = b.pace.period();
    assert!(period >= 256, "looks at a connected peer are as frequent as once in {period} polls");
    for _ in 0..4 {
        far.send(far_to_b, b"far", &[], 0, 0).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let (mut polls, most) = (1, b.pace.period() + 2);
        while busy(&mut b) != Some(true) {
            polls += 1;
            assert!(polls <= most, "{polls} polls");
        }
    }
}
