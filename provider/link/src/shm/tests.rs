//! Frames from link to link in one process; and what the tests of this module have in common.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hmem::Span;
use link_api::{Event, Gone, Link as _, PeerId, PollFrame, Refused};

use super::ring::Mem as _;
use super::{OpenOptions, ShmLink, poll};

pub(super) fn open() -> ShmLink {
    ShmLink::open(OpenOptions {
        bind: Some("127.0.0.1:0".parse().unwrap()),
        connect_timeout: Duration::from_millis(60),
        ..OpenOptions::default()
    })
    .unwrap()
}

/// The next event, waited for a while.
pub(super) fn event(link: &mut ShmLink) -> Option<Event> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if let Some(event) = link.poll() {
            return Some(event);
        }
    }
    None
}

pub(super) fn frame(link: &mut ShmLink) -> (PeerId, Vec<u8>) {
    match event(link) {
        Some(Event::Frame(f)) => {
            let mut bytes = vec![0; f.len];
            assert_eq!(link.read(&f, 0, &mut bytes), f.len);
            let from = f.from;
            link.release(f);
            (from, bytes)
        }
        other => panic!("no frame but {other:?}"),
    }
}

pub(super) fn closed(link: &mut ShmLink) -> (PeerId, Gone) {
    match event(link) {
        Some(Event::Closed(peer, why)) => (peer, why),
        other => panic!("not closed but {other:?}"),
    }
}

pub(super) fn say(link: &mut ShmLink, to: PeerId, bytes: &[u8]) -> Result<(), Refused> {
    link.send(to, bytes, &[], 0, 0)
}

/// Two links that know each other both ways.
pub(super) fn couple() -> (ShmLink, PeerId, ShmLink, PeerId) {
    let (mut a, mut b) = (open(), open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    say(&mut a, to_b, b"hello").unwrap();
    assert_eq!(frame(&mut b), (to_a, b"hello".to_vec()));
    say(&mut b, to_a, b"hi").unwrap();
    assert_eq!(frame(&mut a), (to_b, b"hi".to_vec()));
    (a, to_b, b, to_a)
}

#[test]
fn a_frame_is_its_head_and_the_right_part_of_its_body() {
    let (mut a, to_b, mut b, to_a) = couple();
    let body = [Span::leak(100), Span::leak(0), Span::leak(9000)];
    let text: Vec<u8> = (0..9100).map(|i| (i % 251) as u8).collect();
    hmem::write(&body, 0, &text);
    let into = [Span::leak(64), Span::leak(9000)];
    // Often enough for frames to run over the end of the ring.
    for i in 0..50 {
        let (off, len) = (i * 3, 8500 - i * 7);
        a.send(to_b, b"01234567890123456789", &body, off, len).unwrap();
        let Some(Event::Frame(f)) = event(&mut b) else { panic!("no frame") };
        assert_eq!((f.from, f.len), (to_a, 20 + len));
        let mut head = [0; 20];
        assert_eq!(b.read(&f, 0, &mut head), 20);
        assert_eq!(&head, b"01234567890123456789");
        assert_eq!(b.copy_out(&f, 20, &into, 5, usize::MAX >> 1), len);
        let mut back = vec![0; len];
        hmem::read(&into, 5, &mut back);
        assert!(back == text[off..off + len], "frame {i}");
        assert_eq!(b.copy_out(&f, 20 + len, &into, 0, 1), 0);
        b.release(f);
    }
    let longest = vec![1; a.path(PeerId(0)).max_frame];
    say(&mut a, to_b, &longest).unwrap();
    assert_eq!(frame(&mut b).1, longest);
    assert!(longest.len() >= 10 << 10);
}

#[test]
fn a_full_ring_is_busy_and_an_emptied_one_is_not() {
    let (mut a, to_b, mut b, _) = couple();
    for round in 0..20u32 {
        let mut sent = 0u32;
        while say(&mut a, to_b, &[round.to_le_bytes(), sent.to_le_bytes()].concat()).is_ok() {
            sent += 1;
        }
        assert!(sent > 300, "{sent}");
        assert_eq!(say(&mut a, to_b, b""), Err(Refused::Busy));
        for i in 0..sent {
            assert_eq!(frame(&mut b).1, [round.to_le_bytes(), i.to_le_bytes()].concat());
        }
    }
    // A frame that is not given back is given back by the next poll.
    say(&mut a, to_b, b"1").unwrap();
    say(&mut a, to_b, b"2").unwrap();
    let (Some(Event::Frame(_)), Some(Event::Frame(f))) = (event(&mut b), event(&mut b)) else {
        panic!("no frames")
    };
    let mut byte = [0];
    b.read(&f, 0, &mut byte);
    assert_eq!(&byte, b"2");
}

#[test]
fn an_endpoint_reaches_itself() {
    let mut a = open();
    let addr = a.addr();
    let own = a.peer(&addr);
    for i in 0..2000u32 {
        say(&mut a, own, &i.to_le_bytes()).unwrap();
        assert_eq!(frame(&mut a), (own, i.to_le_bytes().to_vec()));
    }
    assert!(event_none(&mut a));
}

/// Whether `link` has nothing to say: asked for 20 ms, and often enough on a processor that is shared.
pub(super) fn event_none(link: &mut ShmLink) -> bool {
    const POLLS: u32 = 20_000;
    let (start, mut polls) = (Instant::now(), 0);
    while polls < POLLS || start.elapsed() < Duration::from_millis(20) {
        if link.poll().is_some() {
            return false;
        }
        polls += 1;
    }
    true
}

#[test]
fn frames_of_many_peers_arrive_each_in_order() {
    const PEERS: usize = 200;
    let mut hub = open();
    let addr = hub.addr();
    let mut spokes: Vec<ShmLink> = (0..PEERS).map(|_| open()).collect();
    let mut next: HashMap<PeerId, u32> = HashMap::new();
    let mut got = 0;
    for round in 0..100u32 {
        for s in &mut spokes {
            let to = s.peer(&addr);
            say(s, to, &round.to_le_bytes()).unwrap();
        }
        while got < PEERS * (round as usize + 1) {
            let (from, bytes) = frame(&mut hub);
            let next = next.entry(from).or_default();
            assert_eq!(bytes, next.to_le_bytes());
            *next += 1;
            got += 1;
        }
    }
    assert_eq!(next.len(), PEERS);
    for s in &spokes {
        let id = hub.peer(&s.addr());
        say(&mut hub, id, b"back").unwrap();
    }
    for s in &mut spokes {
        assert_eq!(frame(s).1, b"back");
    }
    drop(spokes);
    let ends: Vec<_> = (0..PEERS).map(|_| closed(&mut hub).0).collect();
    assert_eq!(ends.iter().collect::<std::collections::HashSet<_>>().len(), PEERS);
}

/// The next frame, by fast polls where these can say.
fn poll_fast(link: &mut ShmLink) -> (PeerId, Vec<u8>) {
    loop {
        match link.poll_frame() {
            PollFrame::Frame(f) => {
                let mut bytes = vec![0; f.len];
                assert_eq!(link.read(&f, 0, &mut bytes), f.len);
                let from = f.from;
                link.release(f);
                return (from, bytes);
            }
            PollFrame::Nothing => {}
            PollFrame::Unknown => return frame(link),
        }
    }
}

#[test]
fn a_peer_that_sends_again_is_polled_soon_beside_one_that_never_stops() {
    let mut hub = open();
    let mut others: Vec<ShmLink> = (0..9).map(|_| open()).collect();
    let to_hub: Vec<PeerId> = others.iter_mut().map(|o| o.peer(&hub.addr())).collect();
    for round in 0..3u8 {
        for (n, other) in others.iter_mut().enumerate() {
            say(other, to_hub[n], &[round, n as u8]).unwrap();
            assert_eq!(poll_fast(&mut hub).1, [round, n as u8]);
        }
        // No peer sends.
        let begin = Instant::now();
        while hub.rings.hot() > 1 {
            assert!(hub.poll().is_none() && begin.elapsed() < Duration::from_secs(60));
        }
        assert_eq!((hub.rings.peers().count(), hub.rings.hot()), (9, 1));
    }
    // One never stops.
    for late in 1..9 {
        let mut before = 0;
        say(&mut others[late], to_hub[late], b"me too").unwrap();
        while before < 1000 {
            say(&mut others[0], to_hub[0], b"again").unwrap();
            let (_, said) = poll_fast(&mut hub);
            if said == b"me too" {
                break;
            }
            before += 1;
        }
        assert!(before < 100, "heard after {before} others");
        while hub.poll().is_some() {}
    }
}

/// A hub that many peers have just sent to, these, and what they call it. None of them cools.
fn busy_hub(peers: usize) -> (ShmLink, Vec<(ShmLink, PeerId)>) {
    let mut hub = open();
    hub.cooled = Instant::now() + Duration::from_secs(3600);
    let mut others = Vec::new();
    for n in 0..peers {
        let mut other = open();
        let to_hub = other.peer(&hub.addr());
        say(&mut other, to_hub, &[n as u8]).unwrap();
        assert_eq!(poll_fast(&mut hub).1, [n as u8]);
        others.push((other, to_hub));
    }
    (hub, others)
}

#[test]
fn what_one_of_many_busy_peers_sends_is_there_at_the_next_poll() {
    const PEERS: usize = 40;
    let (mut hub, mut others) = busy_hub(PEERS);
    assert_eq!(hub.rings.hot(), PEERS);
    for round in 0..200 {
        let n = round * 7 % PEERS;
        let (other, to_hub) = &mut others[n];
        say(other, *to_hub, &[n as u8, round as u8]).unwrap();
        let found = match hub.poll_frame() {
            PollFrame::Unknown => hub.poll().map(|event| matches!(event, Event::Frame(_))),
            PollFrame::Frame(_) => Some(true),
            PollFrame::Nothing => None,
        };
        assert_eq!(found, Some(true), "round {round}");
        assert!(hub.poll().is_none());
    }
}

#[test]
fn busy_peers_that_end_or_break_the_rules_leave_the_others_their_turns() {
    let (mut hub, mut others) = busy_hub(12);
    let addr = others[3].0.addr();
    drop(others.remove(3));
    let (closed_id, why) = closed(&mut hub);
    assert_eq!((hub.peer_addr(closed_id), why), (addr, Gone::Reset));
    // One of them writes nonsense.
    let (bad, to_hub) = &mut others[5];
    if let Some(out) = &bad.peers[to_hub.0 as usize].out {
        (0..out.tx.mem().lines()).for_each(|line| out.tx.mem().commit(line).store(u32::MAX, Relaxed));
    }
    let (closed_id, _) = closed(&mut hub);
    assert_eq!(hub.peer_addr(closed_id), bad.addr());
    assert_eq!(hub.rings.peers().count(), 10);
    for (n, (other, to_hub)) in others.iter_mut().enumerate().filter(|(n, _)| *n != 5) {
        say(other, *to_hub, &[n as u8; 3]).unwrap();
        let (from, said) = poll_fast(&mut hub);
        assert_eq!((hub.peer_addr(from), said), (other.addr(), vec![n as u8; 3]));
    }
}

#[test]
fn frames_asked_for_by_peer_and_those_that_are_found_come_in_order() {
    let (mut hub, mut others) = busy_hub(9);
    hub.cool();
    hub.cool();
    assert_eq!(hub.rings.hot(), 1);
    for (n, (other, to_hub)) in others.iter_mut().enumerate() {
        for i in 0..4 {
            say(other, *to_hub, &[n as u8, i]).unwrap();
        }
        let from = hub.peer(&other.addr());
        // The others of the four are still to be found.
        let first = hub.poll_frame_from(from).unwrap();
        let mut bytes = [0; 2];
        hub.read(&first, 0, &mut bytes);
        hub.release(first);
        assert_eq!(bytes, [n as u8, 0]);
        for i in 1..4 {
            assert_eq!(poll_fast(&mut hub), (from, vec![n as u8, i]));
        }
    }
}

#[test]
fn what_short_frames_touch_of_a_channel_is_on_one_cache_line() {
    let (mut a, to_b, mut b, to_a) = couple();
    say(&mut a, to_b, b"?").unwrap();
    assert_eq!(frame(&mut b), (to_a, b"?".to_vec()));
    let inb = b.peers[to_a.0 as usize].inb.as_ref().unwrap();
    let out = a.peers[to_b.0 as usize].out.as_ref().unwrap();
    let starts = [&raw const *inb as usize, &raw const *out as usize];
    // The address of the memory comes last.
    for (start, last) in starts.into_iter().zip([inb.rx.mem().noted_at(), out.tx.mem().noted_at()]) {
        assert_eq!((start % 64, last / 64), (0, start / 64), "from {start:x} to {last:x}");
    }
}

/// How many polls find nothing before one finds a frame, and whose.
fn polls_until_found(link: &mut ShmLink) -> (u32, PeerId) {
    for n in 0..1000 {
        let found = match link.poll_frame() {
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

#[test]
fn while_one_peer_is_waited_for_others_are_looked_at_now_and_then() {
    let (mut a, mut b, mut c) = (open(), open(), open());
    let (at_a, at_b) = (a.peer(&c.addr()), b.peer(&c.addr()));
    let (from_a, from_b) = (c.peer(&a.addr()), c.peer(&b.addr()));
    for _ in 0..2 {
        say(&mut a, at_a, b"a").unwrap();
        say(&mut b, at_b, b"b").unwrap();
        let mut heard = [frame(&mut c).0, frame(&mut c).0];
        heard.sort_by_key(|peer| peer.0);
        assert_eq!(heard, [from_a.min(from_b), from_a.max(from_b)]);
    }
    let mut longest = 0;
    for _ in 0..50 {
        c.awaits(Some(from_a));
        say(&mut b, at_b, b"b").unwrap();
        let (n, from) = polls_until_found(&mut c);
        assert_eq!(from, from_b);
        assert!(n < 2 * poll::OTHERS, "{n} polls");
        longest = longest.max(n);
        // What is waited for is found at once, and then nothing is.
        c.awaits(Some(from_a));
        say(&mut b, at_b, b"b").unwrap();
        say(&mut a, at_a, b"a").unwrap();
        let both = [polls_until_found(&mut c), polls_until_found(&mut c)];
        assert!(both.iter().all(|(n, _)| *n < 2), "{both:?}");
        say(&mut b, at_b, b"b").unwrap();
        assert!(polls_until_found(&mut c).0 < 2);
    }
    assert!(longest > 1, "the others were looked at all the time");
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
    c.awaits(Some(from_a));
    ((a, at_a), (b, at_b), c, [from_a, from_b])
}

#[test]
fn others_are_looked_at_as_often_where_looks_at_one_ring_come_between() {
    let (_a, (mut b, at_b), mut c, [from_a, from_b]) = one_of_two_awaited();
    for _ in 0..200 {
        c.awaits(Some(from_a));
        say(&mut b, at_b, b"b").unwrap();
        let mut polls = 0;
        let found = loop {
            assert!(matches!(c.poll_frame_of(from_a), PollFrame::Nothing | PollFrame::Unknown));
            match c.poll_frame() {
                PollFrame::Frame(frame) => break frame,
                PollFrame::Nothing => {}
                PollFrame::Unknown => {
                    if let Some(Event::Frame(frame)) = c.poll() {
                        break frame;
                    }
                }
            }
            polls += 1;
            assert!(polls < 2 * poll::OTHERS, "{polls} polls");
        };
        assert_eq!(found.from, from_b);
        c.release(found);
    }
}

#[test]
fn a_sleeper_that_waits_for_one_peer_is_woken_by_another() {
    let (_a, (mut b, at_b), mut c, [from_a, from_b]) = one_of_two_awaited();
    for n in 0..100 {
        c.awaits(Some(from_a));
        if n % 2 == 0 {
            say(&mut b, at_b, b"b").unwrap();
            assert!(!c.arm(), "it sleeps though a frame is there");
        } else {
            while !c.arm() {
                assert!(!matches!(c.poll(), Some(Event::Frame(_))));
            }
            say(&mut b, at_b, b"b").unwrap();
            let mut fd = libc::pollfd { fd: c.wait_fd().unwrap(), events: libc::POLLIN, revents: 0 };
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
        match c.poll_frame_of(from_a) {
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
    c.awaits(Some(from_a));
    c.forget(from_a);
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
            c.awaits(Some(from_a));
            std::thread::sleep(std::time::Duration::from_micros(200));
            let found = match c.poll_frame() {
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
        assert!(n <= poll::REST, "{n} polls");
    }
}

#[test]
fn what_was_written_of_a_frame_that_could_not_be_read_whole_is_never_a_frame() {
    let (mut a, to_b, mut b, to_a) = couple();
    const PAGE: usize = 64 << 10;
    // SAFETY: a new mapping; its second half is made inaccessible, and only copies that may fail read it.
    let at = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, prot, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        // Each word looks like the commit word of a frame.
        at.cast::<u32>().cast::<[u32; PAGE / 4]>().write([9; PAGE / 4]);
        assert_eq!(libc::mprotect(at.add(PAGE), PAGE, libc::PROT_NONE), 0);
        at
    };
    // SAFETY: what is there of them may be read until the end of the test.
    let part = |off| unsafe { Span::new(at.expose_provenance() + off, PAGE, hmem::Kind::System) }.for_peers();
    let body = [part(0), part(PAGE)];
    for len in [300, 1000, 3000] {
        for n in 0..20 {
            say(&mut a, to_b, b"before").unwrap();
            let sent = a.send(to_b, &[1; 4], &body, PAGE - len, len + 100);
            assert_eq!(sent, Err(Refused::Fault));
            say(&mut a, to_b, b"behind").unwrap();
            for expected in [b"before", b"behind"] {
                assert_eq!(frame(&mut b), (to_a, expected.to_vec()), "{len}, {n}");
            }
            assert!(event_none(&mut b), "{len}, {n}");
        }
    }
    // SAFETY: nothing uses it any more.
    unsafe { libc::munmap(at, 2 * PAGE) };
}
