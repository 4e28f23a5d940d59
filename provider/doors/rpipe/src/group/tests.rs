//! Groups of contexts of one process, each in a thread, over memory that is mapped, memory that is not, and
//! frames.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::pieces::{EXCHANGE, Incoming};
use crate::start::FileBootstrap;
use crate::{
    Context, Error, Group, Many, Mode, Neighbor, Patience, Pipe, PipeOptions, Rank, Settings, Side, backends,
};

pub(super) const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn job(name: &str, size: Rank, settings: &Settings) -> Vec<Arc<Context>> {
    let dir = env::temp_dir().join(format!("strait-rpipe-group-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let open = |rank: Rank| {
        let backend = backends::open(settings, rank).unwrap();
        let bootstrap = FileBootstrap::new(rank, size, &dir).unwrap();
        Arc::new(Context::new(backend, Box::new(bootstrap), settings.clone()).unwrap())
    };
    (0..size).map(open).collect()
}

pub(super) fn ways() -> [(&'static str, Settings); 4] {
    let usual = Settings { heap: 64 << 10, ..Settings::default() };
    let delivered = Settings { map: false, flag: Some(Mode::Delivered), ..usual.clone() };
    [
        ("mapped", usual.clone()),
        ("put", Settings { map: false, ..usual.clone() }),
        ("delivered", delivered),
        ("frames", Settings { backend: "strait:frames".into(), ..usual }),
    ]
}

pub(super) fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n * 31 + at * 7 + at / 251) as u8).collect()
}

/// In a thread for each member; what each has.
pub(super) fn each<T: Send>(job: &[Arc<Context>], body: impl Fn(usize, &Arc<Context>) -> T + Sync) -> Vec<T> {
    thread::scope(|s| {
        let body = &body;
        let threads: Vec<_> =
            job.iter().enumerate().map(|(rank, context)| s.spawn(move || body(rank, context))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// In a piece, in several, longer than a heap, and nothing.
const LENGTHS: [usize; 6] = [8, 0, 24, 25, 20_000, 200_000];

#[test]
fn a_broadcast_of_each_root_and_length_arrives_by_every_way() {
    for (way, settings) in ways() {
        for size in [1, 2, 5] {
            let job = job(&format!("bcast-{way}-{size}"), size, &settings);
            // The order of the group is not that of ranks.
            let ranks: Vec<Rank> = (0..size).rev().collect();
            each(&job, |rank, context| {
                let mut group = Group::open(context, &ranks).unwrap();
                assert_eq!(group.size(), size as usize);
                for (n, len) in LENGTHS.into_iter().enumerate() {
                    let root = (n + 1) % size as usize;
                    let mut bytes = if rank == root { pattern(n, len) } else { vec![0xee; len] };
                    group.bcast(root as Rank, &mut bytes).unwrap();
                    assert!(bytes == pattern(n, len), "{way}: {len} bytes from {root} at {rank} of {size}");
                }
            });
        }
    }
}

#[test]
fn neighbours_exchange_messages_of_any_length_also_twice_and_with_themselves() {
    for (way, settings) in ways() {
        for size in [1, 2, 4] {
            let job = job(&format!("ring-{way}-{size}"), size as Rank, &settings);
            let ranks: Vec<Rank> = (0..size as Rank).collect();
            each(&job, |rank, context| {
                let mut group = Group::open(context, &ranks).unwrap();
                for (n, len) in LENGTHS.into_iter().enumerate() {
                    // Of two members each is the other's left and right.
                    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
                    let (to_left, to_right) = (pattern(rank + n, len), pattern(rank + n + 100, len / 2));
                    let (mut from_left, mut from_right) = (vec![0; len + 1], vec![0; len + 1]);
                    let mut all = [
                        Neighbor { rank: left as Rank, send: &to_left, receive: &mut from_left, received: 0 },
                        Neighbor {
                            rank: right as Rank,
                            send: &to_right,
                            receive: &mut from_right,
                            received: 0,
                        },
                    ];
                    group.neighbor_exchange(&mut all).unwrap();
                    let came = [all[0].received, all[1].received];
                    // The first sent is the first received where both are one member.
                    let expected = match size {
                        1 | 2 => [pattern(left + n, len), pattern(left + n + 100, len / 2)],
                        _ => [pattern(left + n + 100, len / 2), pattern(right + n, len)],
                    };
                    assert_eq!(came, [expected[0].len(), expected[1].len()], "{way}, {size}");
                    assert!(from_left[..came[0]] == expected[0] && from_right[..came[1]] == expected[1]);
                }
                // None is nothing to do.
                group.neighbor_exchange(&mut []).unwrap();
            });
        }
    }
}

#[test]
fn members_that_do_not_call_the_same_have_an_error_and_so_have_all_that_wait() {
    for (way, settings) in ways() {
        let job = job(&format!("wrong-{way}"), 4, &settings);
        let faults = each(&job, |rank, context| {
            let mut group = Group::open(context, &[0, 1, 2, 3]).unwrap();
            // Rank 2 has another length: 3 gets its bytes by it. Rank 1 gets them from 0 alone.
            let mut bytes = vec![7; if rank == 2 { 99 } else { 100 }];
            let first = group.bcast(0, &mut bytes);
            // And here 1 gets them by 0, which gets them of 2.
            let second = group.bcast(2, &mut bytes);
            (first, second)
        });
        assert_eq!((&faults[0].0, &faults[1].0), (&Ok(()), &Ok(())), "{way}");
        let (own, later) = &faults[2];
        assert!(
            matches!(own, Err(Error::TooLong(why)) if why.contains("rank 0 sends 100")),
            "{way}: {own:?}"
        );
        assert_eq!(own, later);
        for (rank, (first, second)) in faults.iter().enumerate().filter(|(rank, _)| *rank != 2) {
            let fault = if rank == 3 { first } else { second };
            assert!(
                matches!(fault, Err(Error::Gone(why)) if why.contains("rank 2")),
                "{way}: {rank}: {fault:?}"
            );
        }
    }
}

#[test]
fn what_a_root_has_sent_in_an_earlier_broadcast_is_not_taken_for_a_later_one() {
    for (way, settings) in ways() {
        let both = Barrier::new(2);
        each(&job(&format!("earlier-{way}"), 2, &settings), |rank, context| {
            let mut group = Group::open(context, &[0, 1]).unwrap();
            let mut bytes = vec![rank as u8; 100];
            // Each takes itself for the root.
            group.bcast(rank as Rank, &mut bytes).unwrap();
            // The end of the group may come as soon as the first member begins the second one.
            both.wait();
            let second = group.bcast(0, &mut bytes);
            match rank {
                1 => assert!(matches!(second, Err(Error::Invalid(_))), "{way}: {second:?}"),
                _ => assert!(matches!(second, Ok(()) | Err(Error::Gone(_))), "{way}: {second:?}"),
            }
        });
    }
}

#[test]
fn a_member_that_never_used_the_group_ends_those_that_wait_for_it_when_it_closes_it() {
    let job = job("unused", 3, &Settings::default());
    let failed = AtomicU32::new(0);
    each(&job, |rank, context| {
        let mut group = Group::open(context, &[0, 1, 2]).unwrap();
        if rank == 0 {
            group.close().unwrap();
            // It is in the job until both have the error.
            let until = std::time::Instant::now() + LIMIT;
            while failed.load(Relaxed) < 2 {
                assert!(std::time::Instant::now() < until, "a member has no error");
                context.progress().unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            assert!(matches!(group.bcast(0, &mut [1]), Err(Error::Invalid(_))));
        } else {
            let fault = group.bcast(0, &mut [1]);
            failed.fetch_add(1, Relaxed);
            assert!(matches!(&fault, Err(Error::Gone(why)) if why.contains("rank 0")), "{fault:?}");
        }
    });
}

#[test]
fn a_peer_that_has_left_before_it_was_met_ends_each_call_that_waits_for_it() {
    for (way, settings) in ways() {
        let job = job(&format!("left-{way}"), 3, &settings);
        job[2].close().unwrap();
        let gone = |fault: Result<(), Error>| {
            assert!(matches!(&fault, Err(Error::Gone(why)) if why.contains("rank 2")), "{way}: {fault:?}");
        };
        let mut pipe = Pipe::open(&job[0], 2, &PipeOptions::new(Side::Both)).unwrap();
        for _ in 0..2 {
            gone(pipe.read(8, Patience::for_a(LIMIT)).map(drop));
            gone(pipe.alloc(8, 1, Patience::for_a(LIMIT)).map(drop));
        }
        let mut many = Many::open(&job[0], &[1, 2], &PipeOptions::new(Side::Reader)).unwrap();
        gone(many.read(8, Patience::for_a(LIMIT)).map(drop));
        // And is reported once.
        assert_eq!(many.read(8, Patience::for_a(Duration::from_millis(10))), Err(Error::Again), "{way}");
        for root in [2, 0] {
            gone(Group::open(&job[0], &[0, 2]).unwrap().bcast(root, &mut [1]));
        }
    }
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let job = job("refused", 2, &Settings::default());
    for ranks in [&[][..], &[1], &[0, 0, 1], &[0, 2]] {
        assert!(matches!(Group::open(&job[0], ranks), Err(Error::Invalid(_))), "{ranks:?}");
    }
    let mut group = Group::open(&job[0], &[0]).unwrap();
    assert!(matches!(group.bcast(1, &mut []), Err(Error::Invalid(_))));
    let mut small = [0; 3];
    let mut all = [Neighbor { rank: 0, send: &[1; 4], receive: &mut small, received: 0 }];
    assert!(matches!(group.neighbor_exchange(&mut all), Err(Error::TooLong(_))));
    // What was refused has changed nothing.
    group.bcast(0, &mut [1]).unwrap();
}

#[test]
fn messages_of_many_writers_come_in_turn_with_their_source_and_each_end_is_reported_once() {
    const COUNT: usize = 300;
    let lengths = [8, 60, 4000];
    for (way, settings) in ways() {
        for pull in [false, true] {
            let job = job(&format!("many-{way}-{pull}"), 4, &settings);
            let ended = std::sync::atomic::AtomicBool::new(false);
            each(&job, |rank, context| {
                if rank != 0 {
                    let options = PipeOptions { pull, ..PipeOptions::new(Side::Writer) };
                    let mut pipe = Pipe::open(context, 0, &options).unwrap();
                    // Rank 3 writes nothing.
                    for n in 0..if rank == 3 { 0 } else { COUNT } {
                        let bytes = pattern(rank + n, lengths[n % 3]);
                        let block = pipe.alloc(bytes.len(), 1, Patience::for_a(LIMIT)).unwrap();
                        let to = pipe.address(block).unwrap();
                        // SAFETY: a block of so many bytes, which is this end's.
                        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                        pipe.write(block, None).unwrap();
                    }
                    pipe.begin().unwrap();
                    pipe.close().unwrap();
                    // A process that leaves the job gives what is on its way a second.
                    while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                        context.progress().unwrap();
                        thread::sleep(Duration::from_millis(1));
                    }
                    return;
                }
                let options = PipeOptions { heap: Some(64 << 10), ..PipeOptions::new(Side::Reader) };
                let mut many = Many::open(context, &[3, 1, 2], &options).unwrap();
                let (mut had, mut ends) = ([0; 4], [0; 4]);
                loop {
                    match many.read(usize::MAX, Patience::for_a(LIMIT)) {
                        Ok(message) => {
                            let from = message.source as usize;
                            let mut bytes = vec![0; message.len];
                            let at = many.pipe(message.pipe).unwrap().address(message.address).unwrap();
                            // SAFETY: a block of so many bytes, which is this end's.
                            unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
                            assert!(
                                bytes == pattern(from + had[from], lengths[had[from] % 3]),
                                "{way}: {message:?}"
                            );
                            had[from] += 1;
                            many.free(&message).unwrap();
                        }
                        Err(Error::Gone(why)) if why.starts_with("rank ") => {
                            let rank: usize = why[5..6].parse().unwrap();
                            assert_eq!(had[rank], if rank == 3 { 0 } else { COUNT }, "{way}: {why}");
                            ends[rank] += 1;
                        }
                        Err(Error::Gone(why)) => {
                            assert!(why.contains("all writers"), "{why}");
                            break;
                        }
                        Err(fault) => panic!("{way}: {fault:?} after {had:?}"),
                    }
                }
                ended.store(true, std::sync::atomic::Ordering::Relaxed);
                assert_eq!(ends, [0, 1, 1, 1], "{way}");
                many.close().unwrap();
            });
        }
    }
}

#[test]
fn a_writer_that_begins_late_is_read_while_another_writes_without_end() {
    let job = job("late", 3, &Settings::default());
    let ended = std::sync::atomic::AtomicBool::new(false);
    each(&job, |rank, context| {
        use std::sync::atomic::Ordering::Relaxed;
        if rank == 0 {
            let mut many = Many::open(context, &[1, 2], &PipeOptions::new(Side::Reader)).unwrap();
            loop {
                let message = many.read(8, Patience::for_a(LIMIT)).unwrap();
                many.free(&message).unwrap();
                if message.source == 2 {
                    return ended.store(true, Relaxed);
                }
            }
        }
        let mut pipe = Pipe::open(context, 0, &PipeOptions::new(Side::Writer)).unwrap();
        if rank == 2 {
            thread::sleep(Duration::from_millis(50));
        }
        loop {
            let written = pipe.alloc(8, 1, Patience::for_a(LIMIT)).and_then(|block| pipe.write(block, None));
            if rank == 2 || ended.load(Relaxed) {
                return;
            }
            written.unwrap();
        }
    });
}

#[test]
fn times_of_reads_of_many_writers_end_and_a_message_that_is_too_long_stays() {
    let job = job("times", 2, &Settings::default());
    let mut many = Many::open(&job[0], &[1], &PipeOptions::new(Side::Reader)).unwrap();
    assert_eq!(many.read(8, Patience::Poll), Err(Error::Again));
    let begin = std::time::Instant::now();
    assert_eq!(many.read(8, Patience::for_a(Duration::from_millis(30))), Err(Error::Again));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    thread::scope(|s| {
        s.spawn(|| {
            let mut pipe = Pipe::open(&job[1], 0, &PipeOptions::new(Side::Writer)).unwrap();
            let block = pipe.alloc(100, 1, Patience::for_a(LIMIT)).unwrap();
            pipe.write(block, None).unwrap();
            pipe.close().unwrap();
        });
        for _ in 0..3 {
            let fault = many.read(99, Patience::for_a(LIMIT));
            assert!(matches!(&fault, Err(Error::TooLong(why)) if why.starts_with("rank 1: ")), "{fault:?}");
        }
        let message = many.read(100, Patience::for_a(LIMIT)).unwrap();
        assert_eq!((message.source, message.len, message.handler), (1, 100, 0));
        many.free(&message).unwrap();
        assert!(matches!(many.free(&message), Err(Error::Stale(_))));
    });
}

#[test]
fn a_reader_of_many_writers_sleeps_and_each_of_them_wakes_it() {
    let job = job("asleep", 3, &Settings::default());
    each(&job, |rank, context| {
        if rank == 0 {
            let mut many = Many::open(context, &[1, 2], &PipeOptions::new(Side::Reader)).unwrap();
            let mut had = 0;
            while had < 2 * 10 {
                match many.read(8, Patience::for_a(LIMIT)) {
                    Ok(message) => {
                        many.free(&message).unwrap();
                        had += 1;
                    }
                    // One may be through before the other.
                    Err(Error::Gone(why)) if why.starts_with("rank ") => {}
                    Err(fault) => panic!("{fault:?} after {had} messages"),
                }
            }
            return;
        }
        let mut pipe = Pipe::open(context, 0, &PipeOptions::new(Side::Writer)).unwrap();
        let until = std::time::Instant::now() + LIMIT;
        for _ in 0..10 {
            let block = pipe.alloc(8, 1, Patience::for_a(LIMIT)).unwrap();
            while !pipe.sees_sleep() {
                assert!(std::time::Instant::now() < until, "the reader does not sleep");
                thread::sleep(Duration::from_millis(1));
            }
            pipe.write(block, None).unwrap();
        }
    });
}

#[test]
fn a_call_of_a_group_ends_in_its_time_and_the_group_is_over_for_all() {
    for (way, settings) in ways() {
        for call in ["bcast", "exchange"] {
            let job = job(&format!("late-{way}-{call}"), 4, &settings);
            let waited = AtomicU32::new(0);
            let faults = each(&job, |rank, context| {
                let mut group = Group::open(context, &[0, 1, 2, 3]).unwrap();
                let mut bytes = vec![7; 200_000];
                // All are set up, and calls whose time is enough are like any other.
                let long = Patience::for_a(LIMIT);
                for root in 0..4 {
                    group.bcast_timed(root, &mut bytes, long).unwrap();
                }
                let (mut from, long_time) = (vec![0; 200_000], rank != 1);
                if rank == 2 {
                    // It makes no call before the time of another one is over.
                    let until = Instant::now() + LIMIT;
                    while waited.load(Relaxed) == 0 {
                        assert!(Instant::now() < until, "{way}, {call}: no call ends");
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                let time = if long_time { long } else { Patience::for_a(Duration::from_millis(100)) };
                let mut once = |patience| match call {
                    "bcast" => group.bcast_timed(2, &mut bytes, patience),
                    _ => group.neighbor_exchange_timed(
                        &mut (0..4)
                            .filter(|other| *other != rank as Rank)
                            .zip(from.chunks_mut(1000))
                            .map(|(rank, receive)| Neighbor { rank, send: &[1; 8], receive, received: 0 })
                            .collect::<Vec<_>>(),
                        patience,
                    ),
                };
                // A member that needs nothing of the one whose time is over may have it from a later call.
                let most = if long_time { 1000 } else { 1 };
                let fault = (0..most).find_map(|_| once(time).err()).expect("an error");
                waited.fetch_add(1, Relaxed);
                // It is the same from now on.
                assert_eq!(once(long), Err(fault.clone()), "{way}, {call}");
                fault
            });
            for (rank, fault) in faults.iter().enumerate() {
                match fault {
                    Error::TimedOut(why) => assert!(
                        rank == 1
                            && why.contains("waited for rank ")
                            && (call == "bcast" || why.contains('2')),
                        "{way}, {call}: rank {rank}: {why}"
                    ),
                    Error::Gone(why) => {
                        assert!(rank != 1 && why.contains("rank 1 "), "{way}, {call}: rank {rank}: {why}");
                    }
                    other => panic!("{way}, {call}: rank {rank}: {other:?}"),
                }
            }
        }
    }
}

#[test]
fn a_call_of_a_group_with_no_time_moves_nothing_more_and_says_so() {
    let job = job("no-time", 2, &Settings::default());
    let mut group = Group::open(&job[0], &[0, 1]).unwrap();
    let fault = group.bcast_timed(1, &mut [0; 8], Patience::Poll).unwrap_err();
    assert!(matches!(&fault, Error::TimedOut(why) if why.ends_with("waited for rank 1")), "{fault:?}");
    assert_eq!(fault.errno(), libc::ETIMEDOUT);
    assert_eq!(group.bcast(0, &mut [0; 8]), Err(fault));
    // A call that waits for none needs no time.
    let mut alone = Group::open(&job[0], &[0]).unwrap();
    assert_eq!(alone.bcast_timed(0, &mut [0; 8], Patience::Poll), Ok(()));
}

#[test]
fn pieces_of_no_bytes_end_a_call() {
    let (mut room, head) = ([0u8; 8], [1u64.to_le_bytes(), 8u64.to_le_bytes()].concat());
    let mut one = Incoming::new(0, EXCHANGE, (room.as_mut_ptr(), room.len()), false);
    // A first piece may be the head alone: what is relayed has not come yet.
    one.take(head.as_ptr(), head.len(), 1).unwrap();
    assert!(matches!(one.take(head.as_ptr(), 0, 1), Err(Error::Broken(_))));
    assert!(!one.is_done());
}
