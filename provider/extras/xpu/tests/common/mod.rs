//! What the tests of contexts have in common.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use xpu::command::{Op, Raw};
use xpu::layout::flag;
use xpu::{Context, Options, Producer, RingHandle, RingRequest, Words};

/// After which a test fails.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Of each side's region.
pub const WORDS: usize = 1 << 15;

/// Waits until it is so.
pub fn until(so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < LIMIT, "it never came");
        std::thread::yield_now();
    }
}

/// Options of an endpoint of this host alone.
pub fn options() -> Options {
    Options { bind: Some(([127, 0, 0, 1], 0).into()), ..Options::default() }
}

/// Two contexts of this process, the first with a ring.
pub struct Pair {
    pub producer: Producer,
    pub ring: RingHandle,
    pub here: Context,
    pub there: Context,
    pub mine: Arc<Words>,
    pub theirs: Arc<Words>,
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with(|_| ())
    }

    pub fn with(edit: impl FnOnce(&mut RingRequest)) -> Pair {
        Pair::of(options(), edit)
    }

    pub fn of(options: Options, edit: impl FnOnce(&mut RingRequest)) -> Pair {
        let open = || Context::open(options.clone()).unwrap();
        let (mut here, mut there) = (open(), open());
        let (_, mine) = here.allocate(WORDS).unwrap();
        let (_, theirs) = there.allocate(WORDS).unwrap();
        let mut request = RingRequest::new(4);
        edit(&mut request);
        let ring = here.open_ring(request).unwrap();
        let blobs = [here.blob(), there.blob()];
        let blobs = blobs.each_ref().map(|b| b.as_slice());
        here.connect(0, &blobs).unwrap();
        there.connect(1, &blobs).unwrap();
        here.begin().unwrap();
        there.begin().unwrap();
        Pair { producer: ring.producer(), ring, here, there, mine, theirs }
    }

    /// Where word `at` of the peer's region is, in commands.
    pub fn remote(&self, at: usize) -> u64 {
        self.here.peer(1, 0).unwrap().remote + at as u64 * 8
    }

    /// Posts, and waits until all is done without an error.
    pub fn run(&self, commands: &[Raw]) {
        let first = self.producer.post(commands).unwrap();
        self.producer.wait(first + commands.len() as u64 - 1, LIMIT).unwrap();
    }
}

/// A put of so many words from word `from` to word `to`, and a signal after it.
pub fn put(pair: &Pair, from: usize, to: usize, words: usize, signal: Option<(usize, u64)>) -> Raw {
    let key = pair.here.peer(1, 0).unwrap().key;
    let raw = Raw {
        op: Op::Put as u8,
        peer: 1,
        region: 0,
        local: pair.mine.device(from),
        remote: pair.remote(to),
        key,
        length: words as u64 * 8,
        ..Raw::default()
    };
    match signal {
        None => raw,
        Some((at, value)) => Raw {
            op: Op::PutSignal as u8,
            operand: pair.remote(at),
            value,
            context: key,
            flags: flag::SIGNAL_WEAK,
            ..raw
        },
    }
}

/// A signal at word `at`.
pub fn signal(pair: &Pair, at: usize, value: u64, flags: u16) -> Raw {
    let key = pair.here.peer(1, 0).unwrap().key;
    Raw {
        op: Op::Signal as u8,
        flags,
        peer: 1,
        operand: pair.remote(at),
        value,
        context: key,
        ..Raw::default()
    }
}
