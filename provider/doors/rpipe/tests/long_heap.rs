//! Ten million allocations of every policy: run with `cargo test --release -p strait-rpipe --test long_heap
//! -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use strait_rpipe::{Block, Heap, Policy};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Random sizes and times of life; the time, and what it came to.
fn random(policy: Policy, count: usize) -> (Duration, f64, usize) {
    let mut heap = Heap::new(1 << 20, 64, policy).unwrap();
    let (mut live, mut random) = (Vec::<Block>::new(), Random(42));
    let (mut failed, mut failed_before, mut worst) = (0, 0, 0f64);
    let begin = Instant::now();
    for n in 0..count {
        let r = random.next();
        let len = 1 + (r >> 8) as usize % (1 << (1 + (r >> 40) % 12));
        match heap.alloc(len, 1) {
            Some(block) => live.push(block),
            None => failed += 1,
        }
        // As full as it gets: what finds no room frees some at random.
        let more = if live.is_empty() || r & 7 != 0 { 0 } else { 9 };
        let refused = if failed > failed_before { 20 } else { 0 };
        failed_before = failed;
        for _ in 0..(more + refused).min(live.len()) {
            let at = (random.next() % live.len() as u64) as usize;
            heap.free(live.swap_remove(at)).unwrap();
        }
        if n % 65536 == 0 {
            worst = worst.max(heap.usage().fragmentation);
        }
    }
    let took = begin.elapsed();
    for block in live {
        heap.free(block).unwrap();
    }
    let usage = heap.usage();
    assert_eq!((usage.used, usage.holes, usage.largest), (0, 1, 1 << 20));
    (took, worst, failed)
}

/// As a stream of messages: the oldest of so many goes, as the reader frees it.
fn stream(policy: Policy, count: usize, under_way: usize) -> Duration {
    let mut heap = Heap::new(1 << 18, 64, policy).unwrap();
    let mut ring = vec![None::<Block>; under_way];
    let begin = Instant::now();
    for n in 0..count {
        let at = n % under_way;
        if let Some(block) = ring[at].take() {
            heap.free_run(block.granule, 1).unwrap();
        }
        let block = heap.alloc(8, 1).unwrap();
        heap.send(block).unwrap();
        ring[at] = Some(block);
    }
    begin.elapsed()
}

#[test]
#[ignore = "long; says how long it takes"]
fn ten_million_allocations_leave_a_whole_heap() {
    const COUNT: usize = 10_000_000;
    for policy in Policy::ALL {
        let (took, worst, failed) = random(policy, COUNT);
        let each = |d: Duration| d.as_nanos() as f64 / COUNT as f64;
        println!(
            "{policy:10} random {:6.1} ns, fragmentation up to {worst:.2}, {failed} refused; stream of 1: {:.1} ns, of 64: {:.1} ns",
            each(took),
            each(stream(policy, COUNT, 1)),
            each(stream(policy, COUNT, 64)),
        );
    }
}
