//! Contexts whose rings several threads drain, and whose threads rest.

mod common;

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use common::{LIMIT, Pair, options, put, signal, until};
use xpu::command::{Op, Raw};
use xpu::device::Ended;
use xpu::error::code;
use xpu::layout::{NO_REGION, flag};
use xpu::{Context, Options, Producer, RingRequest};

const RINGS: usize = 5;

/// A context with 3 threads and 5 rings, and its peer.
fn many() -> (Context, Context, Vec<Producer>, Raw) {
    let mut here = Context::open(Options { threads: 3, ..options() }).unwrap();
    let mut there = Context::open(options()).unwrap();
    here.allocate(common::WORDS).unwrap();
    there.allocate(common::WORDS).unwrap();
    let rings = (0..RINGS).map(|_| here.open_ring(RingRequest::new(4)).unwrap());
    let rings: Vec<_> = rings.map(|ring| ring.producer()).collect();
    let blobs = [here.blob(), there.blob()];
    let blobs = blobs.each_ref().map(Vec::as_slice);
    here.connect(0, &blobs).unwrap();
    there.connect(1, &blobs).unwrap();
    here.begin().unwrap();
    there.begin().unwrap();
    let peer = here.peer(1, 0).unwrap();
    let add = Raw {
        op: Op::Signal as u8,
        flags: flag::SIGNAL_ADD,
        peer: 1,
        operand: peer.remote,
        value: 1,
        context: peer.key,
        ..Raw::default()
    };
    (here, there, rings, add)
}

#[test]
fn rings_of_several_threads_reach_one_word_and_lose_nothing() {
    const EACH: u64 = 2000;
    let (here, there, rings, add) = many();
    std::thread::scope(|s| {
        for ring in &rings {
            s.spawn(|| {
                let begin = Instant::now();
                let mut last = 0;
                for _ in 0..EACH / 4 {
                    last = loop {
                        match ring.post(&[add; 4]) {
                            Some(first) => break first + 3,
                            None => std::thread::yield_now(),
                        }
                        assert!(begin.elapsed() < LIMIT, "the ring stays full");
                    };
                }
                ring.wait(last, LIMIT).unwrap();
            });
        }
    });
    let get = Raw { op: Op::Get as u8, peer: 1, length: 8, ..Raw::default() };
    let (own, peer) = (here.peer(0, 0).unwrap(), here.peer(1, 0).unwrap());
    let get = Raw { local: own.remote, remote: peer.remote, key: peer.key, ..get };
    let ticket = rings[4].post(&[get]).unwrap();
    rings[4].wait(ticket, LIMIT).unwrap();
    // SAFETY: a word of the region, which the context keeps; it is aligned.
    let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(own.remote as *mut u64) };
    assert_eq!(word.load(Acquire), RINGS as u64 * EACH);
    drop((here, there));
}

/// Peers know the endpoint of the first thread alone.
#[test]
fn messages_are_for_the_rings_of_the_first_thread() {
    let (_here, _there, rings, _) = many();
    let send = Raw {
        op: Op::Send as u8,
        flags: flag::INLINE_DATA,
        peer: 1,
        region: NO_REGION,
        length: 8,
        ..Raw::default()
    };
    let ends = |ring: &Producer| {
        let ticket = ring.post(&[send]).unwrap();
        ring.wait(ticket, LIMIT)
    };
    for refused in [1, 2, 4] {
        let why = ends(&rings[refused]).unwrap_err();
        assert!(matches!(why, Ended::Error(word) if word as i32 == code::OPNOTSUPP), "{why:?}");
    }
    for taken in [0, 3] {
        assert_eq!(ends(&rings[taken]), Ok(()));
    }
}

#[test]
fn a_context_has_1_to_16_threads() {
    for threads in [0, 17] {
        assert!(Context::open(Options { threads, ..options() }).is_err());
    }
}

/// How often a thread of this process has gone to sleep by itself.
fn sleeps() -> i64 {
    // SAFETY: zeros are a value of it, and there is a place for what is found.
    unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut used);
        used.ru_nvcsw
    }
}

fn resting() -> Options {
    Options { idle: Some(Duration::from_millis(25)), ..options() }
}

/// Looks of two contexts' threads in half a second, once all is quiet: each rests 20 times. With naps of 50
/// microseconds these are thousands. How soon a thread has looked 4000 times depends on what else runs.
#[test]
fn threads_that_rest_look_each_25_milliseconds() {
    let _pair = Pair::of(resting(), |_| ());
    until(|| {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(500));
        (10..100).contains(&(sleeps() - before))
    });
}

#[test]
fn a_command_of_a_device_ends_a_rest_in_time_without_a_wake_up() {
    let pair = Pair::of(resting(), |_| ());
    for turn in 1..=5 {
        std::thread::sleep(Duration::from_millis(60));
        pair.run(&[signal(&pair, 0, turn, 0)]);
        assert_eq!(pair.theirs.get(0).load(Acquire), turn);
        // The beat of a thread that rests.
        let beat = pair.producer.beat();
        until(|| pair.producer.beat() != beat);
    }
}

#[test]
fn commands_are_taken_around_wake_ups() {
    let pair = Pair::of(resting(), |_| ());
    let waker = pair.here.waker();
    for turn in 0..15 {
        std::thread::sleep(Duration::from_millis(turn * 3));
        waker.wake();
        pair.theirs.get(8).store(0, Relaxed);
        pair.mine.get(0).store(turn + 1, Relaxed);
        pair.run(&[put(&pair, 0, 8, 1, None)]);
        assert_eq!(pair.theirs.get(8).load(Acquire), turn + 1);
    }
}

#[test]
fn close_does_not_wait_for_a_rest() {
    let mut pair = Pair::of(resting(), |_| ());
    std::thread::sleep(Duration::from_millis(60));
    pair.here.close().unwrap();
    assert_ne!(pair.producer.error(), 0);
}
