//! A member of a group that is killed, in each call and before it: the calls of all that wait end with an
//! error that names it, and their memory comes back. So does the reader's of many writers, which reads on.

mod job;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use job::join;
use strait_rpipe::{
    Context, Error, Group, Many, Neighbor, Operation, Patience, Pipe, PipeOptions, Rank, Side,
};

const DIR: &str = "STRAIT_RPIPE_TEST_DIR";
const RANK: &str = "STRAIT_RPIPE_TEST_RANK";
const CASE: &str = "STRAIT_RPIPE_TEST_CASE";
const WAY: &str = "STRAIT_RPIPE_TEST_WAY";
const SIZE: Rank = 4;
/// The one that is killed: it is between 0 and 3 in the tree from 0.
const VICTIM: Rank = 2;
/// Longer than a heap: nothing of it arrives as a whole at 3.
const LONG: usize = 2 << 20;

/// A member of the job.
fn meet(rank: Rank, dir: &Path, way: &str) -> Arc<Context> {
    let context = join(rank, SIZE, dir, way);
    // All are in the job before one is killed.
    let cards = |dir| fs::read_dir(dir).unwrap().filter(|entry| is_card(entry.as_ref().unwrap())).count();
    while cards(dir) < SIZE as usize {
        thread::sleep(Duration::from_millis(1));
    }
    context
}

fn is_card(entry: &fs::DirEntry) -> bool {
    entry
        .file_name()
        .to_str()
        .is_some_and(|name| name.strip_prefix("card.").is_some_and(|rank| rank.parse::<Rank>().is_ok()))
}

fn die() -> ! {
    // SAFETY: plain numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    loop {
        thread::sleep(Duration::from_secs(1));
    }
}

fn neighbours(group: &mut Group, rank: Rank, len: usize) -> Result<(), Error> {
    let bytes = vec![rank as u8; len];
    let (mut left, mut right) = (vec![0; len], vec![0; len]);
    group.neighbor_exchange(&mut [
        Neighbor { rank: (rank + SIZE - 1) % SIZE, send: &bytes, receive: &mut left, received: 0 },
        Neighbor { rank: (rank + 1) % SIZE, send: &bytes, receive: &mut right, received: 0 },
    ])
}

/// A collective call that each member needs each of the others for, sooner or later; the bytes of each.
fn collective(group: &mut Group, call: &str, bytes: &mut [u8]) -> Result<(), Error> {
    let (me, all, len) = (group.rank(), SIZE as usize, bytes.len());
    let numbers: Vec<u64> = bytes.chunks(8).map(|eight| u64::from(eight[0])).collect();
    let (mut sums, mut every, sizes) = (vec![0; numbers.len()], vec![0; all * len], vec![len; all]);
    let patience = Patience::Forever;
    let at = |root: Rank| if me == root { 0..all * len } else { 0..0 };
    let sizes_at = |root: Rank| if me == root { &sizes[..] } else { &[] };
    match call {
        "exchange" => neighbours(group, me, len),
        "bcast" => (0..SIZE).try_for_each(|root| group.bcast(root, bytes)),
        "barrier" => group.barrier(patience),
        "gather" => (0..SIZE)
            .try_for_each(|root| group.gather(root, bytes, &mut every[at(root)], sizes_at(root), patience)),
        "scatter" => (0..SIZE)
            .try_for_each(|root| group.scatter(root, &every[at(root)], sizes_at(root), bytes, patience)),
        "alltoall" => {
            let send = every.clone();
            group.alltoall((&send, &sizes), (&mut every, &sizes), patience)
        }
        "reduce" => (0..SIZE).try_for_each(|root| {
            let room = if me == root { sums.len() } else { 0 };
            group.reduce(root, &numbers, &mut sums[..room], Operation::Sum, patience)
        }),
        _ => group.allreduce(&numbers, &mut sums, Operation::Sum, patience),
    }
}

/// Calls until one fails: the error of a member that waits for the victim.
fn until_gone(mut call: impl FnMut() -> Result<(), Error>) {
    for _ in 0..1000 {
        match call() {
            Ok(()) => {}
            Err(Error::Gone(why)) if why.contains(&format!("rank {VICTIM}")) => return,
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("no call fails");
}

fn in_group(context: &Arc<Context>, rank: Rank, case: &str) {
    let mut group = Group::open(context, &[0, 1, 2, 3]).unwrap();
    let (call, len) = case.split_once(' ').unwrap();
    let mut bytes = vec![rank as u8; if len == "long" { LONG } else { 8 }];
    if rank == VICTIM {
        match len {
            "before" => die(),
            // In the middle: the others are in their calls, and it has taken part in some.
            "long" => drop(thread::spawn(|| {
                thread::sleep(Duration::from_millis(30));
                die();
            })),
            _ => {
                for _ in 0..3 {
                    collective(&mut group, call, &mut bytes).unwrap();
                }
                die();
            }
        }
    }
    // Of the last call before it, what the victim has passed on may end with it.
    until_gone(|| collective(&mut group, call, &mut bytes));
    // From now on each call says so at once.
    assert!(matches!(group.bcast(0, &mut bytes), Err(Error::Gone(why)) if why.contains("rank 2")));
    group.close().unwrap();
}

fn with_many(context: &Arc<Context>, rank: Rank, dir: &Path) {
    if rank == 0 {
        let mut many = Many::open(context, &[1, 2, 3], &PipeOptions::new(Side::Reader)).unwrap();
        let (mut had, mut ends) = ([0; SIZE as usize], [0; SIZE as usize]);
        let done = |had: &[i32; 4], ends: &[i32; 4]| *had == [0, 2000, 10, 2000] && ends[2] == 1;
        while ends != [0, 1, 1, 1] {
            if done(&had, &ends) {
                fs::write(dir.join("done"), "").unwrap();
            }
            match many.read(8, Patience::Forever) {
                Ok(message) => {
                    had[message.source as usize] += 1;
                    many.free(&message).unwrap();
                }
                Err(Error::Gone(why)) => {
                    let of = (1..SIZE).find(|rank| {
                        why.starts_with(&format!("rank {rank} is gone"))
                            || why.starts_with(&format!("rank {rank}: "))
                    });
                    ends[of.unwrap_or_else(|| panic!("{why}")) as usize] += 1;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert!(done(&had, &ends), "{had:?}");
        return many.close().unwrap();
    }
    let mut pipe = Pipe::open(context, 0, &PipeOptions::new(Side::Writer)).unwrap();
    for n in 0..2000 {
        let block = pipe.alloc(8, 1, Patience::Forever).unwrap();
        pipe.write(block, None).unwrap();
        if rank == VICTIM && n == 9 {
            pipe.flush(Patience::Forever).unwrap();
            die();
        }
    }
    // A process that leaves gives what it has written a second.
    while !dir.join("done").exists() {
        context.progress().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    pipe.close().unwrap();
}

/// Mappings of pipes that this process has.
fn maps() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:strait-rpipe")).count()
}

/// A process of the job. It is a test only so that this program can start itself.
#[test]
fn member() {
    let Some(dir) = env::var_os(DIR) else { return };
    let rank: Rank = env::var(RANK).unwrap().parse().unwrap();
    let (case, way) = (env::var(CASE).unwrap(), env::var(WAY).unwrap());
    let context = meet(rank, Path::new(&dir), &way);
    match case.as_str() {
        "many" => with_many(&context, rank, Path::new(&dir)),
        case => in_group(&context, rank, case),
    }
    // What an operation that has not ended may write to stays until the job is left. A grant that comes when
    // the group is over is given back by the progress that takes it in.
    let begun = Instant::now();
    while maps() != 0 && way == "mapped" && begun.elapsed() < Duration::from_secs(10) {
        context.progress().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(maps() == 0 || way != "mapped", "memory of pipes is still mapped");
    context.close().unwrap();
}

fn scratch(name: &str) -> PathBuf {
    let dir = env::temp_dir().join(format!("strait-rpipe-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    dir
}

fn survive(case: &str, way: &str) {
    let dir = scratch(&format!("groups-{}-{way}", case.replace(' ', "-")));
    let start = |rank: Rank| {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "member", "--nocapture"])
            .env(DIR, &dir)
            .env(RANK, rank.to_string())
            .env(CASE, case)
            .env(WAY, way)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..SIZE).map(start).collect();
    let ended: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    for (rank, out) in ended.iter().enumerate().filter(|(rank, _)| *rank as Rank != VICTIM) {
        let wrong = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{case}, {way}: rank {rank}: {wrong}");
    }
    assert!(!ended[VICTIM as usize].status.success());
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_member_that_is_killed_ends_the_calls_of_all_that_wait_and_is_named() {
    let calls = ["bcast", "exchange", "barrier", "gather", "scatter", "alltoall", "reduce", "allreduce"];
    for call in calls {
        for when in ["before", "between", "long"] {
            survive(&format!("{call} {when}"), "mapped");
        }
    }
    for way in ["put", "frames"] {
        survive("bcast between", way);
        survive("exchange before", way);
        for call in ["barrier between", "alltoall long", "reduce long", "allreduce long", "gather before"] {
            survive(call, way);
        }
    }
}

#[test]
fn one_of_many_writers_that_is_killed_is_named_once_and_the_others_are_read() {
    for way in ["mapped", "put", "frames"] {
        survive("many", way);
    }
}
