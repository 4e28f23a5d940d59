//! Memory lent to several processes, of which borrowers and the lender are killed or stopped.

mod job;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use job::join;
use strait_rpipe::{Atomic, AtomicOp, Block, Borrowed, Context, Error, Lent, Patience, Rank};

const DIR: &str = "STRAIT_RPIPE_TEST_DIR";
const ROLE: &str = "STRAIT_RPIPE_TEST_ROLE";
const WAY: &str = "STRAIT_RPIPE_TEST_WAY";
/// Those of [`join`].
const WAYS: [&str; 3] = ["mapped", "put", "frames"];
/// After so long a call that should have ended has not.
const LIMIT: Duration = Duration::from_secs(30);
const LEN: usize = 1 << 20;
const SIZE: Rank = 4;
/// The first block of a heap.
const FIRST: Block = Block { granule: 0, generation: 1 };

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

fn add(operand: u64) -> Atomic {
    Atomic { op: AtomicOp::Sum, wide: true, operand, compare: 0 }
}

fn pause() -> ! {
    loop {
        // SAFETY: it takes nothing, and returns after a signal's handler.
        unsafe { libc::pause() };
    }
}

/// One that looks at all mappings of the process runs alone, where tests run in one process.
fn alone() -> MutexGuard<'static, ()> {
    static MAPPINGS: Mutex<()> = Mutex::new(());
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Another process. It is a test only so that this program can start itself.
#[test]
fn other() {
    let Some(dir) = env::var_os(DIR) else { return };
    let (role, way) = (env::var(ROLE).unwrap(), env::var(WAY).unwrap());
    let (rank, role) = role.split_once(' ').unwrap();
    // Where the test has failed, nothing else ends it.
    // SAFETY: a number.
    unsafe { libc::alarm(300) };
    let context = join(rank.parse().unwrap(), SIZE, Path::new(&dir), &way);
    if role == "lends" {
        let _lent = Lent::open_many(&context, &[2, 0, 3], LEN, patience()).unwrap();
        println!("\nthere 0");
        pause();
    }
    let lender = if role == "borrows of 0" { 0 } else { 1 };
    let mut memory = Borrowed::open(&context, lender, None, patience()).unwrap();
    match role {
        "borrows of 0" => {
            println!("\nthere 0");
            pause();
        }
        "leaves" => drop(memory),
        _ => {
            if memory.stats().keeper == Some(context.rank()) {
                assert_eq!(memory.alloc(4096, 1), Ok(FIRST));
            } else {
                memory.attach(FIRST, 4096).unwrap();
            }
            for round in 0.. {
                memory.atomic(FIRST, 0, &add(1), patience()).unwrap();
                memory.write(FIRST, 64, &[round as u8; 2000], patience()).unwrap();
                if round == 20 {
                    println!("\nthere 0");
                }
            }
        }
    }
    context.close().unwrap();
}

struct Other {
    process: Child,
    ready: Receiver<()>,
}

impl Other {
    fn start(role: &str, way: &str, dir: &Path) -> Other {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", "other", "--nocapture"])
            .env(DIR, dir)
            .env(ROLE, role)
            .env(WAY, way)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = process.stdout.take().unwrap();
        let (say, ready) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.starts_with("there ") {
                    let _ = say.send(());
                }
            }
        });
        Other { process, ready }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the child was not waited for.
        assert_eq!(unsafe { libc::kill(self.process.id() as libc::pid_t, signal) }, 0);
    }

    fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.process.wait().unwrap();
    }
}

/// This process, of rank 0, and the others, by their roles.
fn start(roles: &[&str], way: &str) -> (PathBuf, Arc<Context>, Vec<Other>) {
    static JOBS: AtomicU32 = AtomicU32::new(0);
    let (job, pid) = (JOBS.fetch_add(1, Relaxed), std::process::id());
    let dir = env::temp_dir().join(format!("strait-rpipe-lend-many-{pid}-{job}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let others = roles.iter().map(|role| Other::start(role, way, &dir)).collect();
    (dir.clone(), join(0, SIZE, &dir, way), others)
}

/// Adds, writes and reads for a while beside whoever else does.
fn work(memory: &mut Borrowed, last: &mut u64, case: &str) {
    for _ in 0..100 {
        let found = memory.atomic(FIRST, 0, &add(1), patience()).unwrap();
        assert!(found > *last, "{case}: {found} after {last}");
        *last = found;
        memory.write(FIRST, 3000, &found.to_le_bytes(), patience()).unwrap();
        let mut bytes = [0; 8];
        memory.read(FIRST, 3000, &mut bytes, patience()).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), found, "{case}");
    }
}

#[test]
fn a_borrower_or_the_keeper_of_the_book_that_is_killed_leaves_the_others_and_the_lender_ends_all() {
    let _alone = alone();
    for way in WAYS {
        let (dir, context, mut others) = start(&["1 lends", "2 works", "3 works"], way);
        let mut memory = Borrowed::open(&context, 1, None, patience()).unwrap();
        assert_eq!(memory.stats().keeper, Some(2), "{way}");
        memory.attach(FIRST, 4096).unwrap();
        others.iter().for_each(|other| other.ready.recv_timeout(LIMIT).unwrap());
        let mut last = 0;
        work(&mut memory, &mut last, way);
        // Each in the middle of what it does.
        others[2].kill();
        work(&mut memory, &mut last, way);
        others[1].kill();
        work(&mut memory, &mut last, way);
        let count = memory.atomic(FIRST, 0, &add(0), patience()).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(memory.atomic(FIRST, 0, &add(0), patience()), Ok(count), "{way}: the dead go on");
        let alone = memory.alloc(8, 1).unwrap_err();
        assert!(matches!(&alone, Error::Denied(why) if why.contains("rank 2")), "{way}: {alone:?}");
        others[0].kill();
        let until = Instant::now() + LIMIT;
        let fault = loop {
            match memory.atomic(FIRST, 0, &add(1), patience()) {
                Ok(_) => assert!(Instant::now() < until, "{way}: goes on"),
                Err(fault) => break fault,
            }
        };
        assert!(matches!(fault, Error::Gone(_)), "{way}: {fault:?}");
        assert!(matches!(memory.read(FIRST, 0, &mut [0], Patience::Poll), Err(Error::Gone(_))), "{way}");
        drop(memory);
        context.close().unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn the_lender_hears_of_the_last_borrower_and_of_one_that_was_killed() {
    let _alone = alone();
    for way in WAYS {
        let roles = ["1 borrows of 0", "2 borrows of 0", "3 borrows of 0"];
        let (dir, context, mut others) = start(&roles, way);
        let lent = Lent::open_many(&context, &[1, 2, 3], LEN, patience()).unwrap();
        let again = |ready: &Receiver<()>| {
            let until = Instant::now() + LIMIT;
            while ready.try_recv().is_err() {
                assert!(Instant::now() < until, "{way}: a borrower does not get there");
                assert_eq!(lent.wait(Patience::for_a(Duration::from_millis(1))), Err(Error::Again), "{way}");
            }
        };
        others.iter().for_each(|other| again(&other.ready));
        for killed in [1, 0] {
            others[killed].kill();
            assert_eq!(lent.wait(Patience::for_a(Duration::from_millis(300))), Err(Error::Again), "{way}");
        }
        others[2].kill();
        let heard = lent.wait(patience());
        assert!(matches!(&heard, Err(Error::Gone(why)) if why.contains("rank 1")), "{way}: {heard:?}");
        drop(lent);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("memfd:strait-rpipe"), "{way}: lent memory is still mapped");
        context.close().unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn an_operation_of_a_lender_that_is_stopped_is_done_once_however_often_it_is_called() {
    let _alone = alone();
    for way in WAYS {
        let (dir, context, mut others) = start(&["1 lends", "2 leaves", "3 leaves"], way);
        let mut memory = Borrowed::open(&context, 1, None, patience()).unwrap();
        memory.attach(FIRST, 4096).unwrap();
        others[0].ready.recv_timeout(LIMIT).unwrap();
        others[1..].iter_mut().for_each(|other| assert!(other.process.wait().unwrap().success()));
        let mut total = 0;
        for round in 0..3 {
            others[0].signal(libc::SIGSTOP);
            let mut status = 0;
            let pid = others[0].process.id() as libc::pid_t;
            // SAFETY: the other process, which is this one's child, and a place for a number.
            let stopped = unsafe { libc::waitpid(pid, &mut status, libc::WUNTRACED) };
            assert!(stopped > 0 && libc::WIFSTOPPED(status), "{way}: not stopped: {status:#x}");
            let short = Patience::for_a(Duration::from_millis(30));
            if way == "frames" {
                for _ in 0..3 {
                    assert_eq!(memory.atomic(FIRST, 8, &add(5), short), Err(Error::Again));
                }
                // Another operation is behind it.
                if round == 1 {
                    assert_eq!(memory.atomic(FIRST, 8, &add(100), short), Err(Error::Again));
                    others[0].signal(libc::SIGCONT);
                    assert_eq!(memory.atomic(FIRST, 8, &add(100), patience()), Ok(total + 5));
                    // It has what it found then.
                    assert_eq!(memory.atomic(FIRST, 8, &add(5), patience()), Ok(total));
                    total += 105;
                    continue;
                }
                others[0].signal(libc::SIGCONT);
            }
            assert_eq!(memory.atomic(FIRST, 8, &add(5), patience()), Ok(total), "{way}");
            total += 5;
            others[0].signal(libc::SIGCONT);
        }
        assert_eq!(memory.atomic(FIRST, 8, &add(0), patience()), Ok(total), "{way}");
        others[0].kill();
        drop(memory);
        context.close().unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }
}
