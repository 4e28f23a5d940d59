//! The executors on a real device against the CPU: what `ci/gpu/peerop` runs. Needs the driver alone. With
//! `stand-in` as its argument it runs over the stand-in for that, to be tried.

#[path = "../tests/support/mod.rs"]
mod support;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use hmem::cuda::Stream;
use hmem::cuda::graph::{Capture, Graph, Instance};
use hmem::cuda::memops::{MOST_IN_BATCH, MemOp, features, queue_batch};
use peerop::cuda::{CudaGraph, CudaStream, means};
use peerop::replay::{Method, Pair, Senders, Shared, choose};
use peerop::{Block, Cpu, Executor, Fence, Op, Place, Reach, TargetId, Targets, Until};
use support::{Cu, Memory, atomic};

const WORDS: usize = 64;
const BYTES: usize = 4 * WORDS;
/// A stream that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(20);

type Outcome = Result<(), String>;

struct Run {
    cu: Cu,
    passed: usize,
    failed: usize,
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn wait(stream: Stream) -> Outcome {
    let began = Instant::now();
    while !stream.is_done().map_err(|e| format!("the stream: {e}"))? {
        if began.elapsed() > LIMIT {
            return Err("the stream hangs".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn on_stream(stream: Stream, targets: &Arc<Targets>) -> Result<CudaStream, String> {
    // SAFETY: this program frees no memory and destroys no stream.
    unsafe { CudaStream::new(stream, targets.clone()) }.map_err(text)
}

fn place(target: u32, word: u64) -> Place {
    Place { target: TargetId(target), offset: 4 * word }
}

/// Numbers without end.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    /// A list without polls that wait, on two targets.
    fn list(&mut self, len: usize) -> Vec<Op> {
        (0..len)
            .map(|_| {
                let (t, w, value) = (self.next(2) as u32, self.next(30), self.next(1 << 31) as u32);
                match self.next(7) {
                    0 | 1 => Op::Store32 { to: place(t, w), value },
                    2 => Op::Store64 { to: place(t, w & !1), value: u64::from(value) << 17 },
                    3 => Op::Copy { to: place(t, w), block: block(1 + self.next(32) as usize, value) },
                    4 => Op::Add32 { to: place(t, w), value },
                    5 => Op::Fence(Fence::ACQUIRE),
                    // 0 there is, since nothing stores to the last word.
                    _ => Op::Poll { at: place(t, 63), until: Until::Geq, value: 0 },
                }
            })
            .collect()
    }
}

fn block(len: usize, first: u32) -> Block {
    let words: Vec<u32> = (0..len as u32).map(|n| first.wrapping_add(n)).collect();
    Block::new(&words).unwrap_or_else(|e| panic!("{e}"))
}

impl Run {
    fn ended(&mut self, what: &str, outcome: Outcome) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(why) => {
                self.failed += 1;
                println!("FAILED {what}: {why}");
            }
        }
    }

    fn stream(&self) -> Stream {
        support::stream(self.cu)
    }

    /// Page-locked memory and memory of the device, registered in this order.
    fn both(&self) -> (Arc<Targets>, usize, usize) {
        let (host, device) = (self.cu.alloc_host(BYTES), self.cu.alloc(BYTES));
        (0..WORDS).for_each(|n| atomic(host + 4 * n).store(0, SeqCst));
        self.cu.write(device, &[0; BYTES]);
        let targets = Arc::new(Targets::new());
        // SAFETY: this program frees no memory; the CPU accesses words of it by atomics.
        unsafe {
            targets.register(host, BYTES, Reach::Cpu).unwrap_or_else(|e| panic!("{e}"));
            targets.register(device, BYTES, Reach::Device).unwrap_or_else(|e| panic!("{e}"));
        }
        (targets, host, device)
    }

    fn list(&self, by: &str, ops: &[Op]) -> Outcome {
        const TIMES: usize = 3;
        let (targets, host, device) = self.both();
        let stream = self.stream();
        match by {
            "stream" => {
                let mut executor = on_stream(stream, &targets)?;
                for _ in 0..TIMES {
                    executor.execute(ops).map_err(text)?;
                }
                wait(stream)?;
            }
            "captured" => {
                let mut executor = on_stream(stream, &targets)?;
                let capture = Capture::begin(stream).map_err(text)?;
                executor.execute(ops).map_err(text)?;
                let instance = capture.end().and_then(|graph| graph.instantiate()).map_err(text)?;
                for _ in 0..TIMES {
                    // SAFETY: this program frees no memory.
                    unsafe { instance.launch(stream) }.map_err(text)?;
                }
                wait(stream)?;
            }
            _ => {
                let graph = Graph::new(stream).map_err(text)?;
                // SAFETY: as above.
                let graph = unsafe { CudaGraph::new(graph, &[], stream, targets.clone()) };
                let mut graph = graph.map_err(text)?;
                graph.execute(ops).map_err(text)?;
                let instance = graph.instantiate().map_err(text)?;
                for _ in 0..TIMES {
                    instance.launch(stream).map_err(text)?;
                }
                wait(stream)?;
            }
        }
        let own = [Memory::new(WORDS / 2), Memory::new(WORDS / 2)];
        let targets = Arc::new(Targets::new());
        for of in &own {
            of.register(&targets);
        }
        let mut cpu = Cpu::within(targets, Duration::ZERO);
        for _ in 0..TIMES {
            cpu.execute(ops).map_err(text)?;
        }
        let found = [self.cu.read(host, BYTES), self.cu.read(device, BYTES)];
        for (n, name) in ["page-locked", "device"].into_iter().enumerate() {
            if found[n] != own[n].bytes() {
                return Err(format!("{name} memory is not as the CPU's after {} operations", ops.len()));
            }
        }
        Ok(())
    }

    fn polls(&self) -> Outcome {
        for until in [Until::And, Until::Nor, Until::Geq] {
            for (word, value) in
                [(0u32, 1u32), (1, 1), (2, 3), (0xffff_fffe, 1), (0, 0xffff_fffe), (5, 0x8000_0005)]
            {
                let (targets, host, _) = self.both();
                atomic(host).store(word, SeqCst);
                let stream = self.stream();
                let list =
                    [Op::Poll { at: place(0, 0), until, value }, Op::Store32 { to: place(0, 1), value: 7 }];
                on_stream(stream, &targets)?.execute(&list).map_err(text)?;
                std::thread::sleep(Duration::from_millis(5));
                let (ends, found) = (until.is_met(word, value), atomic(host + 4).load(SeqCst) == 7);
                if ends != found {
                    return Err(format!("{until:?} of {word:#x} and {value:#x}: ended is {found}"));
                }
                let other = [0, u32::MAX, value, 1].into_iter().find(|w| until.is_met(*w, value));
                match other {
                    Some(word) => atomic(host).store(word, SeqCst),
                    None => return Err(format!("{until:?} {value:#x}: nothing ends it")),
                }
                wait(stream)?;
            }
        }
        Ok(())
    }

    /// Whether the driver takes as many in a batch as it is given, and refuses more.
    fn limit(&self) -> Outcome {
        let (_, host, _) = self.both();
        let stream = self.stream();
        let ops = vec![MemOp::Write32 { to: host as u64, value: 1 }; MOST_IN_BATCH + 1];
        // SAFETY: this program frees no memory.
        unsafe { queue_batch(stream, &ops[1..]) }.map_err(|e| format!("{MOST_IN_BATCH}: {e}"))?;
        // SAFETY: as above.
        let more = unsafe { queue_batch(stream, &ops) };
        println!("a batch of {}: {more:?}", MOST_IN_BATCH + 1);
        wait(stream)
    }

    /// A sender's and a receiver's graph of 100 exchanges of 128 bytes each, replayed, with an eager call in
    /// between; the receiver adds up what it reads.
    fn exchanges(&self, words: u32, data: u32) -> Outcome {
        const EXCHANGES: u32 = 100;
        const REPLAYS: u32 = 20;
        let (targets, host, _) = self.both();
        let pair = Pair { flag: place(words, 60), credit: place(words, 61) };
        let (sender, receiver) = (self.stream(), self.stream());
        let mut set = on_stream(sender, &targets)?;
        set.execute(&[Op::Store32 { to: pair.flag, value: 0 }, Op::Store32 { to: pair.credit, value: 1 }])
            .map_err(text)?;
        wait(sender)?;
        let seen = Seen { at: host, wrong: AtomicU32::new(0), next: AtomicU32::new(0) };
        let send = |n: u32| {
            let copy = Op::Copy { to: place(data, 0), block: block(32, n << 8) };
            [&pair.acquire()[..], &[copy], &pair.signal()[..]].concat()
        };
        let record = |stream: Stream, ops: &[Op]| -> Result<Instance, String> {
            let mut executor = on_stream(stream, &targets)?;
            let capture = Capture::begin(stream).map_err(text)?;
            executor.execute(ops).map_err(text)?;
            capture.end().and_then(|graph| graph.instantiate()).map_err(text)
        };
        let sends: Vec<Op> = (0..EXCHANGES).flat_map(send).collect();
        let sends = record(sender, &sends)?;
        // With contents where the CPU can look, else for the time.
        let receives = if data == 0 {
            let mut executor = on_stream(receiver, &targets)?;
            let capture = Capture::begin(receiver).map_err(text)?;
            for _ in 0..EXCHANGES {
                executor.execute(&pair.wait()).map_err(text)?;
                // SAFETY: `seen` lives until the streams were waited for, or the process ends.
                unsafe { receiver.call(look, (&raw const seen).cast_mut().cast()) }.map_err(text)?;
                executor.execute(&pair.release()).map_err(text)?;
            }
            capture.end().and_then(|graph| graph.instantiate()).map_err(text)?
        } else {
            let one = || [&pair.wait()[..], &pair.release()[..]].concat();
            let all: Vec<Op> = (0..EXCHANGES).flat_map(|_| one()).collect();
            record(receiver, &all)?
        };
        let began = Instant::now();
        for _ in 0..REPLAYS {
            // SAFETY: this program frees no memory.
            unsafe { sends.launch(sender).and_then(|()| receives.launch(receiver)) }.map_err(text)?;
        }
        let ended = wait(sender).and_then(|()| wait(receiver));
        if ended.is_err() {
            // What hangs still uses `seen`.
            ended.clone().unwrap_or_else(|why| println!("FAILED exchanges in {words}, {data}: {why}"));
            std::process::exit(1);
        }
        let each = began.elapsed().as_secs_f64() * 1e6 / f64::from(EXCHANGES * REPLAYS);
        println!("an exchange by graphs, words in {}, data in {}: {each:.2} us", name(words), name(data));
        let (wrong, reads) = (seen.wrong.load(SeqCst), seen.next.load(SeqCst));
        match data {
            0 if (wrong, reads) != (0, EXCHANGES * REPLAYS) => {
                Err(format!("{wrong} of {reads} reads are wrong"))
            }
            _ => Ok(()),
        }
    }

    /// Two graphs of two streams raise one flag in the device's memory.
    fn shared(&self) -> Outcome {
        const TIMES: usize = 50;
        let (targets, host, _) = self.both();
        let flag = Shared { flag: place(1, 0) };
        let receiver = self.stream();
        let mut receives = on_stream(receiver, &targets)?;
        for credit in [2, 4] {
            receives.execute(&[Op::Store32 { to: place(1, credit), value: 1 }]).map_err(text)?;
        }
        wait(receiver)?;
        let mut streams = Vec::new();
        for credit in [2, 4] {
            let stream = self.stream();
            let mut executor = on_stream(stream, &targets)?;
            let capture = Capture::begin(stream).map_err(text)?;
            executor.execute(&flag.acquire(place(1, credit))).map_err(text)?;
            executor.execute(&[Op::Add32 { to: place(0, 0), value: 1 }]).map_err(text)?;
            executor.execute(&flag.signal()).map_err(text)?;
            let instance = capture.end().and_then(|graph| graph.instantiate()).map_err(text)?;
            for _ in 0..TIMES {
                // SAFETY: this program frees no memory.
                unsafe { instance.launch(stream) }.map_err(text)?;
            }
            streams.push((stream, instance));
        }
        for _ in 0..TIMES {
            receives.execute(&flag.wait(2)).map_err(text)?;
            for credit in [2, 4] {
                receives.execute(&flag.release(place(1, credit))).map_err(text)?;
            }
        }
        wait(receiver)?;
        streams.iter().try_for_each(|(stream, _)| wait(*stream))?;
        match atomic(host).load(SeqCst) as usize {
            n if n == 2 * TIMES => Ok(()),
            n => Err(format!("{n} additions of {}", 2 * TIMES)),
        }
    }
}

fn name(target: u32) -> &'static str {
    if target == 0 { "page-locked memory" } else { "device memory" }
}

/// What the receiver's host function finds.
struct Seen {
    at: usize,
    wrong: AtomicU32,
    next: AtomicU32,
}

/// SAFETY: `arg` is a `Seen` that is there.
unsafe extern "C" fn look(arg: *mut c_void) {
    // SAFETY: the caller's promise.
    let seen = unsafe { &*arg.cast::<Seen>() };
    let number = seen.next.fetch_add(1, SeqCst) % 100;
    let right = (0..32).all(|n| atomic(seen.at + 4 * n).load(SeqCst) == (number << 8) + n as u32);
    seen.wrong.fetch_add(u32::from(!right), SeqCst);
}

fn main() {
    let stand_in = std::env::args().nth(1).is_some_and(|a| a == "stand-in");
    let cu = if stand_in { Cu::start() } else { Cu::start_real() };
    hmem::cuda::find_driver();
    let mut run = Run { cu, passed: 0, failed: 0 };
    let stream = run.stream();
    println!("{:?}", features(stream));
    for senders in [Senders::One, Senders::Several] {
        let choice = means(stream).and_then(|means| choose(senders, means));
        println!("{senders:?}: {}", choice.as_ref().map_or_else(text, text));
        let known = choice.is_ok_and(|c| (senders == Senders::One) == (c.method == Method::Alternation));
        run.ended("choice", if known { Ok(()) } else { Err("another method".into()) });
    }
    let limit = run.limit();
    run.ended("limit", limit);
    let polls = run.polls();
    run.ended("polls", polls);
    let mut numbers = Numbers(1);
    for len in [1, 2, 5, 20, 100, 254, 255, 256, 600, 1000] {
        for by in ["stream", "captured", "nodes"] {
            let ops = numbers.list(len);
            let outcome = run.list(by, &ops);
            run.ended(&format!("a list of {len}, {by}"), outcome);
        }
    }
    let shared = run.shared();
    run.ended("a shared flag", shared);
    for (words, data) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let exchanges = run.exchanges(words, data);
        run.ended(&format!("exchanges, words in {}, data in {}", name(words), name(data)), exchanges);
    }
    println!("{} passed, {} failed", run.passed, run.failed);
    std::process::exit(i32::from(run.failed > 0));
}
