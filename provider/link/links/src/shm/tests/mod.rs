//! Frames from link to link in one process; and what the tests of this module have in common.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hmem::Span;
use link_api::{
    Event, FrameLink as _, FrameSource, Gone, Link as _, Parting, PeerId, PollFrame, Refused, Sent,
};
use wire::Addr;

use super::OpenOptions;
use super::ShmLink;
use crate::shm::channel::ring::Mem as _;

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

pub(super) fn say(link: &mut ShmLink, to: PeerId, bytes: &[u8]) -> Result<Sent, Refused> {
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
        match link.poll_frame(FrameSource::Any) {
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
        while hub.channels.rings.hot() > 1 {
            assert!(hub.poll().is_none() && begin.elapsed() < Duration::from_secs(60));
        }
        assert_eq!((hub.channels.rings.peers().count(), hub.channels.rings.hot()), (9, 1));
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
    hub.channels.pace.never_cool();
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
    assert_eq!(hub.channels.rings.hot(), PEERS);
    for round in 0..200 {
        let n = round * 7 % PEERS;
        let (other, to_hub) = &mut others[n];
        say(other, *to_hub, &[n as u8, round as u8]).unwrap();
        let found = match hub.poll_frame(FrameSource::Any) {
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
    if let Some(out) = &bad.channels.peers[to_hub.0].out {
        (0..out.tx.mem().lines()).for_each(|line| out.tx.mem().commit(line).store(u32::MAX, Relaxed));
    }
    let (closed_id, _) = closed(&mut hub);
    assert_eq!(hub.peer_addr(closed_id), bad.addr());
    assert_eq!(hub.channels.rings.peers().count(), 10);
    for (n, (other, to_hub)) in others.iter_mut().enumerate().filter(|(n, _)| *n != 5) {
        say(other, *to_hub, &[n as u8; 3]).unwrap();
        let (from, said) = poll_fast(&mut hub);
        assert_eq!((hub.peer_addr(from), said), (other.addr(), vec![n as u8; 3]));
    }
}

#[test]
fn frames_asked_for_by_peer_and_those_that_are_found_come_in_order() {
    let (mut hub, mut others) = busy_hub(9);
    hub.channels.cool();
    hub.channels.cool();
    assert_eq!(hub.channels.rings.hot(), 1);
    for (n, (other, to_hub)) in others.iter_mut().enumerate() {
        for i in 0..4 {
            say(other, *to_hub, &[n as u8, i]).unwrap();
        }
        let from = hub.peer(&other.addr());
        // The others of the four are still to be found.
        let PollFrame::Frame(first) = hub.poll_frame(FrameSource::Next(from)) else { panic!("no frame") };
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
    let inb = b.channels.peers[to_a.0].inb.as_ref().unwrap();
    let out = a.channels.peers[to_b.0].out.as_ref().unwrap();
    let starts = [&raw const *inb as usize, &raw const *out as usize];
    // The address of the memory comes last.
    for (start, last) in starts.into_iter().zip([inb.rx.mem().noted_at(), out.tx.mem().noted_at()]) {
        assert_eq!((start % 64, last / 64), (0, start / 64), "from {start:x} to {last:x}");
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

#[test]
fn the_number_of_a_forgotten_peer_is_used_again() {
    let mut b = open();
    let addr = b.addr();
    let mut ids = std::collections::HashSet::new();
    for round in 0..300u32 {
        let mut a = open();
        let to = a.peer(&addr);
        say(&mut a, to, &round.to_le_bytes()).unwrap();
        let (from, said) = frame(&mut b);
        assert_eq!(said, round.to_le_bytes());
        assert_eq!(b.peer_addr(from), a.addr());
        // One that is here is not forgotten.
        b.dismiss(from, Parting::Forgotten);
        assert_eq!(b.peer(&a.addr()), from);
        drop(a);
        assert_eq!(closed(&mut b), (from, Gone::Reset));
        b.dismiss(from, Parting::Forgotten);
        b.dismiss(from, Parting::Forgotten);
        ids.insert(from);
    }
    assert!(
        (b.channels.peers.list().len(), ids.len(), b.channels.peers.names()) == (1, 1, 0),
        "{} peers",
        b.channels.peers.list().len()
    );
    // Those that call it by another of its names, as well.
    let mut all = ShmLink::open(OpenOptions::default()).unwrap();
    let port = all.addr().port();
    for name in [all.addr(), Addr::new(([127, 0, 0, 1], port).into())].into_iter().cycle().take(50) {
        let mut a = open();
        for name in [name, Addr::new(([127, 0, 0, 1], port).into())] {
            let to = a.peer(&name);
            say(&mut a, to, b"x").unwrap();
            frame(&mut all);
        }
        drop(a);
        while all.channels.peers.list().iter().any(|p| p.inb.is_some()) {
            if let Some(Event::Closed(peer, _)) = all.poll() {
                all.dismiss(peer, Parting::Forgotten);
            }
        }
    }
    assert!(all.channels.peers.list().len() <= 2 && all.channels.peers.names() == 0);
}
