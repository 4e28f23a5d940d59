//! Commands a second that a drain takes, in turns with a plain loop that only takes them: one thread posts,
//! 32 at a time, into a ring of 1024 slots. `drain [ROUNDS [COMMANDS]]` prints medians, and ratios to the plain
//! loop. `drain idle [MS]` prints the processor's time that an idle context takes.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use engine::{Cntrs, Config, Domain, EpConfig};
use link::{Links, OpenOptions};
use runtime::{Progress, Runtime};
use xpu::command::{Op, Raw};
use xpu::layout::{SLOT_WORDS, flag};
use xpu::{Context, Drain, Drains, Options, Peers, Place, Port, Producer};
use xpu::{RingOptions, RingPlaces, RingRequest, Words, ring};

const LOG2: u32 = 10;
const GROUP: usize = 32;

/// Posts so many commands, in groups, and waits until `done` says that they are over.
fn post(mut put: impl FnMut() -> bool, done: impl Fn() -> u64, count: u64, from: u64) -> f64 {
    let begin = Instant::now();
    for _ in 0..count / GROUP as u64 {
        while !put() {
            std::hint::spin_loop();
        }
    }
    while done() < from + count {
        std::hint::spin_loop();
    }
    count as f64 / begin.elapsed().as_secs_f64() / 1e6
}

/// What a plain loop takes: it looks at the words of each slot and stores how far it is.
fn plain(count: u64) -> f64 {
    let words: Vec<AtomicU64> = (0..SLOT_WORDS << LOG2).map(|_| AtomicU64::new(0)).collect();
    let (reserved, consumed, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let raw = Raw { op: Op::Nop as u8, ..Raw::default() };
    thread::scope(|s| {
        s.spawn(|| {
            let mut at = 0;
            while !stop.load(Relaxed) {
                let before = at;
                while at < before + 64 {
                    let first = ring::slot(at, LOG2) * SLOT_WORDS;
                    if ring::take(|i| &words[first + i], ring::lap(at, LOG2)).is_none() {
                        break;
                    }
                    at += 1;
                }
                if at != before {
                    consumed.store(at, Release);
                }
            }
        });
        let put = || {
            let Some(first) = ring::reserve(&reserved, &consumed, GROUP as u64, LOG2) else { return false };
            for ticket in first..first + GROUP as u64 {
                let at = ring::slot(ticket, LOG2) * SLOT_WORDS;
                ring::put(|i| &words[at + i], &raw.pack(ring::lap(ticket, LOG2)));
            }
            true
        };
        let rate = post(put, || consumed.load(Acquire), count, 0);
        stop.store(true, Relaxed);
        rate
    })
}

fn options() -> Options {
    Options { bind: Some(([127, 0, 0, 1], 0).into()), ..Options::default() }
}

/// A context with a ring, its peer, and a put of 8 bytes to it.
fn pair() -> Result<(Context, Context, Producer, Raw), Box<dyn Error>> {
    let (mut here, mut there) = (Context::open(options())?, Context::open(options())?);
    here.allocate(512)?;
    there.allocate(512)?;
    let ring = here.open_ring(RingRequest::new(LOG2))?;
    let blobs = [here.blob(), there.blob()];
    let blobs = blobs.each_ref().map(Vec::as_slice);
    here.connect(0, &blobs)?;
    there.connect(1, &blobs)?;
    here.begin()?;
    there.begin()?;
    let peer = here.peer(1, 0).ok_or("no peer")?;
    let (op, flags, peer_number) = (Op::Put as u8, flag::INLINE_DATA, 1);
    let put = Raw {
        op,
        flags,
        peer: peer_number,
        region: xpu::layout::NO_REGION,
        local: 7,
        length: 8,
        remote: peer.remote,
        key: peer.key,
        ..Raw::default()
    };
    let producer = ring.producer();
    Ok((here, there, producer, put))
}

/// Nanoseconds of this thread's time that a command takes: one thread writes a ring full, and then takes all of
/// it, in turns; the time of taking alone is measured, so that other programs on the cores change little.
fn alone(rounds: usize) -> Result<[f64; 3], Box<dyn Error>> {
    let (_here, there, _, put) = pair()?;
    let link = Links::open(OpenOptions { bind: options().bind, ..OpenOptions::default() })?;
    let runtime = Runtime::new(Domain::new(Config { virt_addr: true, rma_order: false }), Progress::Manual);
    let mut engine = runtime.enter()?;
    let (av, cq) = (engine.av_open(), engine.cq_open(1 << 16));
    let peer = engine.av_insert(av, there.addr());
    let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
    let ep = engine.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
    drop(engine);
    let port = Port { ep, rx: None, cq };
    let mut drain = Drain::new(port, Peers::List(vec![peer, peer]), Arc::default(), None);
    let (slots, control) = (Words::new(SLOT_WORDS << LOG2)?, Words::new(64)?);
    let place = |words: &Arc<Words>, at| Place { words: words.clone(), at };
    let places = RingPlaces {
        slots: place(&slots, 0),
        produced: place(&control, 0),
        status: place(&control, 16),
        near: None,
    };
    let options = RingOptions { id: 0, log2_slots: LOG2, bell: false, queue: None, receive_queue: None };
    drain.add_ring(places.clone(), options, 0);
    let producer = Producer::new(places, LOG2);
    let drains = Drains::default();
    drains.add(0, drain);
    let mut costs = [const { Vec::new() }; 3];
    let words: Vec<AtomicU64> = (0..SLOT_WORDS << LOG2).map(|_| AtomicU64::new(0)).collect();
    let nop = Raw { op: Op::Nop as u8, ..Raw::default() };
    let mut plain_at = 0;
    for round in 0..rounds {
        for (which, raw) in [nop, nop, put].into_iter().enumerate() {
            let begin;
            if which == 0 {
                for ticket in plain_at..plain_at + (1 << LOG2) {
                    let at = ring::slot(ticket, LOG2) * SLOT_WORDS;
                    ring::put(|i| &words[at + i], &raw.pack(ring::lap(ticket, LOG2)));
                }
                begin = cpu(libc::CLOCK_THREAD_CPUTIME_ID);
                for _ in 0..1 << LOG2 {
                    let at = ring::slot(plain_at, LOG2) * SLOT_WORDS;
                    ring::take(|i| &words[at + i], ring::lap(plain_at, LOG2)).ok_or("nothing is there")?;
                    plain_at += 1;
                }
            } else {
                let first = producer.post(&[raw; 1 << LOG2]).ok_or("no room")?;
                begin = cpu(libc::CLOCK_THREAD_CPUTIME_ID);
                while producer.done() < first + (1 << LOG2) {
                    drains.poll(&runtime);
                }
            }
            // The first rounds meet the peer.
            if round > rounds / 8 {
                costs[which].push((cpu(libc::CLOCK_THREAD_CPUTIME_ID) - begin) as f64 / f64::from(1 << LOG2));
            }
        }
    }
    if producer.error() != 0 {
        return Err(format!("a command failed: {:#x}", producer.error()).into());
    }
    Ok(costs.map(median))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Nanoseconds of processor's time that this process, or thread, has taken.
fn cpu(clock: libc::clockid_t) -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(clock, &raw mut at) };
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

fn idle(ms: u64) -> Result<(), Box<dyn Error>> {
    let _pair = pair()?;
    thread::sleep(Duration::from_millis(200));
    let (begin, took) = (Instant::now(), cpu(libc::CLOCK_PROCESS_CPUTIME_ID));
    thread::sleep(Duration::from_millis(ms));
    let share = (cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - took) as f64 / begin.elapsed().as_nanos() as f64;
    println!("two idle contexts: {:.2} % of a core", share * 100.0);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "idle") {
        return idle(args.get(1).map_or(Ok(2000), |ms| ms.parse())?);
    }
    if args.first().is_some_and(|a| a == "cost") {
        let [plain, nop, put] = alone(args.get(1).map_or(Ok(500), |n| n.parse())?)?;
        println!(
            "a command of a plain loop {plain:.1} ns, that does nothing {nop:.1} ns, put of 8 bytes {put:.1} ns"
        );
        return Ok(());
    }
    let rounds = args.first().map_or(Ok(7), |n| n.parse::<usize>())?;
    let count = args.get(1).map_or(Ok(1 << 20), |n| n.parse::<u64>())? / 1024 * 1024;
    let mut rates = [const { Vec::new() }; 3];
    let (_here, _there, producer, put) = pair()?;
    for _ in 0..rounds {
        rates[0].push(plain(count));
        for (at, raw) in [(1, Raw { op: Op::Nop as u8, ..Raw::default() }), (2, put)] {
            let group = [raw; GROUP];
            let from = producer.done();
            rates[at].push(post(|| producer.post(&group).is_some(), || producer.done(), count, from));
        }
    }
    if producer.error() != 0 {
        return Err(format!("a command failed: {:#x}", producer.error()).into());
    }
    let [plain, nop, put] = rates.map(median);
    println!("plain loop {plain:.2} M/s");
    println!("drain, commands that do nothing {nop:.2} M/s, {:.3} of the plain loop", nop / plain);
    println!("drain, puts of 8 bytes {put:.2} M/s, {:.3} of the plain loop", put / plain);
    Ok(())
}
