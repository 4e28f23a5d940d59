//! What rings give back, and that what is sent arrives all the same.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use link_api::Link as _;

use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::ring::{Consumer, FIRST, LINE, Mem as _, max_frame};
use crate::shm::channel::segment::Segment;
use crate::shm::tests::{couple, event_none, frame, open, say};
use crate::shm::{DEFAULT_RING, LONG_RING, MIN_RING, ShmLink};

fn pair(ring: usize) -> (Producer<Segment>, Consumer<Segment>) {
    let (tx, fd) = Segment::create(ring).unwrap();
    let rx = Segment::adopt(fd.as_fd(), ring).unwrap();
    (Producer::new(tx, 5, Allowance::new(u32::MAX)), Consumer::new(rx))
}

fn send(tx: &mut Producer<Segment>, bytes: &[u8]) -> bool {
    if !tx.reserve(bytes.len()).unwrap() {
        return false;
    }
    // SAFETY: just reserved.
    unsafe { tx.write(0, bytes) };
    tx.publish(bytes.len());
    true
}

/// As a link does it now and then.
fn look(tx: &mut Producer<Segment>, rx: &mut Consumer<Segment>) {
    rx.publish();
    tx.shrink();
}

fn fill_and_empty(tx: &mut Producer<Segment>, rx: &mut Consumer<Segment>, most: usize) {
    let sent = (0..most).take_while(|_| send(tx, &[1; 100])).count();
    for _ in 0..sent {
        assert_eq!(rx.peek(), Ok(Some(100)));
        rx.advance();
    }
}

fn pages(tx: &Producer<Segment>) -> usize {
    tx.mem().resident() / 4096
}

/// What is left is the page of the control words, and that which the consumer polls, if it is another one.
fn is_idle(tx: &Producer<Segment>) -> bool {
    pages(tx) == if tx.next_line() < FIRST { 1 } else { 2 }
}

#[test]
fn a_ring_of_which_little_is_used_gives_its_pages_back() {
    for ring in [MIN_RING, DEFAULT_RING, LONG_RING] {
        // Where it stops, the next lap begins at the ring's start or cannot.
        for most in [ring / LINE / 3, ring / LINE / 2, ring / LINE * 4 / 5, usize::MAX] {
            let (mut tx, mut rx) = pair(ring);
            for round in 0..3 {
                fill_and_empty(&mut tx, &mut rx, most);
                look(&mut tx, &mut rx);
                let used = pages(&tx);
                assert!(used >= most.min(ring / LINE * 3 / 4) * LINE / 4096, "in use");
                look(&mut tx, &mut rx);
                assert!(is_idle(&tx), "ring {ring}, {most}, round {round}: {} of {used}", pages(&tx));
            }
            // Laps are short again, unless the first one had to go to the ring's end.
            fill_and_empty(&mut tx, &mut rx, most);
            look(&mut tx, &mut rx);
            look(&mut tx, &mut rx);
            for _ in 0..ring / LINE {
                fill_and_empty(&mut tx, &mut rx, 1);
            }
            let end = if most > ring / LINE * 3 / 4 { ring / 4096 } else { 0 };
            assert!(pages(&tx) <= 2 + ring / 4096 / 4 + end, "{} pages of {ring}", pages(&tx));
        }
    }
}

#[test]
fn a_ring_with_something_under_way_keeps_its_pages() {
    let (mut tx, mut rx) = pair(DEFAULT_RING);
    fill_and_empty(&mut tx, &mut rx, usize::MAX);
    let used = pages(&tx);
    assert!(send(&mut tx, b"frame"));
    for _ in 0..3 {
        look(&mut tx, &mut rx);
    }
    assert_eq!(pages(&tx), used);
    assert_eq!(rx.peek(), Ok(Some(5)));
    assert_eq!(rx.first(), Some(*b"frame"));
    rx.advance();
    look(&mut tx, &mut rx);
    assert!(is_idle(&tx));
}

#[test]
fn a_consumer_that_locks_pages_or_knows_nothing_of_this_keeps_them() {
    let (mut tx, mut rx) = pair(DEFAULT_RING);
    assert!(rx.mem().keeps_pages());
    fill_and_empty(&mut tx, &mut rx, usize::MAX);
    let used = pages(&tx);
    (0..3).for_each(|_| look(&mut tx, &mut rx));
    assert_eq!(pages(&tx), used);

    let (tx, _fd) = Segment::create(DEFAULT_RING).unwrap();
    let mut tx = Producer::new(tx, 0, Allowance::new(u32::MAX));
    let sent = (0..).take_while(|_| send(&mut tx, &[1; 100])).count();
    let used = pages(&tx);
    // As a consumer of an earlier version, which has taken all.
    tx.mem().head().store(tx.known().1, std::sync::atomic::Ordering::Relaxed);
    (0..3).for_each(|_| assert!(!tx.shrink()));
    assert_eq!(pages(&tx), used, "{sent} sent");
}

#[test]
fn a_ring_that_takes_no_more_than_its_first_laps_is_left_alone() {
    for ring in [MIN_RING, DEFAULT_RING, LONG_RING] {
        let (mut tx, mut rx) = pair(ring);
        fill_and_empty(&mut tx, &mut rx, ring / LINE / 2);
        (0..2).for_each(|_| look(&mut tx, &mut rx));
        assert!(is_idle(&tx));
        // The next frame goes to the start, by which the position comes as far as by many.
        for n in 0..100 {
            fill_and_empty(&mut tx, &mut rx, 1 + n % 2);
            let used = pages(&tx);
            (0..3).for_each(|_| look(&mut tx, &mut rx));
            assert_eq!(pages(&tx), used, "ring {ring}, {n}");
        }
    }
}

#[test]
fn pages_that_may_not_go_are_asked_for_again_only_after_some_more_frames() {
    let (mut tx, mut rx) = pair(MIN_RING);
    let at = tx.mem().span(0, MIN_RING).as_ptr().cast();
    let used = |tx: &mut _, rx: &mut _| {
        fill_and_empty(tx, rx, usize::MAX);
        (0..2).for_each(|_| look(tx, rx));
        pages(tx)
    };
    // SAFETY: mapped memory, which stays so.
    assert_eq!(unsafe { libc::mlock(at, MIN_RING) }, 0);
    assert!(used(&mut tx, &mut rx) > MIN_RING / 4096 * 3 / 4);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::munlock(at, MIN_RING) }, 0);
    let before = pages(&tx);
    (0..3).for_each(|_| look(&mut tx, &mut rx));
    assert_eq!(pages(&tx), before);
    used(&mut tx, &mut rx);
    assert!(is_idle(&tx));
}

#[test]
fn frames_keep_their_order_while_pages_go_beside_a_consumer_that_reads() {
    const FRAMES: u32 = 60_000;
    let mut noise = 0x2545_f491u32;
    for ring in [MIN_RING, DEFAULT_RING] {
        let (mut tx, mut rx) = pair(ring);
        let taker = std::thread::spawn(move || {
            for n in 0..FRAMES {
                let len = loop {
                    match rx.peek().unwrap() {
                        Some(len) => break len,
                        None if rx.ready() => {}
                        None => rx.publish(),
                    }
                };
                // The word behind the frame may be in a page that went.
                let _ = rx.followed();
                let mut got = vec![0; len];
                assert_eq!(rx.read(0, &mut got), len);
                assert_eq!(got[..4], n.to_le_bytes());
                assert!(got[4..].iter().all(|b| *b == n as u8 | 1));
                rx.advance();
            }
        });
        let (mut sent, mut given) = (0u32, 0);
        while sent < FRAMES && !taker.is_finished() {
            noise ^= noise << 13;
            noise ^= noise >> 17;
            noise ^= noise << 5;
            let burst = if noise % 4 == 0 { 2 * (ring / LINE) as u32 } else { noise % 8 };
            for _ in 0..burst.min(FRAMES - sent) {
                let mut bytes = vec![sent as u8 | 1; 4 + (noise >> (sent % 16)) as usize % 600];
                bytes[..4].copy_from_slice(&sent.to_le_bytes());
                while !send(&mut tx, &bytes) && !taker.is_finished() {
                    std::thread::yield_now();
                }
                sent += 1;
            }
            while burst > 8 && !tx.is_read() && !taker.is_finished() {
                std::thread::yield_now();
            }
            for _ in 0..(noise >> 8) % 4 {
                let before = tx.is_small();
                tx.shrink();
                given += u32::from(!before && tx.is_small());
            }
        }
        taker.join().unwrap();
        assert!(given > 10, "pages went {given} times");
    }
}

#[test]
fn frames_keep_their_order_while_pages_are_given_back() {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for run in 0..30 {
        let ring = [MIN_RING, DEFAULT_RING][run % 2];
        let max = max_frame((ring / LINE) as u32);
        let (mut tx, mut rx) = pair(ring);
        let (mut sent, mut taken, mut lens) = (0u32, 0u32, VecDeque::new());
        let mut given = 0;
        for step in 0..6000 {
            let quiet = step / 300 % 2 == 1;
            let behind = if quiet { 0 } else { noise() % 200 };
            let len = match noise() % 32 {
                0 => max,
                1..8 => noise() % max,
                _ => noise() % 300,
            };
            let mut bytes = vec![0xff; len.max(4)];
            bytes[..4].copy_from_slice(&sent.to_le_bytes());
            let sends = !quiet || noise() % 16 == 0;
            let full = sends && !send(&mut tx, &bytes);
            if sends && !full {
                lens.push_back(bytes.len());
                sent += 1;
            }
            while lens.len() > behind || full && !lens.is_empty() && noise() % 64 != 0 {
                let len = lens.pop_front().unwrap();
                assert_eq!(rx.peek(), Ok(Some(len)), "run {run}, step {step}, frame {taken}");
                let mut got = vec![0; len];
                rx.read(0, &mut got);
                assert_eq!(got[..4], taken.to_le_bytes());
                assert!(got[4..].iter().all(|b| *b == 0xff));
                rx.advance();
                taken += 1;
            }
            assert_eq!(rx.ready(), !lens.is_empty(), "run {run}, step {step}");
            if noise() % 8 == 0 {
                let before = if quiet { pages(&tx) } else { 0 };
                look(&mut tx, &mut rx);
                given += usize::from(quiet && pages(&tx) < before);
            }
        }
        assert!(given > 0, "no page was given back");
    }
}

#[test]
fn links_give_back_what_a_burst_took() {
    let (mut a, to_b, mut b, _) = couple();
    let taken = |a: &crate::shm::ShmLink| a.channels.peers[to_b.0].out.as_ref().unwrap().tx.mem().resident();
    let mut sent = 0;
    while say(&mut a, to_b, &[7; 1000]).is_ok() {
        sent += 1;
    }
    (0..sent).for_each(|_| assert_eq!(frame(&mut b).1, [7; 1000]));
    assert!(taken(&a) > LONG_RING / 2);
    let start = Instant::now();
    while taken(&a) > 2 * 4096 {
        assert!(start.elapsed() < Duration::from_secs(60), "{} bytes", taken(&a));
        assert!(event_none(&mut a) && event_none(&mut b));
    }
    assert!(start.elapsed() >= Duration::from_millis(100));
    for n in 0..sent {
        say(&mut a, to_b, &[n as u8; 1000]).unwrap();
        assert_eq!(frame(&mut b).1, [n as u8; 1000]);
    }
}

/// Each takes a microsecond for each page, and the thread that polls waits for a message.
#[test]
fn one_call_gives_back_the_pages_of_one_ring() {
    const PEERS: usize = 12;
    let mut hub = open();
    let mut peers: Vec<_> = (0..PEERS).map(|_| open()).collect();
    let ids: Vec<_> = peers.iter().map(|peer| hub.peer(&peer.addr())).collect();
    for (peer, to) in peers.iter_mut().zip(&ids) {
        let sent = (0..).take_while(|_| say(&mut hub, *to, &[7; 1000]).is_ok()).count();
        (0..sent).for_each(|_| assert_eq!(frame(peer).1, [7; 1000]));
    }
    let full = |hub: &ShmLink| {
        let ring = |to: &link_api::PeerId| &hub.channels.peers[to.0].out.as_ref().unwrap().tx;
        ids.iter().filter(|to| ring(to).mem().resident() > 4 * 4096).count()
    };
    let (start, mut left) = (Instant::now(), full(&hub));
    assert_eq!(left, PEERS);
    while left > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{left} are full still");
        assert!(peers.iter_mut().all(|peer| peer.poll().is_none()) && hub.poll().is_none());
        let now = full(&hub);
        assert!(left - now <= 1, "{} rings in one call", left - now);
        left = now;
    }
}
