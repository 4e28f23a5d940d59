//! Pipes between two contexts of one process, each in a thread, over memory that is mapped and over memory
//! that is not.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::start::FileBootstrap;
use crate::{
    Address, Context, Error, Mode, Patience, Pipe, PipeOptions, Policy, Rank, Settings, Side, Sync, backends,
};

/// After so long a test fails.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

pub(crate) fn job(name: &str, settings: &Settings) -> [Arc<Context>; 2] {
    let dir = env::temp_dir().join(format!("strait-rpipe-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let open = |rank: Rank| {
        let backend = backends::open(settings, rank).unwrap();
        let bootstrap = FileBootstrap::new(rank, 2, &dir).unwrap();
        Arc::new(Context::new(backend, Box::new(bootstrap), settings.clone()).unwrap())
    };
    [open(0), open(1)]
}

pub(super) fn write(pipe: &mut Pipe, bytes: &[u8]) -> Result<(), Error> {
    let block = pipe.alloc(bytes.len(), 1, patience())?;
    let to = pipe.address(block)?;
    // SAFETY: a block of so many bytes, which is this end's.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    pipe.write(block, None)
}

fn copy(pipe: &mut Pipe, block: Address, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // SAFETY: a block of so many bytes, which is this end's.
    unsafe { pipe.address(block).unwrap().copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
    bytes
}

pub(super) fn read(pipe: &mut Pipe) -> Result<Vec<u8>, Error> {
    let (block, len) = pipe.read(usize::MAX, patience())?;
    let bytes = copy(pipe, block, len);
    pipe.free(block)?;
    Ok(bytes)
}

fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at * 7) as u8).collect()
}

/// Each way in which bytes and flags can travel here.
fn ways() -> Vec<(Settings, bool)> {
    let mapped = Settings::default();
    let far = |mode| Settings { map: false, flag: Some(mode), ..Settings::default() };
    let mut ways = vec![(mapped.clone(), false), (mapped, true)];
    for mode in [Mode::TwoWrites, Mode::Delivered] {
        ways.extend([(far(mode), false), (far(mode), true)]);
    }
    let frames = Settings { backend: "strait:frames".into(), ..Settings::default() };
    let delivered = Settings { flag: Some(Mode::Delivered), ..frames.clone() };
    ways.extend([(frames.clone(), false), (frames, true), (delivered, false)]);
    ways
}

/// Lengths in the slot, behind it, and longer.
const LENGTHS: [usize; 10] = [4, 0, 8, 1, 40, 41, 64, 1000, 4096, 50_000];

#[test]
fn messages_of_all_lengths_arrive_by_every_way_and_all_memory_comes_back() {
    for (number, (settings, pull)) in ways().into_iter().enumerate() {
        for sync in [Sync::Deferred, Sync::Immediate] {
            let [a, b] = job(&format!("lengths-{number}-{sync}"), &settings);
            const ROUNDS: usize = 15;
            thread::scope(|s| {
                s.spawn(|| {
                    let options = PipeOptions { pull, sync: Some(sync), ..PipeOptions::new(Side::Writer) };
                    let mut pipe = Pipe::open(&a, 1, &options).unwrap();
                    for n in 0..ROUNDS * LENGTHS.len() {
                        write(&mut pipe, &pattern(n, LENGTHS[n % LENGTHS.len()])).unwrap();
                    }
                    // All of it comes back: a block as long as the heap.
                    let whole = pipe.alloc(200_000, 1, patience()).unwrap();
                    pipe.free(whole).unwrap();
                    let (stats, _, is) = pipe.writer_stats().unwrap();
                    assert_eq!((stats.messages, is), ((ROUNDS * LENGTHS.len()) as u64, sync));
                    assert!(stats.syncs > 0 && stats.tags <= stats.messages, "{stats:?}");
                    let usual = if settings.backend == "strait" { Mode::Store } else { Mode::TwoWrites };
                    assert_eq!(stats.mode, Some(settings.flag.unwrap_or(usual)));
                });
                s.spawn(|| {
                    let heap = Some(200_000);
                    let mut pipe =
                        Pipe::open(&b, 0, &PipeOptions { heap, ..PipeOptions::new(Side::Reader) }).unwrap();
                    for n in 0..ROUNDS * LENGTHS.len() {
                        assert!(
                            read(&mut pipe).unwrap() == pattern(n, LENGTHS[n % LENGTHS.len()]),
                            "message {n}"
                        );
                    }
                    assert_eq!(pipe.reader_stats().unwrap().used, 0);
                    let end = pipe.read(1, patience());
                    assert!(matches!(end, Err(Error::Gone(_))), "{end:?}");
                });
            });
        }
    }
}

/// What is copied by the path goes with what is not, in order, whichever is the threshold.
#[test]
fn messages_on_both_sides_of_each_threshold_arrive_in_order() {
    let put = Settings { map: false, flag: Some(Mode::TwoWrites), ..Settings::default() };
    let frames = Settings { backend: "strait:frames".into(), ..Settings::default() };
    let delivered = Settings { map: false, flag: Some(Mode::Delivered), ..Settings::default() };
    for (way, settings, asked, expected) in [
        ("put", &put, None, None),
        ("put", &put, Some(100), Some(100)),
        ("frames", &frames, None, None),
        ("frames", &frames, Some(0), Some(0)),
        ("frames", &frames, Some(1000), Some(1000)),
        ("delivered", &delivered, Some(4096), Some(0)),
        ("mapped", &Settings::default(), Some(4096), Some(0)),
    ] {
        let [a, b] = job(&format!("inject-{way}-{asked:?}"), &Settings { inject: asked, ..settings.clone() });
        let lengths = [41, 99, 100, 101, 40, 1000, 1001, 4096, 4097, 8];
        thread::scope(|s| {
            s.spawn(|| {
                let mut pipe = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
                for n in 0..10 * lengths.len() {
                    write(&mut pipe, &pattern(n, lengths[n % lengths.len()])).unwrap();
                }
                let stats = pipe.writer_stats().unwrap().0;
                let (injected, why) = (stats.injected, stats.injected_why);
                assert!(stats.in_slot == 40 && injected <= expected.unwrap_or(4096), "{way}: {injected}");
                assert!(injected == expected.unwrap_or(injected), "{way}, {asked:?}: {injected}");
                // What is given is not measured, nor is what has one way alone.
                assert_eq!(
                    a.lock().injects().len(),
                    usize::from(expected.is_none()),
                    "{way}, {asked:?}: {why}"
                );
                let given = asked.is_some_and(|_| expected != Some(0) || way == "frames");
                assert_eq!(why == "given by STRAIT_RPIPE_INJECT", given, "{way}, {asked:?}: {why}");
                let chosen = why.starts_with("measured: ") || why.starts_with("default, since ");
                assert_eq!(chosen, asked.is_none(), "{way}: {why}");
                pipe.flush(patience()).unwrap();
                let _ = pipe.alloc(1 << 15, 1, patience());
            });
            let heap = Some(1 << 15);
            let mut pipe =
                Pipe::open(&b, 0, &PipeOptions { heap, ..PipeOptions::new(Side::Reader) }).unwrap();
            for n in 0..10 * lengths.len() {
                let expected = pattern(n, lengths[n % lengths.len()]);
                assert!(read(&mut pipe).unwrap() == expected, "{way}, {asked:?}: message {n}");
            }
        });
    }
}

/// What the writer's program stores into a block is stored where the reader's program finds the message, so
/// that writing it copies nothing.
#[test]
fn a_block_that_is_longer_than_a_slot_is_the_readers_memory_where_that_is_mapped() {
    let unmapped = Settings { map: false, ..Settings::default() };
    for (name, settings, len, in_place) in [
        ("mapped-41", Settings::default(), 41, true),
        ("mapped-4096", Settings::default(), 4096, true),
        ("mapped-40", Settings::default(), 40, false),
        ("unmapped-4096", unmapped, 4096, false),
    ] {
        let [a, b] = job(&format!("place-{name}"), &settings);
        thread::scope(|s| {
            let (written, is_written) = std::sync::mpsc::channel();
            let (seen, is_seen) = std::sync::mpsc::channel();
            s.spawn(move || {
                let mut pipe = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
                let block = pipe.alloc(len, 1, patience()).unwrap();
                let at = pipe.address(block).unwrap();
                // SAFETY: a block of so many bytes, which is this end's.
                unsafe { at.write_bytes(1, len) };
                pipe.write(block, None).unwrap();
                let maps = pipe.writer_stats().unwrap().0.path_why.contains("the reader's memory");
                assert_eq!(maps, settings.map, "{name}");
                is_seen.recv().unwrap();
                // SAFETY: this end's memory as long as the pipe is open; the reader's thread waits.
                unsafe { at.write_volatile(2) };
                written.send(()).unwrap();
                is_seen.recv().unwrap();
            });
            let mut pipe = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
            let (block, _) = pipe.read(len, patience()).unwrap();
            assert_eq!(copy(&mut pipe, block, len), vec![1; len], "{name}");
            seen.send(()).unwrap();
            is_written.recv().unwrap();
            assert_eq!(copy(&mut pipe, block, 1), [1 + u8::from(in_place)], "{name}");
            seen.send(()).unwrap();
        });
    }
}

#[test]
fn blocks_that_are_freed_in_any_order_come_back_coalesced() {
    for policy in Policy::ALL {
        let [a, b] = job(&format!("order-{policy}"), &Settings::default());
        let writer = thread::spawn(move || {
            let options = PipeOptions { policy: Some(policy), ..PipeOptions::new(Side::Writer) };
            let mut pipe = Pipe::open(&a, 1, &options).unwrap();
            for n in 0..8_000 {
                write(&mut pipe, &pattern(n, 1 + n * 37 % 300)).unwrap();
            }
            // The reader says when it has freed all.
            pipe.alloc(1 << 14, 1, patience()).unwrap();
            let (stats, ..) = pipe.writer_stats().unwrap();
            assert!(stats.fragmentation == 0.0 || stats.free < 1 << 14, "{stats:?}");
        });
        let heap = Some(1 << 14);
        let mut pipe =
            Pipe::open(&b, 0, &PipeOptions { heap, slots: Some(16), ..PipeOptions::new(Side::Reader) })
                .unwrap();
        let mut kept = Vec::new();
        for n in 0..8_000usize {
            let (block, len) = pipe.read(usize::MAX, patience()).unwrap();
            assert!(copy(&mut pipe, block, len) == pattern(n, 1 + n * 37 % 300), "{policy}: message {n}");
            kept.push(block);
            if kept.len() > 5 || n == 7_999 {
                while let Some(block) = (kept.len() > 3 || n == 7_999).then(|| kept.pop()).flatten() {
                    pipe.free(block).unwrap();
                }
                if kept.len() > 1 {
                    pipe.free(kept.remove(0)).unwrap();
                }
            }
        }
        writer.join().unwrap();
    }
}

#[test]
fn addresses_that_are_stale_foreign_or_the_other_ends_are_refused() {
    let [a, b] = job("stale", &Settings::default());
    let other = thread::spawn(move || {
        let mut pipe =
            Pipe::open(&b, 0, &PipeOptions { width: Some(100), ..PipeOptions::new(Side::Reader) }).unwrap();
        assert!(matches!(pipe.alloc(8, 1, patience()), Err(Error::Invalid(_))));
        let (block, _) = pipe.read(usize::MAX, patience()).unwrap();
        assert!(matches!(pipe.read(3, patience()), Err(Error::TooLong(_))), "it stays");
        let (next, len) = pipe.read(4, patience()).unwrap();
        assert_eq!(copy(&mut pipe, next, len), [1, 2, 3, 4]);
        pipe.free(block).unwrap();
        assert!(matches!(pipe.free(block), Err(Error::Stale(_))), "twice");
        assert!(matches!(pipe.address(block), Err(Error::Stale(_))));
        let other = Address { generation: next.generation.wrapping_add(1), ..next };
        assert!(matches!(pipe.free(other), Err(Error::Stale(_))));
        assert!(matches!(pipe.free(Address { granule: u32::MAX, ..next }), Err(Error::Stale(_))));
        assert_eq!(pipe.peek(), Ok(None));
        pipe
    });
    let mut pipe =
        Pipe::open(&a, 1, &PipeOptions { width: Some(100), ..PipeOptions::new(Side::Writer) }).unwrap();
    let block = pipe.alloc(8, 64, patience()).unwrap();
    assert_eq!(pipe.address(block).unwrap().addr() % 64, 0);
    assert!(matches!(pipe.alloc(101, 1, patience()), Err(Error::TooLong(_))));
    assert!(matches!(pipe.alloc(8, 3, patience()), Err(Error::Invalid(_))));
    assert!(matches!(pipe.write(block, Some(9)), Err(Error::TooLong(_))));
    pipe.write(block, Some(5)).unwrap();
    assert!(matches!(pipe.write(block, None), Err(Error::Stale(_))), "twice");
    assert!(matches!(pipe.free(block), Err(Error::Stale(_))), "the reader's");
    assert!(matches!(pipe.address(block), Err(Error::Stale(_))));
    write(&mut pipe, &[1, 2, 3, 4]).unwrap();
    drop(other.join().unwrap());
    let gone = (0..1000).find_map(|_| write(&mut pipe, &[0; 50]).err());
    assert!(matches!(gone, Some(Error::Gone(_))), "{gone:?}");
}

#[test]
fn a_full_heap_waits_for_the_reader_and_says_when_it_waits_in_vain() {
    let [a, b] = job("full", &Settings::default());
    let mut reader =
        Pipe::open(&b, 0, &PipeOptions { heap: Some(64), ..PipeOptions::new(Side::Reader) }).unwrap();
    let mut pipe = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
    let reading = thread::spawn(move || {
        let first = reader.read(8, patience()).unwrap().0;
        (reader, first)
    });
    let blocks: Vec<Address> = (0..8).map(|_| pipe.alloc(8, 1, patience()).unwrap()).collect();
    assert!(matches!(pipe.alloc(1, 1, patience()), Err(Error::Full(_))), "all of it is this end's");
    blocks.iter().for_each(|block| pipe.write(*block, None).unwrap());
    let (mut reader, first) = reading.join().unwrap();
    assert!(matches!(pipe.alloc(1, 1, Patience::Poll), Err(Error::Full(_))));
    let begin = Instant::now();
    assert_eq!(pipe.alloc(1, 1, Patience::for_a(Duration::from_millis(30))), Err(Error::Again));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    reader.free(first).unwrap();
    for _ in 0..7 {
        assert_eq!(read(&mut reader).unwrap(), [0; 8]);
    }
    pipe.alloc(64, 1, patience()).unwrap();
}

#[test]
fn both_directions_and_many_pipes_and_ends_that_do_not_go_together() {
    let [a, b] = job("both", &Settings::default());
    thread::scope(|s| {
        let run = |context: Arc<Context>, peer: Rank| {
            move || {
                let mut full: Vec<Pipe> = (0..3)
                    .map(|_| Pipe::open(&context, peer, &PipeOptions::new(Side::Both)).unwrap())
                    .collect();
                let sides =
                    if peer == 1 { [Side::Writer, Side::Reader] } else { [Side::Reader, Side::Writer] };
                let width = Some(if peer == 1 { 8 } else { 16 });
                let mut odd =
                    Pipe::open(&context, peer, &PipeOptions { width, ..PipeOptions::new(sides[0]) }).unwrap();
                for n in 0..300usize {
                    // In another order at each end.
                    let at = if peer == 1 { n % 3 } else { 2 - n % 3 };
                    write(&mut full[at], &pattern(at, 100)).unwrap();
                }
                for n in 0..300usize {
                    assert!(read(&mut full[n % 3]).unwrap() == pattern(n % 3, 100));
                }
                let fault = if peer == 1 {
                    odd.alloc(8, 1, patience()).map(drop)
                } else {
                    odd.read(8, patience()).map(drop)
                };
                assert!(fault.unwrap_err().to_string().contains("same width"));
                // Closed by neither before both are through.
                write(&mut full[0], b"end").unwrap();
                assert_eq!(read(&mut full[0]).unwrap(), b"end");
                full
            }
        };
        let other = s.spawn(run(b, 0));
        drop((run(a, 1)(), other.join().unwrap()));
    });
}

#[test]
fn a_sleeping_reader_is_woken() {
    let [a, b] = job("sleep", &Settings::default());
    let writer = thread::spawn(move || {
        let mut pipe = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
        for n in 0..20 {
            thread::sleep(Duration::from_millis(20));
            write(&mut pipe, &[n]).unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    });
    let mut pipe = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
    for n in 0..20 {
        assert_eq!(read(&mut pipe).unwrap(), [n]);
    }
    assert!(matches!(read(&mut pipe), Err(Error::Gone(_))));
    writer.join().unwrap();
}
