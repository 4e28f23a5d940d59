use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;

#[cfg(miri)]
use super::heap::Heap as Memory;
#[cfg(not(miri))]
use crate::shm::channel::segment::Segment as Memory;

const RING: usize = crate::shm::MIN_RING;
const LONG: usize = crate::shm::LONG_RING;

#[cfg(not(miri))]
fn memory(ring: usize) -> (Memory, Memory) {
    let (tx, fd) = Memory::create(ring).unwrap();
    let rx = Memory::adopt(std::os::fd::AsFd::as_fd(&fd), ring).unwrap();
    (tx, rx)
}

#[cfg(miri)]
fn memory(ring: usize) -> (Memory, Memory) {
    let both = Memory::new(ring);
    (both.clone(), both)
}

fn plenty() -> Allowance {
    Allowance::new(u32::MAX)
}

fn pair(pos: u32) -> (Producer<Memory>, Consumer<Memory>) {
    pair_of(pos, plenty())
}

fn pair_of(pos: u32, allowance: Allowance) -> (Producer<Memory>, Consumer<Memory>) {
    let (tx, rx) = memory(RING);
    tx.head().store(pos, Relaxed);
    (Producer::starting_at(tx, pos, allowance), Consumer::starting_at(rx, pos))
}

/// Numbers that look random, the same in every run.
fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn length(state: &mut u64, max: usize) -> usize {
    let r = noise(state) as usize;
    match r & 7 {
        0 => r >> 3 & 1,
        1..=4 => (r >> 3) % 200,
        5 => (r >> 3) % (max + 1),
        6 => LINE * ((r >> 3) % (max / LINE)) + [SHORTEST, SHORT][r >> 40 & 1],
        _ => max,
    }
}

/// As a link does it: what a line has room for by the short way, if that finds room.
fn send(tx: &mut Producer<Memory>, bytes: &[u8]) -> bool {
    if let (true, Some(at)) = (bytes.len() <= SHORT, tx.reserve_short()) {
        // SAFETY: just reserved.
        unsafe { tx.mem().put(at, bytes.as_ptr(), bytes.len()) };
        tx.publish_short(bytes.len());
        return true;
    }
    if !tx.reserve(bytes.len()).unwrap() {
        return false;
    }
    // SAFETY: just reserved.
    unsafe { tx.write(0, bytes) };
    tx.publish(bytes.len());
    true
}

#[test]
fn millions_of_frames_keep_order_and_bytes() {
    const FRAMES: u64 = if cfg!(miri) { 100 } else { 2_000_000 };
    // The positions wrap on the way.
    let (mut tx, mut rx) = pair(u32::MAX - FRAMES as u32 / 2);
    let sender = std::thread::spawn(move || {
        let mut state = 88172645463325252;
        // Bytes of ones, which would make a commit word of any length if taken for one.
        let mut bytes = vec![0xff; max_frame((RING / LINE) as u32)];
        for i in 0..FRAMES {
            let len = length(&mut state, if i % 64 == 0 { bytes.len() } else { 300 });
            let n = len.min(8);
            bytes[..n].copy_from_slice(&i.to_le_bytes()[..n]);
            while !send(&mut tx, &bytes[..len]) {
                std::thread::yield_now();
            }
            bytes[..n].fill(0xff);
        }
    });
    let mut state = 88172645463325252;
    let max = max_frame((RING / LINE) as u32);
    let mut bytes = vec![0; max];
    for i in 0..FRAMES {
        let len = length(&mut state, if i % 64 == 0 { max } else { 300 });
        let got = loop {
            match rx.peek().unwrap() {
                Some(got) => break got,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(got, len, "frame {i}");
        assert_eq!(rx.read(0, &mut bytes), len);
        let n = len.min(8);
        assert_eq!(bytes[..n], i.to_le_bytes()[..n]);
        assert!(bytes[n..len].iter().all(|&b| b == 0xff), "frame {i}");
        let off = len / 2;
        assert_eq!(rx.read(off, &mut bytes), len - off);
        rx.advance();
    }
    sender.join().unwrap();
    assert_eq!(rx.peek(), Ok(None));
}

#[test]
fn the_longest_frame_fits_an_empty_ring_wherever_it_starts() {
    let (mut tx, mut rx) = pair(7);
    let longest = vec![9; max_frame((RING / LINE) as u32)];
    for i in (0..3 * RING / LINE).step_by(if cfg!(miri) { 37 } else { 1 }) {
        for len in [longest.len(), i % 150] {
            assert!(send(&mut tx, &longest[..len]), "after {i}");
            assert_eq!(rx.peek(), Ok(Some(len)));
            assert!(!rx.followed());
            assert!(send(&mut tx, &[]) && rx.followed());
            rx.advance();
            assert_eq!(rx.peek(), Ok(Some(0)));
            rx.advance();
        }
    }
}

#[test]
fn a_full_ring_says_so_and_empties() {
    let (mut tx, mut rx) = pair(0);
    for _ in 0..if cfg!(miri) { 2 } else { 5 } {
        let mut n = 0;
        while send(&mut tx, &[1; 28]) {
            n += 1;
        }
        assert!((RING / LINE * 3 / 4 - 1..RING / LINE).contains(&n), "{n}");
        for _ in 0..n {
            assert_eq!(rx.peek(), Ok(Some(28)));
            rx.advance();
        }
        assert_eq!(rx.peek(), Ok(None));
    }
}

#[test]
fn reading_outside_a_frame_yields_nothing() {
    let (mut tx, mut rx) = pair(0);
    assert!(send(&mut tx, b"frame"));
    assert_eq!(rx.read(0, &mut [0; 9]), 0, "not looked at yet");
    assert_eq!(rx.peek(), Ok(Some(5)));
    let mut b = [0; 9];
    assert_eq!(rx.read(2, &mut b), 3);
    assert_eq!(&b[..3], b"ame");
    assert_eq!(rx.read(5, &mut b), 0);
    assert_eq!(rx.read(usize::MAX, &mut b), 0);
    rx.advance();
    assert_eq!(rx.read(0, &mut b), 0);
}

#[test]
fn nonsense_from_the_other_side_is_found() {
    let (tx, mut rx) = pair(0);
    for word in [u32::MAX, (max_frame((RING / LINE) as u32) + 2) as u32, 1 << 31] {
        tx.mem().commit(0).store(word, Relaxed);
        assert_eq!(rx.peek(), Err(Broken), "{word}");
    }
    let lines = (RING / LINE) as u32;
    for head in [u32::MAX, lines, 1 << 31] {
        let (mut tx, rx) = pair(0);
        let sent = (0..).take_while(|_| send(&mut tx, &[0; 50])).count() as u32;
        rx.mem().head().store(head, Relaxed);
        assert_eq!(tx.reserve(1), Err(Broken), "{head}");
        // Back is no better than too far ahead.
        let (mut tx, rx) = pair(sent);
        while send(&mut tx, &[0; 50]) {}
        rx.mem().head().store(sent - 1, Relaxed);
        assert_eq!(tx.reserve(1), Err(Broken));
    }
}

#[test]
#[cfg_attr(
    miri,
    ignore = "one that breaks the rules has its accesses race with ours, which Miri takes for an error"
)]
fn a_twin_that_scribbles_does_no_harm() {
    let (tx, mut rx) = pair(0);
    let cap = RING;
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let scribbler = std::thread::spawn(move || {
        let mut state = 0x9e3779b97f4a7c15;
        while !stopped.load(Relaxed) {
            let r = noise(&mut state);
            let line = (r >> 32) as u32 % (cap / LINE) as u32;
            let word = [r as u32 % 20_000, r as u32 % 300, r as u32, 0][r as usize >> 7 & 3];
            tx.mem().commit(line).store(word, Relaxed);
            tx.mem().head().store(r as u32, Relaxed);
            tx.mem().bell().store(r as u32, Relaxed);
        }
    });
    let mut bytes = vec![0; cap];
    let (mut frames, mut broken) = (0u32, 0u32);
    while frames < 1000 || broken < 100 {
        match rx.peek() {
            Ok(None) => std::thread::yield_now(),
            Ok(Some(len)) => {
                assert!(len <= max_frame(rx.lines));
                assert_eq!(rx.read(0, &mut bytes), len);
                rx.advance();
                frames += 1;
            }
            // A link closes the channel here. Go on as if it had not.
            Err(Broken) => {
                broken += 1;
                std::thread::yield_now();
            }
        }
    }
    stop.store(true, Relaxed);
    scribbler.join().unwrap();
}

#[test]
fn frames_arrive_wherever_the_first_one_starts() {
    let step = if cfg!(miri) { 111 } else { 1 };
    for (ring, line) in
        [RING, LONG].into_iter().flat_map(|ring| (0..300).step_by(step).map(move |at| (ring, at)))
    {
        let (tx, rx) = memory(ring);
        let mut tx = Producer::new(tx, line, plenty());
        let mut rx = Consumer::new(rx);
        for i in 0..600u32 {
            let long = i as usize % 7 * 100;
            let mut bytes = vec![7; 4 + long];
            bytes[..4].copy_from_slice(&i.to_le_bytes());
            assert!(send(&mut tx, &bytes), "frame {i} from line {line}");
            assert_eq!(rx.peek(), Ok(Some(4 + long)), "frame {i} from line {line}");
            let mut got = vec![0; 4 + long];
            rx.read(0, &mut got);
            assert_eq!(got, bytes);
            rx.advance();
            assert_eq!(rx.peek(), Ok(None));
        }
    }
}

/// The consumer now follows at the producer's heels, now falls behind until the ring is full.
#[test]
fn frames_keep_their_order_where_laps_are_short_and_long() {
    let mut state = 0x2545_f491_4f6c_dd1d;
    let max = max_frame((RING / LINE) as u32);
    for run in 0..if cfg!(miri) { 1 } else { 40 } {
        // Laps end early for good where there is nothing for longer ones.
        let allowance = [plenty(), Allowance::new(0)][run as usize % 2].clone();
        let (mut tx, mut rx) = pair_of(u32::MAX - run * 500, allowance);
        let (mut sent, mut taken, mut lens) = (0u32, 0u32, std::collections::VecDeque::new());
        for step in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let behind = if step / 500 % 3 == 2 { 1 << 20 } else { noise(&mut state) as usize % 9 };
            let most = if noise(&mut state) % 64 == 0 { max } else { 300 };
            let len = length(&mut state, most);
            let mut bytes = vec![0xff; len];
            let n = len.min(4);
            bytes[..n].copy_from_slice(&sent.to_le_bytes()[..n]);
            let full = !send(&mut tx, &bytes);
            if !full {
                lens.push_back(len);
                sent += 1;
            }
            while lens.len() > behind || full && !lens.is_empty() && noise(&mut state) % 64 != 0 {
                let len = lens.pop_front().unwrap();
                assert_eq!(rx.peek(), Ok(Some(len)), "run {run}, step {step}, frame {taken}");
                let mut got = vec![0; len];
                rx.read(0, &mut got);
                let n = len.min(4);
                assert_eq!(got[..n], taken.to_le_bytes()[..n]);
                assert!(got[n..].iter().all(|b| *b == 0xff));
                rx.advance();
                taken += 1;
            }
            assert_eq!(rx.ready(), !lens.is_empty(), "run {run}, step {step}");
        }
    }
}

/// A consumer that is always behind, for longer than positions take to come around.
#[test]
#[cfg(not(miri))]
fn no_frame_is_written_over_once_positions_have_come_around() {
    let (tx, rx) = memory(crate::shm::MAX_RING);
    let lines = tx.lines();
    let (mut tx, mut rx) = (Producer::new(tx, 0, plenty()), Consumer::new(rx));
    // The bytes in between make no difference, and are not written.
    let len = max_frame(lines) / 4;
    let (mut sent, mut taken) = (0u32, 0u32);
    let send = |tx: &mut Producer<Memory>, n: u32| {
        let room = tx.reserve(len).unwrap();
        if room {
            // SAFETY: the first bytes of what was just reserved.
            unsafe { tx.write(0, &n.to_le_bytes()) };
            tx.publish(len);
        }
        u32::from(room)
    };
    while u64::from(sent) * u64::from(lines_of(len)) < (1 << 32) + 4 * u64::from(lines) {
        loop {
            match send(&mut tx, sent) {
                0 => break,
                n => sent += n,
            }
        }
        assert_eq!(rx.peek(), Ok(Some(len)), "frame {taken}");
        assert_eq!(rx.first(), Some(taken.to_le_bytes()));
        rx.advance();
        taken += 1;
    }
}

#[test]
#[cfg(not(miri))]
fn pages_that_are_not_needed_are_not_touched() {
    let (tx, rx) = memory(LONG);
    let (mut tx, mut rx) = (Producer::new(tx, 3, plenty()), Consumer::new(rx));
    let take = |rx: &mut Consumer<Memory>, len| {
        assert_eq!(rx.peek(), Ok(Some(len)));
        rx.advance();
    };
    let pages = |tx: &Producer<Memory>| tx.mem().resident() / 4096;
    let few = soon(tx.mem().lines()) as usize * LINE / 4096 + 1;
    // A ring that is used much takes more.
    let quarter = (LONG / 4096).div_ceil(4);
    for (messages, most) in [(2000, few), (4000, 2 * few), (6000, quarter)] {
        for _ in 0..messages {
            assert!(send(&mut tx, &[1; 28]));
            take(&mut rx, 28);
        }
        assert!(pages(&tx) <= most, "{} pages after {messages} messages", pages(&tx));
    }
    // A consumer that is a little behind takes some more, and one that sleeps has all of it filled.
    let (tx, rx) = memory(LONG);
    let (mut tx, mut rx) = (Producer::new(tx, 3, plenty()), Consumer::new(rx));
    let mut behind = 0;
    for _ in 0..5000 {
        assert!(send(&mut tx, &[1; 28]));
        behind += 1;
        if behind == 200 {
            (0..behind).for_each(|_| take(&mut rx, 28));
            behind = 0;
        }
    }
    assert!(pages(&tx) <= 4 * few, "{} pages", pages(&tx));
    (0..behind).for_each(|_| take(&mut rx, 28));
    let most = (0..).take_while(|_| send(&mut tx, &[1; 28])).count();
    assert!(most >= LONG / LINE * 3 / 4, "{most}");
    assert!(pages(&tx) >= LONG / 4096 * 3 / 4, "{} pages", pages(&tx));
}

#[test]
fn what_is_fetched_of_a_frame_is_its_own_and_inside_the_ring() {
    let at = |line, len| fetched(8, line, len).collect::<Vec<_>>();
    assert_eq!(at(2, SHORTEST), []);
    assert_eq!(at(2, SHORTEST + 1), [2 * LINE + CACHE_LINE]);
    assert_eq!(at(2, SHORT + 1), [2 * LINE + CACHE_LINE, 3 * LINE]);
    // The rest of one that runs over the ring's end is not worth the question.
    assert_eq!(at(7, 3 * LINE), [7 * LINE + CACHE_LINE]);
    let long: Vec<usize> = fetched(1024, 1, 100 * LINE).collect();
    assert_eq!((long.len(), long.last()), (FETCHED - 1, Some(&(LINE + (FETCHED - 1) * CACHE_LINE))));
}

/// Room to spare is room for the frame, also where a lap that ended early has left free lines at two places,
/// and half of the ring is free behind it.
#[test]
fn a_frame_with_room_to_spare_finds_room_and_leaves_half_of_the_ring() {
    let rings = if cfg!(miri) { &[68 << 10][..] } else { &[68 << 10, 72 << 10, 96 << 10, 124 << 10, LONG] };
    for (&ring, allowance) in rings.iter().flat_map(|ring| [(ring, 0), (ring, u32::MAX)]) {
        let (tx, rx) = memory(ring);
        let allowance = Allowance::new(allowance);
        let (mut tx, mut rx) = (Producer::new(tx, 0, allowance), Consumer::new(rx));
        let lines = (ring / LINE) as u32;
        let long = vec![7; (32 << 10).min(max_frame(lines))];
        let (mut state, mut spared, mut offered) = (9, 0, 0);
        for turn in 0..if cfg!(miri) { 400 } else { 40_000 } {
            let (dice, fills) = (noise(&mut state) % 32, turn / (lines / 4) % 2 == 0);
            if dice == 0 && tx.has_room_to_spare(long.len()) {
                assert!(send(&mut tx, &long), "no room in {ring} bytes");
                spared += 1;
                let mut behind = 0;
                while send(&mut tx, &long[..100]) {
                    behind += 1;
                }
                assert!(behind >= lines / 2 - 1, "{behind} of {lines} lines");
                while rx.peek().unwrap().is_some() {
                    rx.advance();
                }
                if noise(&mut state) % 2 == 0 {
                    rx.publish();
                }
            } else if dice == 0 {
                offered += 1;
            } else if fills || dice < 12 {
                let len = length(&mut state, 600);
                send(&mut tx, &long[..len]);
            } else {
                while rx.peek().unwrap().is_some() && noise(&mut state) % 4 > 0 {
                    rx.advance();
                }
                if noise(&mut state) % 3 == 0 {
                    rx.publish();
                }
            }
        }
        assert!(cfg!(miri) || spared > 50 && offered > 0, "{spared} and {offered} in {ring} bytes");
    }
}

/// A question changes nothing: where the next frames go, and what the ring takes, is as without it.
#[test]
#[cfg(not(miri))]
fn frames_go_where_they_would_without_the_question_for_room() {
    for (ring, allowance, behind) in
        [(124 << 10, 0, 1), (124 << 10, u32::MAX, 5), (LONG, 0, 1), (LONG, 0, 40)]
    {
        let mut rings: Vec<_> = (0..2)
            .map(|_| {
                let (tx, rx) = memory(ring);
                (Producer::new(tx, 0, Allowance::new(allowance)), Consumer::new(rx))
            })
            .collect();
        for n in 0..4000 {
            let _ = rings[1].0.has_room_to_spare([17, 32][n % 2] << 10);
            for (tx, rx) in &mut rings {
                assert!(send(tx, &[1; 90]), "frame {n}");
                while n % behind == 0 && rx.peek().unwrap().is_some() {
                    rx.advance();
                }
            }
        }
        let [takes, asked] = [0, 1].map(|n: usize| rings[n].0.mem().resident());
        assert_eq!(takes, asked, "a ring of {ring}, {behind} behind");
        assert_eq!(rings[0].0.known().1, rings[1].0.known().1);
    }
}

/// A ring of the default length for a seventeenth peer, nearly filled and emptied: where next records go, the
/// lines behind these and those before them are free, 32 KiB in neither.
#[test]
fn free_lines_at_two_places_are_no_room_for_a_long_frame() {
    let (tx, rx) = memory(124 << 10);
    let (mut tx, mut rx) = (Producer::new(tx, 0, plenty()), Consumer::new(rx));
    let long = (32 << 10) + 20;
    (0..735).for_each(|n| assert!(send(&mut tx, &[1; 100]), "{n}"));
    while rx.peek().unwrap().is_some() {
        rx.advance();
    }
    rx.publish();
    for n in 0..600 {
        assert!(send(&mut tx, &[2; 100]), "{n}");
        assert!(!tx.has_room_to_spare(long) || tx.reserve(long).unwrap(), "behind {n}");
    }
}
