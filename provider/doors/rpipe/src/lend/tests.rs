//! Memory lent between two contexts of one process: the lender's is not used once it has lent.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use super::{Borrowed, Lent, with};
use crate::backends::Near;
use crate::core::tests::job;
use crate::start::FileBootstrap;
use crate::{ALIGN_MOST, Backend as _, Bootstrap as _, Context, Error, Event, Patience, Policy, Settings};

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 1 << 20;

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

fn ways() -> [(&'static str, Settings); 3] {
    let frames = Settings { backend: "strait:frames".into(), ..Settings::default() };
    let put = Settings { map: false, ..Settings::default() };
    [("mapped", Settings::default()), ("put", put), ("frames", frames)]
}

/// No piece of an operation is like another one.
fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at * 7 + (at >> 8) + (at >> 16) * 13) as u8).collect()
}

/// The lender's context and memory, and the borrower's.
fn pair(name: &str, settings: &Settings, len: usize) -> (Arc<Context>, Lent, Arc<Context>, Borrowed) {
    let [a, b] = job(&format!("lend-{name}"), settings);
    let (lent, borrowed) = thread::scope(|s| {
        let lent = s.spawn(|| Lent::open(&a, 1, len, patience()).unwrap());
        let borrowed = Borrowed::open(&b, 0, None, patience()).unwrap();
        (lent.join().unwrap(), borrowed)
    });
    (a, lent, b, borrowed)
}

#[test]
fn blocks_are_written_and_read_while_the_lender_makes_no_call() {
    for (name, settings) in ways() {
        let (_a, lent, _b, mut memory) = pair(&format!("moves-{name}"), &settings, LEN);
        assert_eq!(lent.has_thread(), name == "frames", "{name}");
        let mut blocks = Vec::new();
        for (n, len) in [1, 7, 64, 4096, 70_001, 300_000].into_iter().enumerate() {
            let block = memory.alloc(len, if n == 3 { ALIGN_MOST } else { 1 }).unwrap();
            assert_eq!(memory.len(block), Ok(len));
            let mut bytes = vec![1; len];
            memory.read(block, 0, &mut bytes, patience()).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0), "{name}: not zero at first");
            memory.write(block, 0, &pattern(n, len), patience()).unwrap();
            blocks.push((block, n, len));
        }
        for (block, n, len) in &blocks {
            let mut bytes = vec![0; *len];
            memory.read(*block, 0, &mut bytes, patience()).unwrap();
            assert!(bytes == pattern(*n, *len), "{name}: {len} bytes");
        }
        // A part of a block.
        let (block, _, len) = blocks[4];
        memory.write(block, len - 3, b"end", patience()).unwrap();
        let mut end = [0; 5];
        memory.read(block, len - 5, &mut end, patience()).unwrap();
        assert_eq!(&end[2..], b"end", "{name}");
        let stats = memory.stats();
        assert_eq!((stats.writes, stats.reads, stats.mapped), (7, 13, name == "mapped"), "{name}");
        assert_eq!((stats.heap, stats.thread), (LEN as u64, name == "frames"), "{name}");
        assert!(stats.usage.used >= 374_169 && stats.usage.used + stats.usage.free == LEN as u64);
        blocks.into_iter().for_each(|(block, ..)| memory.free(block).unwrap());
        assert_eq!(memory.stats().usage.largest, LEN as u64, "{name}");
    }
}

#[test]
fn what_is_outside_of_a_block_or_stale_is_refused() {
    for (name, settings) in ways() {
        let (_a, _lent, _b, mut memory) = pair(&format!("bounds-{name}"), &settings, 8192);
        let (block, next) = (memory.alloc(100, 1).unwrap(), memory.alloc(100, 1).unwrap());
        memory.write(next, 0, &[5; 100], patience()).unwrap();
        let too_long = |e: Result<(), Error>| assert!(matches!(e, Err(Error::TooLong(_))), "{name}: {e:?}");
        let stale = |e: Result<(), Error>| assert!(matches!(e, Err(Error::Stale(_))), "{name}: {e:?}");
        too_long(memory.write(block, 0, &[9; 101], patience()));
        too_long(memory.write(block, 100, &[9], patience()));
        too_long(memory.write(block, 101, &[], patience()));
        too_long(memory.write(block, usize::MAX, &[9; 2], patience()));
        too_long(memory.read(block, 64, &mut [0; 37], patience()));
        too_long(memory.alloc(8193, 1).map(drop));
        too_long(memory.alloc(usize::MAX, 1).map(drop));
        assert!(matches!(memory.alloc(1, 3), Err(Error::Invalid(_))));
        assert!(matches!(memory.alloc(8192, 1), Err(Error::Full(why)) if why.contains("free some")));
        memory.write(block, 100, &[], patience()).unwrap();
        memory.free(block).unwrap();
        stale(memory.free(block));
        stale(memory.write(block, 0, &[9], patience()));
        stale(memory.read(block, 0, &mut [0], patience()));
        stale(memory.address(block).map(drop));
        let again = memory.alloc(100, 1).unwrap();
        stale(memory.len(block).map(drop));
        let mut bytes = [0; 100];
        memory.read(next, 0, &mut bytes, patience()).unwrap();
        assert_eq!(bytes, [5; 100], "{name}: a refused write has changed a neighbour");
        memory.free(again).unwrap();
    }
}

#[test]
fn memory_that_is_taken_back_fails_its_borrower_and_given_back_notifies_its_lender() {
    for (name, settings) in ways() {
        let (a, lent, b, mut memory) = pair(&format!("back-{name}"), &settings, 4096);
        assert_eq!(lent.wait(Patience::Poll), Err(Error::Again), "{name}");
        let block = memory.alloc(8, 1).unwrap();
        thread::scope(|s| {
            // The lender makes no call afterwards.
            s.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                drop(lent);
            });
            let until = Instant::now() + LIMIT;
            let mut wrote = Ok(());
            while wrote.is_ok() && Instant::now() < until {
                wrote = memory.write(block, 0, &[1; 8], patience());
            }
            assert!(
                matches!(&wrote, Err(Error::Gone(why)) if why.contains("taken its memory back")),
                "{name}: {wrote:?}"
            );
        });
        assert!(matches!(memory.alloc(8, 1), Err(Error::Gone(_))), "{name}");
        drop(memory);
        // The next one is another memory.
        let (lent, memory) = thread::scope(|s| {
            let lent = s.spawn(|| Lent::open(&a, 1, 64, patience()).unwrap());
            let memory = Borrowed::open(&b, 0, Some(Policy::BestFit), patience()).unwrap();
            (lent.join().unwrap(), memory)
        });
        assert_eq!((memory.stats().heap, memory.stats().policy), (64, Some(Policy::BestFit)), "{name}");
        drop(memory);
        lent.wait(patience()).unwrap();
        // None of it is left at the lender.
        drop(lent);
        let until = Instant::now() + LIMIT;
        while with(&a, |lends, _| Ok(lends.is_lending())).unwrap() {
            assert!(Instant::now() < until, "{name}: memory is kept");
            b.progress().unwrap();
            a.progress().unwrap();
        }
    }
}

#[test]
fn memory_that_is_taken_back_ends_the_lenders_own_wait() {
    for (name, settings) in ways() {
        let (_a, lent, _b, _memory) = pair(&format!("wait-{name}"), &settings, 4096);
        thread::scope(|s| {
            let waits = s.spawn(|| lent.wait(patience()));
            thread::sleep(Duration::from_millis(20));
            lent.close();
            let outcome = waits.join().unwrap();
            assert!(
                matches!(&outcome, Err(Error::Invalid(why)) if why.contains("rlend_close")),
                "{outcome:?}"
            );
        });
        lent.close();
    }
}

#[test]
fn a_loan_that_is_not_taken_in_time_is_none_and_others_are_taken_in_order() {
    for (name, settings) in ways() {
        let [a, b] = job(&format!("lend-time-{name}"), &settings);
        assert!(matches!(
            Lent::open(&a, 1, 64, Patience::for_a(Duration::from_millis(50))),
            Err(Error::Again)
        ));
        assert!(matches!(Borrowed::open(&b, 0, None, Patience::Poll), Err(Error::Again)), "{name}");
        for (rank, len) in [(0, 64), (2, 64), (1, 0), (1, usize::MAX)] {
            let fault = Lent::open(&a, rank, len, patience()).unwrap_err();
            assert!(matches!(fault, Error::Invalid(_)), "{name}: {fault:?}");
        }
        assert!(matches!(Borrowed::open(&b, 1, None, patience()), Err(Error::Invalid(_))));
        thread::scope(|s| {
            let lender = s.spawn(|| [100, 200].map(|len| Lent::open(&a, 1, len, patience()).unwrap()));
            // Any call of the borrower's process takes them.
            let until = Instant::now() + LIMIT;
            while !lender.is_finished() {
                assert!(Instant::now() < until, "{name}: not taken");
                b.progress().unwrap();
            }
            for len in [128, 256] {
                let memory = Borrowed::open(&b, 0, None, patience()).unwrap();
                assert_eq!(memory.stats().heap, len, "{name}");
            }
            assert!(matches!(Borrowed::open(&b, 0, None, Patience::Poll), Err(Error::Again)), "{name}");
        });
    }
}

/// What a lender of ill will sends: offers of less than it says, of nothing, twice, and what is no offer.
#[test]
fn a_lender_that_lies_about_its_memory_is_refused() {
    let dir = std::env::temp_dir().join(format!("strait-rpipe-lend-lies-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let boot = |rank| FileBootstrap::new(rank, 2, &dir).unwrap();
    let near = Box::new(Near::open(1, true).unwrap());
    let b = Arc::new(Context::new(near, Box::new(boot(1)), Settings::default()).unwrap());
    let (mut villain, mut boot) = (Near::open(0, true).unwrap(), boot(0));
    boot.publish(&villain.card()).unwrap();
    let card = boot.card(1, Instant::now() + LIMIT).unwrap();
    villain.connect(1, &card).unwrap();
    let region = villain.expose(4096).unwrap();
    let offer = |kind: u8, lender: u32, borrower: u32, n: u32, len: Option<u64>| {
        let mut bytes = vec![1, kind, 0, 0];
        [lender, borrower, n].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        len.iter().for_each(|len| bytes.extend(len.to_le_bytes()));
        bytes
    };
    let mut say = |bytes: &[u8], grants: &[_]| villain.send(1, bytes, grants).unwrap();
    // Each of these is one that is not borrowed.
    say(&offer(0x20, 0, 1, 1, Some(8192)), &[region.id]);
    say(&offer(0x20, 0, 1, 2, Some(u64::MAX)), &[region.id]);
    say(&offer(0x20, 0, 1, 3, Some(4095)), &[region.id]);
    say(&offer(0x20, 0, 1, 4, Some(0)), &[region.id]);
    say(&offer(0x20, 0, 1, 5, Some(4096)), &[]);
    // These are none.
    say(&offer(0x20, 0, 1, 6, None), &[region.id]);
    say(&offer(0x20, 1, 0, 7, Some(4096)), &[region.id]);
    say(&offer(0x20, 2, 1, 8, Some(4096)), &[region.id]);
    say(&offer(0x21, 1, 0, 9, None), &[]);
    say(&offer(0x23, 1, 0, 9, None), &[region.id]);
    say(&offer(0x22, 0, 1, 9, None), &[]);
    // The last one is right, and the second of its name is not taken.
    say(&offer(0x20, 0, 1, 10, Some(4096)), &[region.id]);
    say(&offer(0x20, 0, 1, 10, Some(64)), &[region.id]);
    for n in 1..=5 {
        let fault = Borrowed::open(&b, 0, None, patience()).map(|memory| memory.stats()).unwrap_err();
        assert!(matches!(&fault, Error::Broken(why) if why.contains("less memory")), "{n}: {fault:?}");
    }
    let mut memory = Borrowed::open(&b, 0, None, patience()).unwrap();
    assert_eq!(memory.stats().heap, 4096);
    assert!(matches!(Borrowed::open(&b, 0, None, Patience::Poll), Err(Error::Again)));
    // What it writes there is what is read, and the book has none of it.
    let block = memory.alloc(4096, 1).unwrap();
    (0..4096).step_by(8).for_each(|at| region.memory.word(at).store(u64::MAX, Relaxed));
    let mut bytes = [0; 4096];
    memory.read(block, 0, &mut bytes, patience()).unwrap();
    assert_eq!(bytes, [255; 4096]);
    memory.free(block).unwrap();
    assert_eq!(memory.stats().usage.free, 4096);
    // A flood of offers is kept up to a number, and the rest is refused.
    for n in 100..600 {
        villain.send(1, &offer(0x20, 0, 1, n, Some(4096)), &[region.id]).unwrap();
        b.progress().unwrap();
    }
    let (mut events, mut refused) = (Vec::new(), 0);
    let until = Instant::now() + LIMIT;
    while refused < 500 - 256 + 6 {
        assert!(Instant::now() < until, "{refused} were refused");
        b.progress().unwrap();
        villain.progress(&mut events).unwrap();
        for event in events.drain(..) {
            let Event::Control { bytes, .. } = event else { continue };
            refused += usize::from(bytes[1] == 0x23);
        }
    }
    villain.close(Instant::now()).unwrap();
}
