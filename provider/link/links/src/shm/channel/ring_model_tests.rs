//! Frames of any length through rings of all sizes, with a consumer that is behind by any part of them: each
//! comes once, in order and whole; and an empty ring has room for any.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::segment::Segment;
use crate::shm::{DEFAULT_RING, LONG_RING, MAX_RING, MIDDLE_RING, MIN_RING};

fn noise(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state as usize
}

/// The first word of each line of frame `n`, but for the commit word.
fn mark(n: u32, line: usize) -> [u8; 4] {
    n.wrapping_mul(0x9e37_79b1).wrapping_add(line as u32).to_le_bytes()
}

struct Model {
    tx: Producer<Segment>,
    rx: Consumer<Segment>,
    under_way: VecDeque<usize>,
    sent: u32,
    taken: u32,
    /// Most that the next record's position was ever ahead of the consumer's.
    farthest: u32,
}

impl Model {
    fn new(ring: usize, pos: u32, allowance: Allowance) -> Model {
        let (tx, fd) = Segment::create(ring).unwrap();
        let rx = Segment::adopt(fd.as_fd(), ring).unwrap();
        tx.head().store(pos, Relaxed);
        let (tx, rx) = (Producer::starting_at(tx, pos, allowance), Consumer::starting_at(rx, pos));
        Model { tx, rx, under_way: VecDeque::new(), sent: 0, taken: 0, farthest: 0 }
    }

    fn send(&mut self, len: usize) -> bool {
        if !self.tx.reserve(len).unwrap() {
            return false;
        }
        for (line, off) in (0..(len & !3)).step_by(LINE).enumerate() {
            // SAFETY: inside what was reserved.
            unsafe { self.tx.write(off, &mark(self.sent, line)) };
        }
        self.tx.publish(len);
        self.under_way.push_back(len);
        self.sent += 1;
        self.farthest = self.farthest.max(self.tx.known().1.wrapping_sub(self.rx.pos()));
        true
    }

    fn take(&mut self, seed: u64) {
        let len = self.under_way.pop_front().unwrap();
        assert_eq!(self.rx.peek(), Ok(Some(len)), "seed {seed}, frame {}", self.taken);
        for (line, off) in (0..(len & !3)).step_by(LINE).enumerate() {
            let mut got = [0; 4];
            assert_eq!(self.rx.read(off, &mut got), 4);
            assert_eq!(got, mark(self.taken, line), "seed {seed}, frame {}, line {line}", self.taken);
        }
        self.rx.advance();
        self.taken += 1;
    }
}

fn run(ring: usize, seed: u64, steps: u32) {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let lines = (ring / LINE) as u32;
    let (most, near_wrap) = (max_frame(lines), noise(&mut state) as u32 % (3 * lines));
    let allowance = Allowance::new([0, lines / 8, lines / 2, u32::MAX][noise(&mut state) % 4]);
    let all = allowance.left();
    let mut m = Model::new(ring, 0u32.wrapping_sub(near_wrap), allowance.clone());
    let (mut behind, mut longest) = (0, 28);
    for step in 0..steps {
        if noise(&mut state) % 64 == 0 {
            behind = [0, 1, 4, 30, lines as usize / 16, lines as usize / 4, 1 << 20][noise(&mut state) % 7];
            longest = [28, 28, 120, 300, 5000, most / 4, most][noise(&mut state) % 7].min(most);
        }
        let len = match noise(&mut state) % 8 {
            0 => longest,
            1 => longest & !(LINE - 1) | SHORT,
            _ => noise(&mut state) % (longest + 1),
        };
        let len = len.min(most);
        match noise(&mut state) % 32 {
            // Reserved, and not sent in the end.
            0 => drop(m.tx.reserve(len).unwrap()),
            1 if m.tx.reserve(len).unwrap() => m.tx.abandon(),
            2 => m.rx.publish(),
            3 => drop(m.tx.shrink()),
            _ => {}
        }
        let full = !m.send(len);
        assert!(
            !full || !m.under_way.is_empty(),
            "seed {seed}, step {step}: {len} bytes find no room in an empty ring"
        );
        while m.under_way.len() > behind || full && !m.under_way.is_empty() && noise(&mut state) % 64 != 0 {
            m.take(seed);
        }
        assert_eq!(m.rx.ready(), !m.under_way.is_empty(), "seed {seed}, step {step}");
        assert!(m.farthest < 2 * lines, "seed {seed}, step {step}: {} of {lines}", m.farthest);
    }
    drop(m);
    assert_eq!(allowance.left(), all, "seed {seed}");
}

#[test]
fn frames_come_once_and_in_order_through_rings_of_all_sizes() {
    let seeds = std::env::var("STRAIT_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1u64);
    let sizes =
        [MIN_RING, MIN_RING + 4096, 40 << 10, DEFAULT_RING, MIDDLE_RING, LONG_RING, 1 << 20, MAX_RING];
    for seed in 1..=seeds {
        for ring in sizes {
            let steps = if ring > LONG_RING { 500 } else { 3_000 };
            run(ring, seed, steps);
        }
    }
}

/// A consumer may say that it has taken anything: no frame goes out of the ring, and positions stay sound.
#[test]
fn a_consumer_that_lies_about_its_position_is_found_or_does_no_harm() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for run in 0..200 {
        let ring = [MIN_RING, DEFAULT_RING][run % 2];
        let lines = (ring / LINE) as u32;
        let mut m =
            Model::new(ring, 0u32.wrapping_sub(noise(&mut state) as u32 % lines), Allowance::new(lines));
        for _ in 0..2000 {
            let (head, pos) = m.tx.known();
            let lie = match noise(&mut state) % 8 {
                0 => head
                    .wrapping_add(noise(&mut state) as u32 % pos.wrapping_sub(head).wrapping_add(1).max(1)),
                1 if noise(&mut state) % 32 == 0 => noise(&mut state) as u32,
                2..5 => pos,
                _ => head,
            };
            m.tx.mem().head().store(lie, Relaxed);
            let len = noise(&mut state) % (max_frame(lines) + 1);
            let len = if noise(&mut state) % 4 == 0 { len } else { len % 200 };
            match m.tx.reserve(len) {
                Err(Broken) => break,
                Ok(true) if noise(&mut state) % 8 != 0 => {
                    let [(at, n), (wrapped, rest)] = m.tx.stretches(0, len);
                    assert!(at + n <= ring && wrapped + rest <= ring && n + rest == len);
                    m.tx.publish(len);
                }
                Ok(_) => {}
            }
            if noise(&mut state) % 16 == 0 {
                m.tx.shrink();
            }
        }
    }
}
