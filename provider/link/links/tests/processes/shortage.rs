//! Processes that are short of descriptors or memory.

use std::io::Write as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use link::{OpenOptions, ShmLink};
use link_api::{Event, FrameLink, Gone, Link, PeerId, Refused, SleepLink};
use wire::Addr;

use crate::common::{closed, command, event, finish, frame, open, printed_addr, say, start};

/// Leaves this process so many descriptors, no matter what it has open; the limit that there was.
fn leave_descriptors(n: u64) -> u64 {
    // SAFETY: system calls on a copy of a descriptor of our own, and on a local structure.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        let first = libc::dup(0);
        libc::close(first);
        let old = std::mem::replace(&mut limit.rlim_cur, first as u64 + n);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
        old
    }
}

fn descriptor_limit(n: u64) {
    let limit = libc::rlimit { rlim_cur: n, rlim_max: n };
    // SAFETY: a local structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

/// Meets a peer with few descriptors to spare: the peer calls, or is called.
pub fn short_of_descriptors(_link: ShmLink, _to: PeerId, _parent: Addr) {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let patience = Duration::from_millis(number("STRAIT_PATIENCE"));
    let bind = Some("127.0.0.1:0".parse().unwrap());
    let mut link = ShmLink::open(OpenOptions { bind, patience, ..OpenOptions::default() }).unwrap();
    let mut line = String::new();
    let old = leave_descriptors(number("STRAIT_ROOM"));
    println!("!{}", link.addr());
    std::io::stdin().read_line(&mut line).unwrap();
    let more = Duration::from_millis(number("STRAIT_LATER"));
    let start = Instant::now();
    if let Ok(peer) = line.trim().parse() {
        let peer = link.peer(&Addr::new(peer));
        loop {
            match link.send(peer, b"0", &[], 0, 0) {
                Ok(_) => break,
                Err(Refused::Busy) if start.elapsed() > more => descriptor_limit(old),
                Err(Refused::Busy) => assert!(start.elapsed() < Duration::from_secs(60)),
                Err(e) => {
                    assert_eq!(e, Refused::Gone(Gone::Exhausted));
                    assert!(start.elapsed() >= patience && more > patience);
                    return;
                }
            }
            assert!(link.poll().is_none());
        }
        assert!(more <= patience);
        assert!(matches!(event(&mut link), Event::Closed(..)));
        return;
    }
    // Frames that were sent before we looked.
    let mut next = 0;
    while next < 100 {
        assert!(start.elapsed() < Duration::from_secs(60), "frame {next} never comes");
        if start.elapsed() > more {
            descriptor_limit(old);
        }
        match link.poll() {
            Some(Event::Frame(f)) => {
                let mut byte = [0];
                link.read(&f, 0, &mut byte);
                assert_eq!(byte[0], next);
                link.release(f);
                next += 1;
            }
            Some(e) => panic!("{e:?}"),
            None => {}
        }
    }
    assert!(more <= patience);
}

/// Calls a peer whose queue is full with few descriptors to spare.
pub fn short_before_a_full_queue(_link: ShmLink, _to: PeerId, parent: Addr) {
    const TIMEOUT: Duration = Duration::from_millis(100);
    let bind = Some("127.0.0.1:0".parse().unwrap());
    let options = OpenOptions { bind, connect_timeout: TIMEOUT, ..OpenOptions::default() };
    for room in 1..5 {
        let mut link = ShmLink::open(options.clone()).unwrap();
        let to = link.peer(&parent);
        let old = leave_descriptors(room);
        let start = Instant::now();
        while start.elapsed() < 4 * TIMEOUT {
            assert_eq!(link.send(to, b"x", &[], 0, 0), Err(Refused::Busy), "room for {room}");
            assert!(link.poll().is_none());
            std::thread::yield_now();
        }
        descriptor_limit(old);
    }
}

#[test]
fn a_peer_whose_queue_is_full_is_waited_for_also_without_descriptors_to_find_it() {
    let other = open();
    let name = format!("strait/{}", other.addr());
    while ipc::socket::connect(&name).is_ok() {}
    finish(start("short before a full queue", other.addr()));
}

/// Not a test's peer but one that has no room to map anything for a while.
pub fn short_of_memory(mut link: ShmLink, _to: PeerId, _parent: Addr) {
    println!("!{}", link.addr());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let limit = |now| {
        let limit = libc::rlimit { rlim_cur: now, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: a local structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    };
    limit(1 << 20);
    let (start, mut heard) = (Instant::now(), false);
    while start.elapsed() < Duration::from_millis(300) {
        heard |= link.poll().is_some();
    }
    limit(libc::RLIM_INFINITY);
    assert!(!heard && !link.arm());
    for n in 0..100 {
        assert_eq!(frame(&mut link).1, [n]);
    }
}

/// A child that has `room` descriptors, and more `later`.
fn short(room: u64, later: u64, patience: u64) -> (Child, Addr) {
    let mut c = command("short of descriptors", open().addr());
    c.env("STRAIT_ROOM", room.to_string()).env("STRAIT_LATER", later.to_string());
    c.env("STRAIT_PATIENCE", patience.to_string()).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut child = c.spawn().unwrap();
    let addr = printed_addr(&mut child);
    (child, addr)
}

#[test]
fn nothing_is_lost_on_a_peer_that_is_short_of_descriptors() {
    for (room, later) in [(0, 200), (1, 60_000), (2, 60_000), (3, 60_000)] {
        takes_all(short(room, later, 60_000));
    }
}

/// A child that has too little gets each of a hundred frames: it fails after 20 s without one.
fn takes_all((mut child, addr): (Child, Addr)) {
    let mut link = open();
    let to = link.peer(&addr);
    for n in 0..100 {
        say(&mut link, to, &[n]);
    }
    drop(child.stdin.take());
    finish(child);
    assert_eq!(closed(&mut link), (to, Gone::Reset));
}

#[test]
fn nothing_is_lost_on_a_peer_that_is_short_of_memory() {
    let mut c = command("short of memory", open().addr());
    let mut child = c.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
    let addr = printed_addr(&mut child);
    takes_all((child, addr));
}

#[test]
fn a_peer_that_stays_without_descriptors_is_given_up() {
    let (mut child, addr) = short(0, 100_000, 300);
    let mut link = open();
    let to = link.peer(&addr);
    say(&mut link, to, &[0]);
    let start = Instant::now();
    drop(child.stdin.take());
    assert_eq!(closed(&mut link), (to, Gone::Exhausted));
    assert!(start.elapsed() >= Duration::from_millis(300), "given up too early");
    // It would wait for its frames for a while.
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_process_without_descriptors_tries_to_connect_until_its_patience_ends() {
    for (room, later, patience) in
        [(0, 100, 60_000), (1, 100, 60_000), (2, 60_000, 60_000), (0, 100_000, 200), (1, 100_000, 200)]
    {
        let (mut child, _) = short(room, later, patience);
        let mut link = open();
        writeln!(child.stdin.as_mut().unwrap(), "{}", link.addr()).unwrap();
        if later <= patience {
            assert_eq!(frame(&mut link).1, b"0");
            drop(link);
        }
        finish(child);
    }
}
