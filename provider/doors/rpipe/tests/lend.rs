//! Memory lent by a process that sleeps in pause(2), is killed, or forks; and a borrower that is killed.

mod job;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use job::join;
use strait_rpipe::{Block, Borrowed, Context, Error, Lent, Patience};

const DIR: &str = "STRAIT_RPIPE_TEST_DIR";
const CASE: &str = "STRAIT_RPIPE_TEST_CASE";
const WAY: &str = "STRAIT_RPIPE_TEST_WAY";
/// Those of [`join`].
const WAYS: [&str; 3] = ["mapped", "put", "frames"];
/// After so long a call that should have ended has not.
const LIMIT: Duration = Duration::from_secs(30);
const LEN: usize = 4 << 20;

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

fn pause() -> ! {
    loop {
        // SAFETY: it takes nothing, and returns after a signal's handler.
        unsafe { libc::pause() };
    }
}

/// Tests that run in one process have their memory at one time. One that looks at all mappings of the process
/// runs alone.
static MAPPINGS: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    MAPPINGS.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    MAPPINGS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The other process. It is a test only so that this program can start itself.
#[test]
fn other() {
    let Some(dir) = env::var_os(DIR) else { return };
    let (case, way) = (env::var(CASE).unwrap(), env::var(WAY).unwrap());
    // Where the test has failed, nothing else ends it.
    // SAFETY: a number.
    unsafe { libc::alarm(300) };
    let context = join(1, 2, Path::new(&dir), &way);
    if case == "borrower" {
        let mut memory = Borrowed::open(&context, 0, None, patience()).unwrap();
        let block = memory.alloc(1000, 1).unwrap();
        memory.write(block, 0, &[3; 1000], patience()).unwrap();
        println!("\nthere 0");
        pause();
    }
    let _lent = Lent::open(&context, 0, LEN, patience()).unwrap();
    let mut child = 0;
    if case == "forks" {
        // SAFETY: the child calls what is safe after a signal alone, and ends by itself.
        child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::alarm(120) };
            pause();
        }
    }
    println!("\nthere {child}");
    pause();
}

struct Other {
    process: Child,
    reported: Receiver<i32>,
    dir: PathBuf,
    context: Arc<Context>,
}

fn start(case: &str, way: &str) -> Other {
    // Two tests of one process may have the same case.
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let (job, pid) = (JOBS.fetch_add(1, Relaxed), std::process::id());
    let dir = env::temp_dir().join(format!("strait-rpipe-lend-{pid}-{job}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let mut process = Command::new(env::current_exe().unwrap())
        .args(["--exact", "other", "--nocapture"])
        .env(DIR, &dir)
        .env(CASE, case)
        .env(WAY, way)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = process.stdout.take().unwrap();
    let (report, reported) = channel();
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if let Some(child) = line.strip_prefix("there ") {
                let _ = report.send(child.parse().unwrap());
            }
        }
    });
    let context = join(0, 2, &dir, way);
    Other { process, reported, dir, context }
}

impl Other {
    fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the child was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as libc::pid_t, signal) }, 0);
    }

    fn end(mut self) {
        self.process.wait().unwrap();
        self.context.close().unwrap();
        fs::remove_dir_all(&self.dir).unwrap();
    }
}

/// Allocates, writes and reads, for some rounds.
fn work(memory: &mut Borrowed, case: &str) {
    for round in 0..50_usize {
        let lengths = [8, 100, 4096, 70_001];
        let blocks = lengths.map(|len| memory.alloc(len, 1).unwrap());
        for (block, len) in blocks.into_iter().zip(lengths) {
            let bytes: Vec<u8> = (0..len).map(|at| (round * 31 + at * 7 + len) as u8).collect();
            memory.write(block, 0, &bytes, patience()).unwrap();
        }
        for (block, len) in blocks.into_iter().zip(lengths) {
            let mut bytes = vec![0; len];
            memory.read(block, 0, &mut bytes, patience()).unwrap();
            assert!(
                bytes.iter().enumerate().all(|(at, byte)| *byte == (round * 31 + at * 7 + len) as u8),
                "{case}: round {round}, {len} bytes"
            );
            memory.free(block).unwrap();
        }
    }
}

/// Writes until one fails.
fn until_gone(memory: &mut Borrowed, block: Block, case: &str) {
    let until = Instant::now() + LIMIT;
    let fault = loop {
        match memory.write(block, 0, &[1; 100], patience()) {
            Ok(()) => assert!(Instant::now() < until, "{case}: writes go on"),
            Err(fault) => break fault,
        }
    };
    assert!(matches!(fault, Error::Gone(_)), "{case}: {fault:?}");
    // All that follows says so at once.
    assert!(matches!(memory.read(block, 0, &mut [0; 8], Patience::Poll), Err(Error::Gone(_))), "{case}");
    assert!(matches!(memory.alloc(8, 1), Err(Error::Gone(_))), "{case}");
}

fn lender(case: &str, way: &str) {
    let other = start(case, way);
    let case = format!("{case}, {way}");
    let mut memory = Borrowed::open(&other.context, 1, None, patience()).unwrap();
    let child = other.reported.recv_timeout(LIMIT).unwrap();
    work(&mut memory, &case);
    let block = memory.alloc(100, 1).unwrap();
    other.signal(libc::SIGKILL);
    until_gone(&mut memory, block, &case);
    let gone = Borrowed::open(&other.context, 1, None, patience()).unwrap_err();
    assert!(matches!(gone, Error::Gone(_)), "{case}: {gone:?}");
    if child != 0 {
        // SAFETY: plain numbers: it sleeps until its alarm.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0, "{case}: the child has ended");
    }
    drop(memory);
    other.end();
}

#[test]
fn a_lender_that_sleeps_is_written_and_read_and_once_killed_ends_the_borrowers_calls() {
    let _mappings = beside_others();
    for way in WAYS {
        lender("sleeps", way);
    }
}

#[test]
fn the_child_of_a_lender_neither_ends_the_loan_nor_keeps_it() {
    let _mappings = beside_others();
    for way in WAYS {
        lender("forks", way);
    }
}

#[test]
fn a_lender_that_is_stopped_holds_no_call_beyond_its_time_and_goes_on_after_it() {
    let _mappings = beside_others();
    for way in WAYS {
        let other = start("sleeps", way);
        let mut memory = Borrowed::open(&other.context, 1, None, patience()).unwrap();
        other.reported.recv_timeout(LIMIT).unwrap();
        let block = memory.alloc(LEN / 2, 1).unwrap();
        memory.write(block, 0, &vec![4; LEN / 2], patience()).unwrap();
        other.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: the other process, which is this one's child, and a place for a number.
        let stopped =
            unsafe { libc::waitpid(other.process.id() as libc::pid_t, &mut status, libc::WUNTRACED) };
        assert!(stopped > 0 && libc::WIFSTOPPED(status), "{way}: not stopped: {status:#x}");
        let long = vec![5; LEN / 2];
        let short = if way == "frames" { Patience::for_a(Duration::from_millis(100)) } else { patience() };
        let (wrote, read) = (memory.write(block, 0, &long, short), memory.read(block, 0, &mut [0; 8], short));
        if way == "frames" {
            // Nothing is there that makes progress for it.
            assert_eq!((wrote, read), (Err(Error::Again), Err(Error::Again)));
        } else {
            assert_eq!((wrote, read), (Ok(()), Ok(())), "{way}");
        }
        other.signal(libc::SIGCONT);
        // No part of it is what is still under way, or another part.
        let last: Vec<u8> = (0..LEN / 2).map(|at| (at >> 16) as u8 + 6).collect();
        memory.write(block, 0, &last, patience()).unwrap();
        let mut bytes = vec![0; LEN / 2];
        memory.read(block, 0, &mut bytes, patience()).unwrap();
        assert!(bytes == last, "{way}");
        other.signal(libc::SIGKILL);
        until_gone(&mut memory, block, way);
        drop(memory);
        other.end();
    }
}

#[test]
fn a_borrower_that_is_killed_is_reported_and_leaves_nothing() {
    let _mappings = alone();
    for way in WAYS {
        let other = start("borrower", way);
        let lent = Lent::open(&other.context, 1, LEN, patience()).unwrap();
        let until = Instant::now() + LIMIT;
        while other.reported.try_recv().is_err() {
            assert!(Instant::now() < until, "{way}: the borrower does not get there");
            assert_eq!(lent.wait(Patience::for_a(Duration::from_millis(1))), Err(Error::Again), "{way}");
        }
        other.signal(libc::SIGKILL);
        let reported = lent.wait(patience());
        assert!(matches!(reported, Err(Error::Gone(_))), "{way}: {reported:?}");
        drop(lent);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("memfd:strait-rpipe"), "{way}: lent memory is still mapped");
        other.end();
    }
}
