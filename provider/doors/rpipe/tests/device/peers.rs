//! Other processes: those that are killed, and forked children.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

const DIR: &str = "STRAIT_RPIPE_TEST_DIR";
const STEP: &str = "STRAIT_RPIPE_TEST_STEP";

/// How far the other process goes before it waits to be killed.
const WRITING: [&str; 4] = ["opened", "allocated", "half", "written"];
const READING: [&str; 4] = ["opened", "waiting", "read", "freed"];

/// The process that is killed. It is a test only so that this program can start itself.
#[test]
fn victim() {
    let Some(dir) = env::var_os(DIR) else { return };
    let wanted = env::var(STEP).unwrap();
    let (side, step) = wanted.split_once(' ').unwrap();
    let cu = driver();
    let context = join(Path::new(&dir), 1, &Settings::default());
    let there = |here: &str| {
        if step == here {
            println!("\nthere");
            thread::sleep(Duration::from_secs(600));
        }
    };
    if side == "writer" {
        let mut pipe =
            Pipe::open(&context, 0, &PipeOptions { eager: true, ..end(Side::Writer, true) }).unwrap();
        there("opened");
        let block = pipe.alloc(1 << 20, 1, patience()).unwrap();
        there("allocated");
        cu.write(pipe.address(block).unwrap().addr(), &pattern(9, 1 << 19));
        there("half");
        pipe.write(block, Some(1 << 19)).unwrap();
        there("written");
    } else {
        let options = PipeOptions { eager: true, heap: Some(HEAP), ..end(Side::Reader, true) };
        let mut pipe = Pipe::open(&context, 0, &options).unwrap();
        there("opened");
        let _ = pipe.peek();
        there("waiting");
        let (block, len) = pipe.read(usize::MAX, patience()).unwrap();
        assert!(look(&cu, &mut pipe, true, block, len) == pattern(0, 100_000));
        there("read");
        pipe.free(block).unwrap();
        there("freed");
    }
}

fn start(dir: &Path, what: &str) -> Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "peers::victim", "--nocapture"])
        .env(DIR, dir)
        .env(STEP, what)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = child.stdout.take().unwrap();
    let pid = child.id() as libc::pid_t;
    // Killed once it is there, while this process is in a call.
    thread::spawn(move || {
        let there = BufReader::new(out).lines().map_while(Result::ok).any(|line| line == "there");
        // SAFETY: plain numbers; the child is not waited for before its peer has failed.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        assert!(there, "the victim did not get there");
    });
    child
}

fn survive(cu: &Driver, what: &str) {
    let dir = scratch("killed");
    let context = join(&dir, 0, &Settings::default());
    let mut child = start(&dir, what);
    let writes = what.starts_with("reader");
    let mut done = 0;
    let fault = if writes {
        let mut pipe = Pipe::open(&context, 1, &end(Side::Writer, false)).unwrap();
        loop {
            match write(cu, &mut pipe, false, &pattern(0, 100_000)) {
                Ok(()) => done += 1,
                Err(fault) => break fault,
            }
        }
    } else {
        let options = PipeOptions { heap: Some(HEAP), ..end(Side::Reader, true) };
        let mut pipe = Pipe::open(&context, 1, &options).unwrap();
        loop {
            match read(cu, &mut pipe, true) {
                Ok(bytes) => {
                    assert!(bytes == pattern(9, 1 << 19), "{what}");
                    done += 1;
                }
                Err(fault) => break fault,
            }
        }
    };
    assert!(matches!(fault, Error::Gone(_)), "{what}: {fault:?}");
    if !writes {
        assert_eq!(done, usize::from(what.ends_with("written")), "{what}");
    }
    child.wait().unwrap();
    context.close().unwrap();
}

#[test]
fn a_peer_that_is_killed_ends_the_others_calls_and_the_devices_memory_comes_back() {
    let (_alone, cu) = alone();
    lengths(cu, "warm", true, true, Sync::Deferred, 1);
    let (before, open) = (cu.in_use(), descriptors());
    for (side, steps) in [("writer", WRITING), ("reader", READING)] {
        for step in steps {
            let what = format!("{side} {step}");
            survive(&cu, &what);
            settles(&cu, before, open, &what);
        }
    }
}

#[test]
fn a_forked_child_ends_nothing_of_its_parents_and_asks_no_driver() {
    let (_alone, cu) = alone();
    let [a, b] = job("forked", &Settings::default());
    let mut writer = Pipe::open(&a, 1, &PipeOptions { eager: true, ..end(Side::Writer, true) }).unwrap();
    let mut reader = Pipe::open(&b, 0, &PipeOptions { eager: true, ..end(Side::Reader, true) }).unwrap();
    let begun = std::time::Instant::now();
    while writer.alloc(8, 1, Patience::Poll).is_err() {
        b.progress().unwrap();
        assert!(begun.elapsed() < LIMIT);
    }
    write(&cu, &mut writer, true, &pattern(1, 5000)).unwrap();
    let (block, len) = reader.read(usize::MAX, patience()).unwrap();
    // SAFETY: the child drops what it has, and ends without the program's handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let calls = |cu: &Driver| {
            if is_real() {
                0
            } else {
                cu.calls(c"cuMemUnmap") + cu.calls(c"cuMemAddressFree") + cu.calls(c"cuMemHostUnregister")
            }
        };
        let before = calls(&cu);
        drop((writer, reader, a, b));
        let asked = calls(&cu) != before;
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(asked)) };
    }
    let mut status = 0;
    // SAFETY: a place for the status.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child has asked the driver");
    assert!(look(&cu, &mut reader, true, block, len) == pattern(1, 5000));
    reader.free(block).unwrap();
    write(&cu, &mut writer, true, &pattern(2, 700)).unwrap();
    assert!(read(&cu, &mut reader, true).unwrap() == pattern(2, 700));
}
