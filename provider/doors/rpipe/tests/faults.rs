//! Peers that are killed, at every step: the other's calls end with an error, what was written before is
//! read, and the memory of the pipe is given back.

mod job;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, fs, thread};

use job::join;
use strait_rpipe::{Error, Patience, Pipe, PipeOptions, Side};

const DIR: &str = "STRAIT_RPIPE_TEST_DIR";
const STEP: &str = "STRAIT_RPIPE_TEST_STEP";
const WAY: &str = "STRAIT_RPIPE_TEST_WAY";
/// Those of [`join`].
const WAYS: [&str; 3] = ["mapped", "put", "frames"];
/// After so long a call that should have failed has not.
const LIMIT: Duration = Duration::from_secs(20);

fn patience() -> Patience {
    Patience::for_a(LIMIT)
}

/// What the other process does before it says that it waits to be killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Joined,
    Opened,
    Allocated,
    Written,
    Reading,
    Read,
    Freed,
}

const WRITING: [Step; 4] = [Step::Joined, Step::Opened, Step::Allocated, Step::Written];
const READING: [Step; 5] = [Step::Joined, Step::Opened, Step::Reading, Step::Read, Step::Freed];

/// The process that is killed. It is a test only so that this program can start itself.
#[test]
fn victim() {
    let Some(dir) = env::var_os(DIR) else { return };
    let wanted = env::var(STEP).unwrap();
    let way = env::var(WAY).unwrap();
    let (side, steps) =
        if wanted.starts_with('w') { (Side::Writer, &WRITING[..]) } else { (Side::Reader, &READING[..]) };
    let context = join(1, 2, Path::new(&dir), &way);
    let mut pipe = None;
    let mut block = None;
    for step in steps {
        match step {
            Step::Joined => {}
            Step::Opened => {
                let options =
                    PipeOptions { eager: true, heap: Some(4096), slots: Some(4), ..PipeOptions::new(side) };
                pipe = Some(Pipe::open(&context, 0, &options).unwrap());
            }
            Step::Allocated => block = Some(pipe.as_mut().unwrap().alloc(100, 1, patience()).unwrap()),
            Step::Written => pipe.as_mut().unwrap().write(block.unwrap(), None).unwrap(),
            Step::Reading => drop(pipe.as_mut().unwrap().peek()),
            Step::Read => block = Some(pipe.as_mut().unwrap().read(100, patience()).unwrap().0),
            Step::Freed => pipe.as_mut().unwrap().free(block.unwrap()).unwrap(),
        }
        if format!("{side:?}{step:?}").to_lowercase() == wanted.to_lowercase() {
            println!("\nthere");
            thread::sleep(Duration::from_secs(600));
        }
    }
}

fn start(dir: &Path, side: Side, step: Step, way: &str) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env(DIR, dir)
        .env(STEP, format!("{side:?}{step:?}").to_lowercase())
        .env(WAY, way)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    let (report, reported) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if line == "there" {
                let _ = report.send(());
            }
        }
    });
    // Killed once it is there, while this process is in a call.
    let pid = child.id() as libc::pid_t;
    thread::spawn(move || {
        let there = reported.recv_timeout(LIMIT).is_ok();
        thread::sleep(Duration::from_millis(30));
        // SAFETY: plain numbers; the child is not waited for before its peer has failed.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        assert!(there, "the victim did not get there");
    });
    child
}

/// Mappings of pipes that this process has.
fn maps() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:strait-rpipe")).count()
}

fn survive(side: Side, step: Step, way: &str) {
    let dir = env::temp_dir().join(format!("strait-rpipe-faults-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    let context = join(0, 2, &dir, way);
    let mut child = start(&dir, side, step, way);
    let mine = if side == Side::Writer { Side::Reader } else { Side::Writer };
    let mut pipe = Pipe::open(&context, 1, &PipeOptions::new(mine)).unwrap();
    let (mut done, case) = (0, format!("{side:?} killed at {step:?}, {way}"));
    let fault = loop {
        let ended = match mine {
            Side::Reader => pipe.read(100, patience()).map(drop),
            _ => pipe.alloc(100, 1, patience()).and_then(|block| pipe.write(block, None)),
        };
        match ended {
            Ok(()) => done += 1,
            Err(fault) => break fault,
        }
    };
    assert!(matches!(fault, Error::Gone(_)), "{case}: {fault:?}");
    match mine {
        Side::Reader => assert_eq!(done, usize::from(step == Step::Written), "{case}"),
        _ => assert!(done <= 6, "{case}: {done} messages in 4 slots"),
    }
    let begun = std::time::Instant::now();
    pipe.close().unwrap();
    assert!(begun.elapsed() < LIMIT);
    child.wait().unwrap();
    drop(pipe);
    // What a reader may still free into stays until its end is reported.
    while maps() != 0 && begun.elapsed() < LIMIT {
        context.progress().unwrap();
    }
    assert_eq!(maps(), 0, "{case}: memory of the pipe is still mapped");
    context.close().unwrap();
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_peer_that_is_killed_at_any_step_ends_the_others_calls_and_the_memory_comes_back() {
    for way in WAYS {
        WRITING.into_iter().for_each(|step| survive(Side::Writer, step, way));
        READING.into_iter().for_each(|step| survive(Side::Reader, step, way));
    }
}
