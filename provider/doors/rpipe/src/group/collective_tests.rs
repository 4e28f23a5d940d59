//! Calls of all members, each in a thread of one process: what comes of them beside a plain reference, over
//! each way; their times; and members that do not call the same. `tests/rpipe/collectives.c` has more lengths,
//! types and members.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::tests::{LIMIT, each, job, pattern, ways};
use crate::{Combine, Error, Group, Number, Operation, Patience, Rank, Settings};

const PRIME: u64 = (1 << 61) - 1;

fn long() -> Patience {
    Patience::for_a(LIMIT)
}

fn group(context: &std::sync::Arc<crate::Context>) -> Group {
    let ranks: Vec<Rank> = (0..context.size()).rev().collect();
    Group::open(context, &ranks).unwrap()
}

#[test]
fn a_reduction_of_each_length_and_root_is_that_of_a_plain_loop_by_every_way() {
    for (way, settings) in ways() {
        for size in [1usize, 2, 3, 6] {
            let job = job(&format!("reduce-{way}-{size}"), size as Rank, &settings);
            each(&job, |rank, context| {
                let mut group = group(context);
                for (n, count) in [0, 1, 3, 4, 2046, 2047, 9000, 40_000].into_iter().enumerate() {
                    let number = |rank: usize, at: usize| (rank * 7919 + at * 104_729 + n) as u64 % PRIME + 1;
                    let mine: Vec<u64> = (0..count).map(|at| number(rank, at)).collect();
                    let product = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64;
                    let of_all = |combine: fn(u64, u64) -> u64| -> Vec<u64> {
                        (0..count)
                            .map(|at| (0..size).map(|r| number(r, at)).reduce(combine).unwrap())
                            .collect()
                    };
                    let root = (n + 1) % size;
                    let mut at_root = vec![0; if rank == root { count } else { 0 }];
                    let mut multiply = product;
                    let by = Combine::Function(&mut multiply);
                    group.reduce(root as Rank, &mine, &mut at_root, by, long()).unwrap();
                    let products = of_all(|a, b| (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64);
                    assert!(rank != root || at_root == products, "{way}: {count} of {size} at {root}");
                    let mut all = vec![0; count];
                    group.allreduce(&mine, &mut all, Operation::Sum, long()).unwrap();
                    assert!(all == of_all(u64::wrapping_add), "{way}: {count} of {size} at {rank}");
                }
            });
        }
    }
}

#[test]
fn each_operation_of_each_type_is_that_of_the_language() {
    fn all<T: Number + Sync>(name: &str, values: [T; 3], expected: [Option<T>; 7]) {
        const OPERATIONS: [Operation; 7] = [
            Operation::Sum,
            Operation::Prod,
            Operation::Min,
            Operation::Max,
            Operation::And,
            Operation::Or,
            Operation::Xor,
        ];
        let job = job(&format!("type-{name}"), 3, &Settings::default());
        let values: Vec<Vec<u8>> = values.iter().map(|value| bytes(*value)).collect();
        each(&job, |rank, context| {
            let mut group = group(context);
            for (operation, expected) in OPERATIONS.into_iter().zip(&expected) {
                let mine: T = number(&values[rank]);
                let mut all = [mine];
                match (group.allreduce(&[mine], &mut all, operation, long()), expected) {
                    (Ok(()), Some(expected)) => assert_eq!(bytes(all[0]), bytes(*expected), "{operation:?}"),
                    (Err(Error::Invalid(why)), None) => assert!(why.contains("integers"), "{why}"),
                    (other, _) => panic!("{name}, {operation:?}: {other:?}"),
                }
            }
        });
    }
    fn bytes<T: Copy>(value: T) -> Vec<u8> {
        // SAFETY: a number, which has no padding.
        unsafe { std::slice::from_raw_parts((&raw const value).cast(), size_of::<T>()) }.to_vec()
    }
    fn number<T: Number>(bytes: &[u8]) -> T {
        // SAFETY: as many bytes as a number has; any are one.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    }
    let (a, b, c) = (i32::MAX, -7, 12);
    let sums =
        [a.wrapping_add(b + c), a.wrapping_mul(b).wrapping_mul(c), b, a, a & b & c, a | b | c, a ^ b ^ c];
    all("i32", [a, b, c], sums.map(Some));
    let (a, b, c) = (i64::MIN, -7i64, 12);
    let sums = [a + 5, a.wrapping_mul(b).wrapping_mul(c), a, c, a & b & c, a | b | c, a ^ b ^ c];
    all("i64", [a, b, c], sums.map(Some));
    let (a, b, c) = (u32::MAX, 0xf0f0u32, 3);
    let sums = [a.wrapping_add(b + c), a.wrapping_mul(b).wrapping_mul(c), 3, a, b & c, a, a ^ b ^ c];
    all("u32", [a, b, c], sums.map(Some));
    let (a, b, c) = (u64::MAX, 0xf0f0u64, 3);
    let sums = [a.wrapping_add(b + c), a.wrapping_mul(b).wrapping_mul(c), 3, a, b & c, a, a ^ b ^ c];
    all("u64", [a, b, c], sums.map(Some));
    all("f32", [0.5, -2.0, 8.25f32], [Some(6.75), Some(-8.25), Some(-2.0), Some(8.25), None, None, None]);
    all("f64", [0.5, -2.0, 8.25], [Some(6.75), Some(-8.25), Some(-2.0), Some(8.25), None, None, None]);
}

#[test]
fn parts_of_any_length_are_gathered_scattered_and_exchanged_by_every_way() {
    for (way, settings) in ways() {
        for size in [1, 2, 5] {
            let job = job(&format!("parts-{way}-{size}"), size as Rank, &settings);
            each(&job, |rank, context| {
                let mut group = group(context);
                // By place, which is not the rank.
                let place = |rank: usize| size - 1 - rank;
                let len = |from: usize, to: usize| [0, 24, 25, 5000, 90_000][(from * 3 + to) % 5];
                for root in 0..size {
                    let mine = pattern(rank, len(rank, root));
                    let sizes: Vec<usize> = (0..size).map(|at| len(place(at), root)).collect();
                    let expected: Vec<u8> = (0..size).flat_map(|at| pattern(place(at), sizes[at])).collect();
                    let (mut whole, mut part) = (vec![0xee; expected.len()], vec![0; mine.len()]);
                    let at = if rank == root { (expected.len(), size) } else { (0, 0) };
                    group.gather(root as Rank, &mine, &mut whole[..at.0], &sizes[..at.1], long()).unwrap();
                    assert!(rank != root || whole == expected, "{way}: gather at {root} of {size}");
                    group
                        .scatter(root as Rank, &expected[..at.0], &sizes[..at.1], &mut part, long())
                        .unwrap();
                    assert!(part == mine, "{way}: scatter from {root} of {size} at {rank}");
                }
                let to: Vec<usize> = (0..size).map(|at| len(rank, place(at))).collect();
                let from: Vec<usize> = (0..size).map(|at| len(place(at), rank)).collect();
                let parts = |of: &dyn Fn(usize) -> Vec<u8>| (0..size).flat_map(of).collect::<Vec<u8>>();
                let send = parts(&|at| pattern(rank * 10 + place(at), to[at]));
                let expected = parts(&|at| pattern(place(at) * 10 + rank, from[at]));
                let mut received = vec![0xee; expected.len()];
                group.alltoall((&send, &to), (&mut received, &from), long()).unwrap();
                assert!(received == expected, "{way}: alltoall of {size} at {rank}");
            });
        }
    }
}

#[test]
fn no_member_leaves_a_barrier_before_all_are_in_it() {
    for (way, settings) in ways() {
        for size in [1, 2, 3, 7] {
            let job = job(&format!("barrier-{way}-{size}"), size as Rank, &settings);
            let came = AtomicUsize::new(0);
            each(&job, |rank, context| {
                let mut group = group(context);
                for round in 1..=20 {
                    if (rank + round) % size == 0 {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    came.fetch_add(1, SeqCst);
                    group.barrier(long()).unwrap();
                    let came = came.load(SeqCst);
                    assert!(came >= round * size && came <= (round + 1) * size, "{way}: {came} in {round}");
                }
            });
        }
    }
}

#[test]
fn a_call_whose_time_is_over_names_a_missing_member_and_each_later_call_is_that_error() {
    type Call = fn(&mut Group, Patience) -> Result<(), Error>;
    let calls: [(&str, Call); 6] = [
        ("barrier", |group, time| group.barrier(time)),
        ("gather", |group, time| group.gather(0, &[1], &mut [0; 3], &[1; 3], time)),
        ("scatter", |group, time| {
            let all = if group.rank() == 2 { 3 } else { 0 };
            group.scatter(2, &[0; 3][..all], &[1; 3][..all], &mut [0], time)
        }),
        ("alltoall", |group, time| group.alltoall((&[0; 3], &[1; 3]), (&mut [0; 3], &[1; 3]), time)),
        ("reduce", |group, time| group.reduce(0, &[1], &mut [0], Operation::Sum, time)),
        ("allreduce", |group, time| group.allreduce(&[1], &mut [0], Operation::Sum, time)),
    ];
    for (way, settings) in ways() {
        for (name, call) in calls {
            let job = job(&format!("time-{way}-{name}"), 3, &settings);
            let over = AtomicUsize::new(0);
            let faults = each(&job, |rank, context| {
                let mut group = Group::open(context, &[0, 1, 2]).unwrap();
                group.barrier(long()).unwrap();
                if rank != 0 {
                    // Rank 1 and 2 make no call before the time of rank 0 is over.
                    let until = Instant::now() + LIMIT;
                    while over.load(SeqCst) == 0 {
                        assert!(Instant::now() < until);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return (0..1000).find_map(|_| call(&mut group, long()).err()).unwrap();
                }
                let begin = Instant::now();
                let fault = call(&mut group, Patience::for_a(Duration::from_millis(50))).unwrap_err();
                assert!(begin.elapsed() >= Duration::from_millis(50), "{name}: {fault:?}");
                over.store(1, SeqCst);
                assert_eq!(group.barrier(long()), Err(fault.clone()));
                assert_eq!(call(&mut group, long()), Err(fault.clone()));
                fault
            });
            assert!(
                matches!(&faults[0], Error::TimedOut(why) if why.contains("waited for rank ") && why.contains(['1', '2'])),
                "{way}, {name}: {:?}",
                faults[0]
            );
            for fault in &faults[1..] {
                assert!(
                    matches!(fault, Error::Gone(why) if why.contains("rank 0 ")),
                    "{way}, {name}: {fault:?}"
                );
            }
        }
    }
}

#[test]
fn members_that_do_not_agree_on_type_operation_count_or_call_get_an_error_that_says_so() {
    type Call = fn(&mut Group) -> Result<(), Error>;
    let sum: Call = |group| group.allreduce(&[1u32; 4], &mut [0; 4], Operation::Sum, long());
    let others: [(Call, i32); 5] = [
        (|group| group.allreduce(&[1u32; 4], &mut [0; 4], Operation::Max, long()), libc::EINVAL),
        (|group| group.allreduce(&[1i32; 4], &mut [0; 4], Operation::Sum, long()), libc::EINVAL),
        (|group| group.allreduce(&[1u32; 5], &mut [0; 5], Operation::Sum, long()), libc::EMSGSIZE),
        (|group| group.barrier(long()), libc::EINVAL),
        (|group| group.reduce(0, &[1u32; 4], &mut [], Operation::Sum, long()), libc::EINVAL),
    ];
    for (n, (other, errno)) in others.into_iter().enumerate() {
        let job = job(&format!("agree-{n}"), 2, &Settings::default());
        let faults = each(&job, |rank, context| {
            let mut group = Group::open(context, &[0, 1]).unwrap();
            let call = if rank == 0 { sum } else { other };
            let first = call(&mut group);
            first.and_then(|()| group.barrier(long())).unwrap_err()
        });
        assert!(faults.iter().any(|fault| fault.errno() == errno), "{n}: {faults:?}");
    }
}

#[test]
fn a_member_in_any_other_call_ends_all_that_wait_for_each_other() {
    type Call = fn(&mut Group) -> Result<(), Error>;
    const MEMBERS: Rank = 4;
    fn part(group: &Group, root: Rank) -> usize {
        if group.rank() == root { MEMBERS as usize } else { 0 }
    }
    fn gather(group: &mut Group, root: Rank) -> Result<(), Error> {
        let n = part(group, root);
        group.gather(root, &[1], &mut vec![0; n], &vec![1; n], Patience::Forever)
    }
    fn scatter(group: &mut Group, root: Rank) -> Result<(), Error> {
        let n = part(group, root);
        group.scatter(root, &vec![0; n], &vec![1; n], &mut [0], Patience::Forever)
    }
    fn reduce(group: &mut Group, root: Rank) -> Result<(), Error> {
        let mut all = vec![0; usize::from(group.rank() == root)];
        group.reduce(root, &[1], &mut all, Operation::Sum, Patience::Forever)
    }
    const CALLS: [Call; 11] = [
        |g| g.bcast(0, &mut [0; 4]),
        |g| g.bcast(3, &mut [0; 4]),
        |g| g.barrier(Patience::Forever),
        |g| g.allreduce(&[1], &mut [0], Operation::Sum, Patience::Forever),
        |g| reduce(g, 0),
        |g| reduce(g, 3),
        |g| gather(g, 0),
        |g| gather(g, 3),
        |g| scatter(g, 0),
        |g| scatter(g, 3),
        |g| g.alltoall((&[0; 4], &[1; 4]), (&mut [0; 4], &[1; 4]), Patience::Forever),
    ];
    for (n, (way, settings)) in ways().into_iter().enumerate() {
        let of_odd = |odd: usize| {
            for of_others in (0..CALLS.len()).filter(|other| *other != odd) {
                let job = job(&format!("other-{way}-{odd}-{of_others}"), MEMBERS, &settings);
                let faults = each(&job, |rank, context| {
                    let mut group = Group::open(context, &[0, 1, 2, 3]).unwrap();
                    let first = CALLS[if rank == 1 { odd } else { of_others }](&mut group);
                    first.and_then(|()| group.barrier(Patience::Forever)).err()
                });
                let found = |fault: &Error| matches!(fault.errno(), libc::EINVAL | libc::EMSGSIZE);
                assert!(faults.iter().flatten().any(found), "{way}, {odd} of {of_others}: {faults:?}");
            }
        };
        let odds = (1..CALLS.len()).step_by(if n == 0 { 2 } else { CALLS.len() });
        std::thread::scope(|s| odds.for_each(|odd| drop(s.spawn(move || of_odd(odd)))));
    }
}

#[test]
fn a_function_that_takes_long_does_not_lengthen_the_time_of_its_call() {
    let job = job("slow", 2, &Settings::default());
    let begin = Instant::now();
    let faults = each(&job, |_, context| {
        let mut group = group(context);
        let mut slow = |a: u64, b: u64| {
            std::thread::sleep(Duration::from_micros(100));
            a + b
        };
        let (mine, mut sum) = (vec![1u64; 200_000], vec![0; 200_000]);
        let time = Patience::for_a(Duration::from_millis(300));
        group.allreduce(&mine, &mut sum, Combine::Function(&mut slow), time).unwrap_err()
    });
    // All of it would take 10 s and more.
    assert!(faults.iter().any(|fault| matches!(fault, Error::TimedOut(_))), "{faults:?}");
    assert!(begin.elapsed() < LIMIT);
}

#[test]
fn sizes_that_cannot_be_are_refused_and_change_nothing() {
    let job = job("sizes", 1, &Settings::default());
    let mut group = group(&job[0]);
    let refused = |call: Result<(), Error>| assert!(matches!(call, Err(Error::Invalid(_))), "{call:?}");
    refused(group.gather(0, &[1], &mut [0], &[1, 0], long()));
    refused(group.gather(0, &[1], &mut [0; 2], &[1], long()));
    refused(group.scatter(0, &[1], &[], &mut [0], long()));
    refused(group.alltoall((&[1], &[usize::MAX]), (&mut [0], &[1]), long()));
    refused(group.reduce(0, &[1, 2], &mut [0], Operation::Sum, long()));
    refused(group.reduce(1, &[1, 2], &mut [0; 2], Operation::Sum, long()));
    assert!(matches!(group.gather(0, &[1, 2], &mut [0], &[1], long()), Err(Error::TooLong(_))));
    let mut sum = [0];
    group.allreduce(&[7], &mut sum, Operation::Sum, long()).unwrap();
    assert_eq!(sum, [7]);
}
