//! Messages in the way of PeerDirect Async: post, commit, peek, with contents; by the CPU, by a stream, and by
//! graphs that are replayed.

mod support;

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hmem::cuda::Stream;
use hmem::cuda::graph::Capture;
use peerop::cuda::CudaStream;
use peerop::replay::Pair;
use peerop::{
    Block, Caps, CompletionQueue, Cpu, Error, Executor, List, Op, Place, Reach, SendQueue, Targets, Whence,
};
use support::*;

/// Messages of an iteration, and words of 4 bytes of one: 128 bytes.
const BATCH: usize = 20;
const WORDS: usize = 32;
const ENTRIES: u32 = 64;

type Sends = SendQueue<usize, Arc<Targets>>;
type Completions = CompletionQueue<usize, Arc<Targets>>;

/// One of two processes: its buffers, its queues, and the words that its device accesses.
struct Side {
    sent: Memory,
    received: Memory,
    _words: Memory,
    sends: Mutex<Sends>,
    completions: Mutex<Completions>,
}

impl Side {
    fn new(targets: &Arc<Targets>, words: Memory) -> Side {
        let target = words.register(targets);
        let (doorbell, base) = (Place { target, offset: 0 }, Place { target, offset: 8 });
        let caps = Caps::all();
        let sends = SendQueue::open(targets.clone(), doorbell, 2 * BATCH, caps).unwrap();
        let completions = CompletionQueue::open(targets.clone(), base, ENTRIES, 4, caps).unwrap();
        let buffer = || Memory::new(BATCH * WORDS / 2);
        Side {
            sent: buffer(),
            received: buffer(),
            _words: words,
            sends: Mutex::new(sends),
            completions: Mutex::new(completions),
        }
    }

    /// As a kernel does that makes the data of an iteration.
    fn fill(&self, iteration: u32) {
        (0..BATCH * WORDS).for_each(|n| self.sent.word(n).store(value(iteration, n), Relaxed));
    }

    /// As a kernel does that uses it.
    fn verify(&self, iteration: u32) {
        for n in 0..BATCH * WORDS {
            assert_eq!(self.received.word(n).load(Relaxed), value(iteration, n), "{iteration} {n}");
        }
    }

    /// Posts a batch; the bytecode that sends it.
    fn send(&self) -> Vec<Op> {
        let (mut sends, mut list) = (self.sends.lock().unwrap(), List::new(2));
        (0..BATCH).for_each(|slot| sends.post(slot).unwrap());
        sends.commit(&mut list).unwrap();
        list.ops().to_vec()
    }

    /// The bytecode that waits for the messages of an iteration, the first being 1.
    fn wait(&self, iteration: u32) -> Vec<Op> {
        let mut list = List::new(3);
        let count = u64::from(iteration) * BATCH as u64;
        self.completions.lock().unwrap().peek(&mut list, Whence::Absolute, count).unwrap();
        list.ops().to_vec()
    }

    /// Consumes completions of a batch, whose bytecode has run.
    fn consume(&self) {
        let mut completions = self.completions.lock().unwrap();
        (0..BATCH).for_each(|slot| assert_eq!(completions.poll(), Ok(Some(slot))));
    }
}

fn value(iteration: u32, n: usize) -> u32 {
    iteration.wrapping_mul(2_654_435_761) ^ n as u32
}

/// What moves messages while bytecode says so, until `over`.
fn agent(sides: &[Side; 2], over: &AtomicBool) {
    while !over.load(Relaxed) {
        for (from, to) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
            let released = from.sends.lock().unwrap().release().unwrap();
            for slot in released {
                for n in slot * WORDS..(slot + 1) * WORDS {
                    to.received.word(n).store(from.sent.word(n).load(Relaxed), Relaxed);
                }
                while let Err(full) = to.completions.lock().unwrap().complete(slot) {
                    assert_eq!(full, Error::Overrun(ENTRIES as usize));
                    std::thread::yield_now();
                }
            }
        }
        std::thread::yield_now();
    }
}

#[test]
fn batches_of_20_messages_go_back_and_forth_with_contents() {
    const ITERATIONS: u32 = 10_000;
    let targets = Arc::new(Targets::new());
    let side = || Side::new(&targets, Memory::new(64));
    let (sides, over) = ([side(), side()], AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| agent(&sides, &over));
        let [ping, pong] = &sides;
        let answers = scope.spawn(|| {
            let mut cpu = Cpu::within(targets.clone(), Duration::from_secs(60));
            for i in 1..=ITERATIONS {
                cpu.execute(&pong.wait(i)).unwrap();
                pong.verify(i);
                pong.fill(!i);
                cpu.execute(&pong.send()).unwrap();
                pong.consume();
            }
        });
        let mut cpu = Cpu::within(targets.clone(), Duration::from_secs(60));
        for i in 1..=ITERATIONS {
            ping.fill(i);
            cpu.execute(&ping.send()).unwrap();
            cpu.execute(&ping.wait(i)).unwrap();
            ping.verify(!i);
            ping.consume();
        }
        answers.join().unwrap();
        over.store(true, Relaxed);
    });
}

/// What a stream calls in the place of a kernel.
struct Kernel<'a>(&'a (dyn Fn() + Sync));

/// SAFETY: `arg` is a `Kernel` that lives until the stream was waited for.
unsafe extern "C" fn kernel(arg: *mut c_void) {
    // SAFETY: the caller's promise.
    let kernel = unsafe { &*arg.cast::<Kernel<'_>>() };
    // A panic would not be the test's: what fails is not done, and the test finds that.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(kernel.0));
}

fn call(stream: Stream, what: &Kernel<'_>) {
    // SAFETY: these tests wait for the stream before what it calls goes.
    unsafe { stream.call(kernel, (&raw const *what).cast_mut().cast()) }.unwrap();
}

#[test]
fn a_stream_sends_what_its_kernel_made_and_waits_for_the_answer() {
    const ITERATIONS: u32 = 60;
    let (_alone, cu) = alone();
    let targets = Arc::new(Targets::new());
    let locked = || {
        let words = Memory::new(64);
        cu.lock(words.addr(), 512);
        words
    };
    let side = || Side::new(&targets, locked());
    let (sides, over) = ([side(), side()], AtomicBool::new(false));
    let verified = [Mutex::new(0), Mutex::new(0)];
    cu.jitter(20, 3);
    std::thread::scope(|scope| {
        scope.spawn(|| agent(&sides, &over));
        let (stream, other) = (stream(cu), stream(cu));
        // SAFETY: the streams are waited for before memory goes.
        let executor = |stream| unsafe { CudaStream::new(stream, targets.clone()) }.unwrap();
        let (mut ping, mut pong) = (executor(stream), executor(other));
        for i in 1..=ITERATIONS {
            let verify = |side: usize, with: u32| {
                sides[side].verify(with);
                *verified[side].lock().unwrap() += 1;
            };
            let fill = || sides[0].fill(i);
            let verify_ping = || verify(0, !i);
            let answer = || {
                verify(1, i);
                sides[1].fill(!i);
            };
            let (fill, verify_ping, answer) = (Kernel(&fill), Kernel(&verify_ping), Kernel(&answer));
            // The asynchronous loop: all of it is queued, then the host waits.
            pong.execute(&sides[1].wait(i)).unwrap();
            call(other, &answer);
            pong.execute(&sides[1].send()).unwrap();
            call(stream, &fill);
            ping.execute(&sides[0].send()).unwrap();
            ping.execute(&sides[0].wait(i)).unwrap();
            call(stream, &verify_ping);
            stream.wait().unwrap();
            other.wait().unwrap();
            sides.iter().for_each(Side::consume);
        }
        over.store(true, Relaxed);
    });
    cu.jitter(0, 1);
    assert_eq!(verified.map(|n| n.into_inner().unwrap()), [ITERATIONS; 2]);
}

/// The words of a graph's exchange, in page-locked memory: flag, credit, then the data.
fn message(of: u32) -> Block {
    Block::new(&[of; WORDS]).unwrap()
}

#[test]
fn graphs_and_eager_calls_run_ahead_and_each_message_is_read_once() {
    let (_alone, cu) = alone();
    for seed in 1..=8 {
        let host = cu.alloc_host(4096);
        let targets = Arc::new(Targets::new());
        // SAFETY: it is there until the streams were waited for, and accessed by atomics.
        let target = unsafe { targets.register(host, 4096, Reach::Cpu) }.unwrap();
        let place = |word: u64| Place { target, offset: 4 * word };
        let pair = Pair { flag: place(0), credit: place(1) };
        pair.prepare(&targets).unwrap();
        let data = 64;
        cu.jitter(60, seed);
        let (sender, receiver) = (stream(cu), stream(cu));
        // SAFETY: the streams are waited for before memory goes.
        let executor = |stream| unsafe { CudaStream::new(stream, targets.clone()) }.unwrap();
        let (mut sends, mut receives) = (executor(sender), executor(receiver));
        let log = Mutex::new(Vec::new());
        let read = || {
            let words: Vec<u32> = (0..WORDS).map(|n| atomic(host + 4 * (data + n)).load(SeqCst)).collect();
            let one = words.iter().all(|w| *w == words[0]);
            log.lock().unwrap().push(if one { words[0] } else { u32::MAX });
        };
        let read = Kernel(&read);
        let send = |of| {
            let copy = Op::Copy { to: place(data as u64), block: message(of) };
            [&pair.acquire()[..], &[copy], &pair.signal()[..]].concat()
        };
        // Two graphs of the sender: of two messages, and of one; one of the receiver.
        let mut record = |lists: &[Vec<Op>]| {
            let capture = Capture::begin(sender).unwrap();
            lists.iter().for_each(|list| sends.execute(list).unwrap());
            capture.end().unwrap().instantiate().unwrap()
        };
        let (two, one) = (record(&[send(1), send(2)]), record(&[send(3)]));
        let capture = Capture::begin(receiver).unwrap();
        receives.execute(&pair.wait()).unwrap();
        call(receiver, &read);
        receives.execute(&pair.release()).unwrap();
        let receive = capture.end().unwrap().instantiate().unwrap();
        // SAFETY: memory is there until the streams were waited for.
        let launch = |graph: &hmem::cuda::graph::Instance, stream| unsafe { graph.launch(stream) }.unwrap();
        // The sender runs ahead of the receiver, or the receiver of the sender.
        let all_receives = |times| (0..times).for_each(|_| launch(&receive, receiver));
        if seed % 2 == 0 {
            all_receives(9);
        }
        launch(&two, sender);
        launch(&two, sender);
        sends.execute(&send(4)).unwrap();
        launch(&one, sender);
        launch(&two, sender);
        sends.execute(&send(5)).unwrap();
        if seed % 2 == 1 {
            all_receives(9);
        }
        sender.wait().unwrap();
        receiver.wait().unwrap();
        assert_eq!(*log.lock().unwrap(), [1, 2, 1, 2, 4, 3, 1, 2, 5]);
        assert_eq!((atomic(host).load(SeqCst), atomic(host + 4).load(SeqCst)), (0, 1), "as at first");
    }
    cu.jitter(0, 1);
}
