//! Memory lent to several contexts of one process, over each path and over two at a time, and what borrowers
//! and lenders of ill will send.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use super::messages::Name;
use super::{Borrowed, Lends, Lent, with};
use crate::backends::{self, Near};
use crate::core::Net;
use crate::start::FileBootstrap;
use crate::{
    Atomic, AtomicOp, Backend as _, Block, Bootstrap, Context, Error, Event, Patience, Policy, Rank, Settings,
};

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 1 << 20;
const WAYS: [&str; 4] = ["mapped", "put", "frames", "mixed"];
/// Its keeper is the last borrower.
const BORROWERS: [Rank; 3] = [3, 1, 2];

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

fn add(operand: u64) -> Atomic {
    Atomic { op: AtomicOp::Sum, wide: true, operand, compare: 0 }
}

/// Of a process that the others take for one of another host, if `is_far`.
#[derive(Debug)]
struct Cards(FileBootstrap, bool);

impl Bootstrap for Cards {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn rank(&self) -> Rank {
        self.0.rank()
    }

    fn size(&self) -> Rank {
        self.0.size()
    }

    fn publish(&mut self, card: &[u8]) -> Result<(), Error> {
        // The host is the last of it.
        let mut card = card.to_vec();
        card.extend(if self.1 { &b"0"[..] } else { &[] });
        self.0.publish(&card)
    }

    fn card(&mut self, of: Rank, until: Instant) -> Result<Vec<u8>, Error> {
        let mut card = self.0.card(of, until)?;
        card.extend(if self.1 { &b"0"[..] } else { &[] });
        Ok(card)
    }
}

fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("strait-rpipe-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    dir
}

/// Rank 0 is the lender.
fn job(name: &str, way: &str) -> Vec<Arc<Context>> {
    let dir = directory(&format!("lend-many-{name}-{way}"));
    let backend = if way == "frames" { "strait:frames" } else { "strait" };
    let settings = Settings { map: way != "put", backend: backend.into(), ..Settings::default() };
    let open = |rank: Rank| {
        let cards = Cards(FileBootstrap::new(rank, 4, &dir).unwrap(), way == "mixed" && rank == 2);
        let backend = backends::open(&settings, rank).unwrap();
        Arc::new(Context::new(backend, Box::new(cards), settings.clone()).unwrap())
    };
    (0..4).map(open).collect()
}

/// What is lent, and the borrowers of ranks 1 to 3.
fn lend(all: &[Arc<Context>], len: usize) -> (Lent, Vec<Borrowed>) {
    thread::scope(|s| {
        let borrow = |context| Borrowed::open(context, 0, Some(Policy::FirstFit), patience()).unwrap();
        let borrowers: Vec<_> = all[1..].iter().map(|context| s.spawn(move || borrow(context))).collect();
        let lent = Lent::open_many(&all[0], &BORROWERS, len, patience()).unwrap();
        (lent, borrowers.into_iter().map(|one| one.join().unwrap()).collect())
    })
}

/// One borrower's part of what all do at a time; what its operations have found.
fn work(memory: &mut Borrowed, me: usize, block: Block, all: &Barrier) -> Vec<u64> {
    // Each bit is flipped an odd number of times.
    const ROUNDS: usize = 200;
    let part = |of: usize| vec![of as u8 + 1; 3000];
    memory.write(block, 64 + 3000 * me, &part(me), patience()).unwrap();
    let (mut found, until) = (Vec::new(), Instant::now() + LIMIT);
    for round in 0..ROUNDS {
        found.push(memory.atomic(block, 0, &add(1), patience()).unwrap());
        memory.atomic(block, 8, &Atomic { wide: false, ..add(1) }, patience()).unwrap();
        // 3 is added by compare and swap.
        let mut was = memory.atomic(block, 16, &add(0), patience()).unwrap();
        loop {
            let next = Atomic { op: AtomicOp::CompareSwap, wide: true, operand: was + 3, compare: was };
            match memory.atomic(block, 16, &next, patience()).unwrap() {
                same if same == was => break,
                other => was = other,
            }
            assert!(Instant::now() < until, "compare and swap finds no end");
        }
        let bit = Atomic { op: AtomicOp::Xor, ..add(1 << (8 * me + round % 8)) };
        memory.atomic(block, 24, &bit, patience()).unwrap();
    }
    all.wait();
    for of in 0..3 {
        let mut bytes = vec![0; 3000];
        memory.read(block, 64 + 3000 * of, &mut bytes, patience()).unwrap();
        assert!(bytes == part(of), "of {of} at {me}");
    }
    let word = |memory: &mut Borrowed, at| memory.atomic(block, at, &add(0), patience()).unwrap();
    let words = [0, 8, 16, 24].map(|at| word(memory, at));
    assert_eq!(words, [3 * ROUNDS as u64, 3 * ROUNDS as u64, 9 * ROUNDS as u64, 0xff_ffff], "at {me}");
    // What one of them has written by bytes the others find by an atomic, and the other way round.
    all.wait();
    if me == 1 {
        memory.write(block, 32, &77u64.to_ne_bytes(), patience()).unwrap();
    }
    all.wait();
    assert_eq!(word(memory, 32), 77);
    found
}

/// Adds as fast as it can, until each borrower has done so often enough; how often this one has.
fn storm(memory: &mut Borrowed, block: Block, others: &AtomicUsize) -> u64 {
    let least = if memory.stats().thread { 300 } else { 100_000 };
    let until = Instant::now() + LIMIT;
    for round in 1.. {
        memory.atomic(block, 40, &add(1), patience()).unwrap();
        if round == least {
            others.fetch_sub(1, Relaxed);
        }
        if round >= least && others.load(Relaxed) == 0 {
            return round;
        }
        assert!(round % 1024 != 0 || Instant::now() < until, "the others do not come to their end");
    }
    unreachable!("it has returned, or failed")
}

#[test]
fn several_borrowers_have_the_same_bytes_and_no_operation_of_any_is_lost() {
    for way in WAYS {
        let all = job("works", way);
        let (lent, mut memories) = lend(&all, LEN);
        assert_eq!(lent.has_thread(), ["frames", "mixed"].contains(&way), "{way}");
        let is_mapped = |one: &Borrowed| one.stats().mapped;
        let mapped: Vec<bool> = memories.iter().map(is_mapped).collect();
        assert_eq!(mapped, [["mapped", "mixed"].contains(&way), way == "mapped", mapped[0]], "{way}");
        assert!(memories.iter().all(|one| one.stats().keeper == Some(3)));
        let block = memories[2].alloc(10_000, 64).unwrap();
        for memory in &mut memories[..2] {
            assert!(matches!(memory.alloc(8, 1), Err(Error::Denied(_))), "{way}");
            assert!(matches!(memory.read(block, 0, &mut [0], patience()), Err(Error::Stale(_))), "{way}");
            memory.attach(block, 10_000).unwrap();
        }
        let barrier = Barrier::new(3);
        let found = thread::scope(|s| {
            let start = |(me, memory)| {
                let barrier = &barrier;
                s.spawn(move || work(memory, me, block, barrier))
            };
            let threads: Vec<_> = memories.iter_mut().enumerate().map(start).collect();
            threads.into_iter().flat_map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(found.iter().collect::<HashSet<_>>().len(), found.len(), "{way}: two have found the same");
        let left = AtomicUsize::new(3);
        let added: u64 = thread::scope(|s| {
            let start = |memory| s.spawn(|| storm(memory, block, &left));
            let threads: Vec<_> = memories.iter_mut().map(start).collect();
            threads.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(memories[0].atomic(block, 40, &add(0), patience()), Ok(added), "{way}: some are lost");
        let refuse = |memory: &mut Borrowed, at, wide| {
            memory.atomic(block, at, &Atomic { wide, ..add(1) }, patience()).unwrap_err()
        };
        for memory in &mut memories {
            let misplaced = [(4, true), (12, true), (2, false), (9, false)];
            let faults = misplaced.map(|(at, wide)| refuse(memory, at, wide));
            assert!(faults.iter().all(|fault| matches!(fault, Error::Invalid(_))), "{way}: {faults:?}");
            let outside = [(10_000, true), (9_996, true), (9_998, false), (usize::MAX - 7, true)];
            let faults = outside.map(|(at, wide)| refuse(memory, at, wide));
            assert!(faults.iter().all(|fault| matches!(fault, Error::TooLong(_))), "{way}: {faults:?}");
        }
        assert!(memories[0].stats().atomics > 800);
    }
}

#[test]
fn one_borrower_that_gives_back_leaves_the_others_and_the_lender_hears_of_the_last() {
    for way in WAYS {
        let all = job("back", way);
        let (lent, mut memories) = lend(&all, 4096);
        let block = memories[2].alloc(64, 1).unwrap();
        memories[0].attach(block, 64).unwrap();
        memories[0].write(block, 0, &[7; 64], patience()).unwrap();
        // The one that has the book goes first.
        drop(memories.pop());
        assert_eq!(lent.wait(Patience::for_a(Duration::from_millis(20))), Err(Error::Again), "{way}");
        memories[1].attach(block, 8).unwrap();
        let seven = u64::from_ne_bytes([7; 8]);
        assert_eq!(memories[1].atomic(block, 0, &add(1), patience()), Ok(seven), "{way}");
        drop(memories.pop());
        assert_eq!(lent.wait(Patience::for_a(Duration::from_millis(20))), Err(Error::Again), "{way}");
        assert_eq!(memories[0].atomic(block, 0, &add(1), patience()), Ok(seven + 1), "{way}");
        drop(memories.pop());
        lent.wait(patience()).unwrap();
        // The next one is taken back before any of them gives it back: none is left.
        let (next, mut memories) = lend(&all, 4096);
        let block = memories[2].alloc(64, 1).unwrap();
        memories[..2].iter_mut().for_each(|memory| memory.attach(block, 64).unwrap());
        drop(next);
        for memory in &mut memories {
            let until = Instant::now() + LIMIT;
            let fault = loop {
                match memory.atomic(block, 0, &add(1), patience()) {
                    Ok(_) => assert!(Instant::now() < until, "{way}: goes on"),
                    Err(fault) => break fault,
                }
                all[0].progress().unwrap();
            };
            assert!(matches!(fault, Error::Gone(_)), "{way}: {fault:?}");
        }
        drop((lent, memories));
        let until = Instant::now() + LIMIT;
        while with(&all[0], |lends, _| Ok(lends.is_lending())).unwrap() {
            assert!(Instant::now() < until, "{way}: memory is kept");
            all.iter().for_each(|context| context.progress().unwrap());
        }
    }
}

#[test]
fn memory_that_is_taken_back_is_reached_until_the_last_borrower_has_heard_of_it() {
    for way in WAYS {
        let all = job("reached", way);
        let (lent, mut memories) = lend(&all, 4096);
        let block = memories[2].alloc(64, 1).unwrap();
        // Rank 2 stays, which is on another host where some are.
        let mut last = memories.swap_remove(1);
        last.attach(block, 64).unwrap();
        drop(memories);
        let are_back = |lends: &mut Lends, net: &mut Net| {
            let back = |name: &&Name| name.borrower == 2 || lends.is_back(net, **name) == Ok(true);
            Ok(lent.names.iter().filter(back).count() == 3)
        };
        let until = Instant::now() + LIMIT;
        while !with(&all[0], are_back).unwrap() {
            assert!(Instant::now() < until, "{way}: not given back");
            all.iter().for_each(|context| context.progress().unwrap());
        }
        let before = Instant::now();
        last.write(block, 0, &[1; 64], patience()).unwrap();
        lent.names.iter().for_each(|name| with(&all[0], |lends, net| lends.take_back(net, *name)).unwrap());
        let written = last.write(block, 0, &[2; 64], patience());
        // Where it is mapped, a borrower hears of it later than that; else in the call.
        if before.elapsed() < Duration::from_millis(80) {
            let is_mapped = last.stats().mapped;
            assert!(
                written == Ok(()) || !is_mapped && matches!(written, Err(Error::Gone(_))),
                "{way}: {written:?}"
            );
        }
        let until = Instant::now() + LIMIT;
        while last.write(block, 0, &[3; 64], patience()).is_ok() {
            assert!(Instant::now() < until, "{way}: goes on");
            all[0].progress().unwrap();
        }
        assert!(matches!(last.write(block, 0, &[3; 64], patience()), Err(Error::Gone(_))), "{way}");
    }
}

#[test]
fn memory_that_one_does_not_take_in_time_is_lent_to_none() {
    for way in WAYS {
        let all = job("none", way);
        let short = Patience::for_a(Duration::from_millis(100));
        for list in [&[][..], &[1, 1], &[1, 0], &[1, 4], &[0]] {
            let fault = Lent::open_many(&all[0], list, 64, short).unwrap_err();
            assert!(matches!(fault, Error::Invalid(_)), "{way}: {list:?}: {fault:?}");
        }
        thread::scope(|s| {
            let lent = s.spawn(|| Lent::open_many(&all[0], &[1, 2], 64, short).map(drop));
            // Rank 2 makes no call.
            while !lent.is_finished() {
                all[1].progress().unwrap();
            }
            assert_eq!(lent.join().unwrap(), Err(Error::Again), "{way}");
        });
        let until = Instant::now() + LIMIT;
        while with(&all[0], |lends, _| Ok(lends.is_lending())).unwrap() {
            assert!(Instant::now() < until, "{way}: memory is kept");
            all[..3].iter().for_each(|context| context.progress().unwrap());
        }
        let none = Borrowed::open(&all[1], 0, None, Patience::Poll).map(drop);
        assert_eq!(none, Err(Error::Again), "{way}");
    }
}

/// The lender makes no call after its own has failed.
#[test]
fn calls_of_a_borrower_end_whose_lender_has_given_up_because_of_another() {
    for way in WAYS {
        let all = job("given-up", way);
        thread::scope(|s| {
            let lent =
                s.spawn(|| Lent::open_many(&all[0], &[1, 2], 4096, Patience::for_a(LIMIT / 100)).map(drop));
            // Rank 2 makes no call.
            let mut memory = Borrowed::open(&all[1], 0, None, patience()).unwrap();
            let (block, until) = (memory.alloc(4096, 1).unwrap(), Instant::now() + LIMIT);
            let fault = loop {
                match memory.write(block, 0, &[1; 4096], patience()) {
                    Ok(()) => assert!(Instant::now() < until, "{way}: goes on"),
                    Err(fault) => break fault,
                }
            };
            assert!(
                matches!(&fault, Error::Gone(why) if why.contains("taken its memory back")),
                "{way}: {fault:?}"
            );
            assert_eq!(lent.join().unwrap(), Err(Error::Again), "{way}");
        });
    }
}

#[test]
fn a_process_has_one_thread_for_all_that_it_lends_and_none_afterwards() {
    let all = job("threads", "frames");
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        names.filter_map(name).filter(|name| name.trim() == "rpipe-lender").count()
    };
    let mut loans: Vec<_> = (0..5).map(|_| lend(&all, 4096)).collect();
    assert!(loans.iter().all(|(lent, _)| lent.has_thread()));
    assert_eq!(threads(), 1);
    while let Some((lent, memories)) = loans.pop() {
        drop(lent);
        assert_eq!(threads(), 1, "with {} left and one that is reached", loans.len());
        drop(memories);
    }
    let until = Instant::now() + LIMIT;
    while threads() > 0 {
        assert!(Instant::now() < until, "a thread is left");
        // The lender makes no call.
        all[1..].iter().for_each(|context| context.progress().unwrap());
    }
    assert!(with(&all[0], |lends, _| Ok(!lends.is_lending())).unwrap());
}

/// A process of rank 1, of two, that says what it likes to rank 0.
struct Villain {
    backend: Near,
    other: Arc<Context>,
    events: Vec<Event>,
}

impl Villain {
    fn new(name: &str) -> Villain {
        let dir = directory(name);
        let boot = |rank| FileBootstrap::new(rank, 2, &dir).unwrap();
        let near = Box::new(Near::open(0, false).unwrap());
        let other = Arc::new(Context::new(near, Box::new(boot(0)), Settings::default()).unwrap());
        let (mut backend, mut boot) = (Near::open(1, true).unwrap(), boot(1));
        boot.publish(&backend.card()).unwrap();
        let card = boot.card(0, Instant::now() + LIMIT).unwrap();
        backend.connect(0, &card).unwrap();
        Villain { backend, other, events: Vec::new() }
    }

    fn say(&mut self, kind: u8, [lender, borrower, ordinal]: [u32; 3], rest: &[u8]) {
        let mut bytes = vec![1, kind, 0, 0];
        [lender, borrower, ordinal].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(rest);
        self.backend.send(0, &bytes, &[]).unwrap();
    }

    /// The next message of this kind.
    fn hear(&mut self, kind: u8) -> Vec<u8> {
        let until = Instant::now() + LIMIT;
        loop {
            self.other.progress().unwrap();
            self.backend.progress(&mut self.events).unwrap();
            for event in self.events.drain(..) {
                if let Event::Control { bytes, .. } = event {
                    if bytes[1] == kind {
                        return bytes;
                    }
                }
            }
            assert!(Instant::now() < until, "no message {kind:#x}");
        }
    }
}

fn request(number: u32, [op, wide, pad]: [u8; 3], at: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend([op, wide, pad, 0]);
    [at, u64::MAX, 0].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    bytes
}

#[test]
fn a_borrower_that_asks_for_what_is_no_operation_is_refused_and_changes_nothing() {
    let mut villain = Villain::new("lend-asks");
    let context = villain.other.clone();
    let lent = thread::scope(|s| {
        let lent = s.spawn(|| Lent::open_many(&context, &[1], 4096, patience()).unwrap());
        let offer = loop {
            villain.backend.progress(&mut villain.events).unwrap();
            let offer = villain.events.drain(..).find_map(|event| match event {
                Event::Control { bytes, grants, .. } if bytes[1] == 0x20 => Some((bytes, grants)),
                _ => None,
            });
            if let Some(offer) = offer {
                break offer;
            }
        };
        assert_eq!(offer.0[16..], [0, 16, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        villain.say(0x21, [0, 1, 1], &[]);
        (lent.join().unwrap(), offer.1)
    });
    let memory = lent.1[0].mapped.clone().unwrap();
    let answer = |villain: &mut Villain| {
        let bytes = villain.hear(0x25);
        (bytes[16], bytes[20])
    };
    let places = [4096, 4090, 1, 4, u64::MAX, u64::MAX - 7];
    for (number, at) in places.into_iter().enumerate() {
        villain.say(0x24, [0, 1, 1], &request(number as u32, [0, 1, 0], at));
        assert_eq!(answer(&mut villain), (number as u8, 1), "{at}");
    }
    for (number, shape) in [[6, 1, 0], [255, 0, 0], [0, 2, 0], [0, 1, 1]].into_iter().enumerate() {
        villain.say(0x24, [0, 1, 1], &request(number as u32, shape, 8));
        assert_eq!(answer(&mut villain), (number as u8, 1), "{shape:?}");
    }
    // Memory that there is not, and what has no answer: other names, other lengths, and an answer.
    villain.say(0x24, [0, 1, 2], &request(40, [0, 1, 0], 8));
    assert_eq!(answer(&mut villain), (40, 1));
    villain.say(0x24, [1, 0, 1], &request(41, [0, 1, 0], 8));
    villain.say(0x24, [0, 2, 1], &request(42, [0, 1, 0], 8));
    villain.say(0x24, [0, 1, 1], &request(43, [0, 1, 0], 8)[..31]);
    villain.say(0x25, [0, 1, 1], &[0; 16]);
    villain.say(0x25, [1, 0, 1], &[0; 16]);
    assert!((0..4096).step_by(8).all(|at| memory.word(at).load(std::sync::atomic::Ordering::SeqCst) == 0));
    villain.say(0x24, [0, 1, 1], &request(44, [4, 1, 0], 4088));
    assert_eq!(answer(&mut villain), (44, 0));
    assert_eq!(memory.word(4088).load(std::sync::atomic::Ordering::SeqCst), u64::MAX);
    // Once it has given the memory back it has none.
    villain.say(0x23, [0, 1, 1], &[]);
    villain.say(0x24, [0, 1, 1], &request(45, [4, 1, 0], 8));
    assert_eq!(answer(&mut villain), (45, 1));
    villain.backend.close(Instant::now()).unwrap();
}

#[test]
fn an_offer_in_the_book_of_no_process_is_refused() {
    let mut villain = Villain::new("lend-keeper");
    let region = villain.backend.expose(4096).unwrap();
    for (n, keeper) in [1, 2, u32::MAX].into_iter().enumerate() {
        let mut bytes = vec![1, 0x20, 0, 0];
        [1, 0, n as u32 + 1].iter().for_each(|n: &u32| bytes.extend(n.to_le_bytes()));
        bytes.extend(4096u64.to_le_bytes());
        bytes.extend(keeper.to_le_bytes());
        villain.backend.send(0, &bytes, &[region.id]).unwrap();
        let refused = Borrowed::open(&villain.other, 1, None, patience()).map(drop);
        assert!(matches!(&refused, Err(Error::Broken(why)) if why.contains("no rank's book")), "{refused:?}");
    }
    villain.backend.close(Instant::now()).unwrap();
}
