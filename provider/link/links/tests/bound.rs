//! When a process is in a crowd that may not use all processors of the host. What is found holds for a
//! process, so each part is one of its own.
#![cfg(not(loom))]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use link::{Links, OpenOptions, turns};
use link_api::{FrameLink as _, Link as _};
use wire::Addr;

const PART: &str = "STRAIT_TEST_PART";

/// Runs in a process of its own.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    match part.as_str() {
        "rank" => bind(true),
        "peer" => return peer(),
        _ => {}
    }
    turns::knows(2);
    let yields = || turns::yields(turns::POLLS, 8 * turns::POLLS);
    assert_eq!(yields(), part != "rank");
    if part == "script" {
        meet();
        assert!(!yields());
    }
}

/// This thread may use the first of its processors from now on, or all but that; so may processes that it
/// makes.
fn bind(first: bool) {
    // SAFETY: sets of our own, whose sizes the kernel gets.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        let all = 0..libc::CPU_SETSIZE as usize;
        let at = all.clone().find(|n| libc::CPU_ISSET(*n, &set)).unwrap();
        // The kernel takes those of them that there are.
        all.for_each(|n| {
            if (n == at) == first { libc::CPU_SET(n, &mut set) } else { libc::CPU_CLR(n, &mut set) }
        });
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn bind_child(child: &mut Command, first: bool) {
    // SAFETY: system calls alone.
    unsafe {
        child.pre_exec(move || {
            bind(first);
            Ok(())
        })
    };
}

fn open() -> Links {
    let bind = Some("127.0.0.1:0".parse().unwrap());
    Links::open(OpenOptions { bind, ..OpenOptions::default() }).unwrap()
}

/// Connects to a process that may use the other processors.
fn meet() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "part", "--nocapture"]).env(PART, "peer");
    bind_child(&mut child, false);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let addr = lines.find_map(|line| line.split_once('!').map(|(_, addr)| addr.parse().unwrap())).unwrap();
    let (mut links, start) = (open(), Instant::now());
    let to = links.peer(&Addr::new(addr));
    while links.send(to, b"0", &[], 0, 0).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "not connected");
        links.poll();
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

fn peer() {
    let links = open();
    println!("!{}", links.addr());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Part of a job whose launcher, a shell, may use one processor or all.
fn run(part: &'static str, one: bool) -> bool {
    let mut launcher = Command::new("sh");
    launcher
        .args(["-c", "\"$0\" --exact part; exit $?"])
        .arg(std::env::current_exe().unwrap())
        .env(PART, part);
    if one {
        bind_child(&mut launcher, true);
    }
    launcher.status().unwrap().success()
}

#[test]
fn two_processes_of_a_job_on_one_processor_are_a_crowd_but_not_if_each_is_bound_to_its_own() {
    assert!(run("job", true), "all of it on one processor");
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        assert!(run("rank", false), "bound by itself");
        assert!(run("script", true), "bound with the script that runs it, but its peer may use others");
    }
}
