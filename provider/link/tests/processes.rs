//! Links between processes: ends by SIGKILL, other users, memory of another process.
//!
//! A child is this very program, started anew with a role.
#![cfg(not(loom))]

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hmem::Span;
use link::{OpenOptions, ShmLink};
use link_api::{Event, Gone, Grant, Link, NoDirect, PeerId, Refused, RmaLink as _};
use wire::{Addr, Seg};

const NOBODY: u32 = 65534;

fn open() -> ShmLink {
    let bind = Some("127.0.0.1:0".parse().unwrap());
    ShmLink::open(OpenOptions { bind, ..OpenOptions::default() }).unwrap()
}

fn command(role: &str, addr: Addr) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    c.env("STRAIT_ROLE", role).env("STRAIT_ADDR", addr.to_string()).stdout(Stdio::null());
    c
}

fn start(role: &str, addr: Addr) -> Child {
    command(role, addr).spawn().unwrap()
}

fn finish(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

fn is_root() -> bool {
    // SAFETY: geteuid(2) cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn event(link: &mut ShmLink) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = link.poll() {
            return event;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nothing happens");
        if link.arm() {
            wait(link, 1000);
        }
    }
}

fn wait(link: &ShmLink, ms: i32) -> bool {
    let mut p = libc::pollfd { fd: link.wait_fd().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, ms) == 1 }
}

fn frame(link: &mut ShmLink) -> (PeerId, Vec<u8>) {
    match event(link) {
        Event::Frame(f) => {
            let mut bytes = vec![0; f.len];
            link.read(&f, 0, &mut bytes);
            let from = f.from;
            link.release(f);
            (from, bytes)
        }
        other => panic!("no frame but {other:?}"),
    }
}

fn closed(link: &mut ShmLink) -> (PeerId, Gone) {
    match event(link) {
        Event::Closed(peer, why) => (peer, why),
        other => panic!("not closed but {other:?}"),
    }
}

fn say(link: &mut ShmLink, to: PeerId, bytes: &[u8]) {
    let start = Instant::now();
    while let Err(e) = link.send(to, bytes, &[], 0, 0) {
        assert_eq!(e, Refused::Busy);
        assert!(start.elapsed() < Duration::from_secs(20), "no room");
        std::thread::yield_now();
    }
}

/// Not a test: what a child does.
#[test]
fn child() {
    let Ok(role) = std::env::var("STRAIT_ROLE") else { return };
    let parent = Addr::new(std::env::var("STRAIT_ADDR").unwrap().parse().unwrap());
    let mut link = open();
    let to = link.peer(&parent);
    match role.as_str() {
        "echo" => {
            say(&mut link, to, b"here");
            while let Event::Frame(f) = event(&mut link) {
                let mut bytes = vec![0; f.len];
                link.read(&f, 0, &mut bytes);
                link.release(f);
                while link.send(to, &bytes, &[], 0, 0) == Err(Refused::Busy) {}
            }
        }
        "fork" => {
            // Both ways, so that neither socket ends with this process.
            say(&mut link, to, b"here");
            frame(&mut link);
            // SAFETY: the child only sleeps, with copies of all descriptors.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: system calls that touch no memory.
                unsafe {
                    libc::sleep(20);
                    libc::_exit(0);
                }
            }
            say(&mut link, to, &child.to_le_bytes());
            // SAFETY: raise(3) touches no memory.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        "last words" => {
            for i in 0..3 {
                say(&mut link, to, &[i]);
            }
            // SAFETY: raise(3) touches no memory.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        "memory" => {
            let memory = Span::leak(1 << 20);
            hmem::write(&[memory], 0, &vec![7; 1 << 20]);
            say(&mut link, to, &memory.addr().to_le_bytes());
            assert_eq!(frame(&mut link).1, b"look");
            let mut back = vec![0; 1 << 20];
            hmem::read(&[memory], 0, &mut back);
            assert!(back[..1000].iter().all(|&b| b == 7));
            assert!(back[1000..500_000].iter().all(|&b| b == 9));
            assert!(back[500_000..].iter().all(|&b| b == 7));
            // Without a word: a link that is dropped says first that nothing may be accessed any more.
            std::process::exit(0);
        }
        "before exec" => {
            let memory = fixed(7);
            say(&mut link, to, &memory.addr().to_le_bytes());
            assert_eq!(frame(&mut link).1, b"go");
            // A child that holds copies of the sockets, so that none of them is seen to end.
            // SAFETY: the child only sleeps until its parent has ended.
            unsafe {
                let parent = libc::getpid();
                if libc::fork() == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    while libc::getppid() == parent {
                        libc::usleep(1000);
                    }
                    libc::_exit(0);
                }
            }
            let why = command("after exec", parent).stdout(Stdio::inherit()).exec();
            panic!("not executed: {why}");
        }
        "after exec" => {
            let memory = fixed(5);
            println!("!ready");
            let _ = std::io::stdin().read_line(&mut String::new());
            let mut now = vec![0; memory.len()];
            hmem::read(&[memory], 0, &mut now);
            assert!(now.iter().all(|&b| b == 5), "written by a peer of the program before");
        }
        "slow" => {
            // Listens, and does not look at it. "exec": as above. Else it looks after a while.
            println!("!{}", link.addr());
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).unwrap();
            if line == "meet\n" {
                let (from, _) = frame(&mut link);
                say(&mut link, from, b"met");
                line.clear();
                std::io::stdin().read_line(&mut line).unwrap();
            }
            let this = std::process::id() as i32;
            // SAFETY: the child only sleeps until its parent has ended, with copies of all sockets.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: system calls that touch no memory.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    while libc::getppid() == this {
                        libc::usleep(1000);
                    }
                    libc::_exit(0);
                }
            }
            if line == "exec\n" {
                let why = command("after exec", parent).stdout(Stdio::inherit()).exec();
                panic!("not executed: {why}");
            }
            std::thread::sleep(Duration::from_millis(3500));
            let (from, bytes) = frame(&mut link);
            say(&mut link, from, &bytes);
            closed(&mut link);
        }
        "inside" => {
            // Copies from and to the parent's memory, over and over.
            say(&mut link, to, b"here");
            let (from, addr) = frame(&mut link);
            let (name, addr) = addr.split_at(8);
            let (name, addr) = (name.try_into().unwrap(), addr.try_into().unwrap());
            let grant = Grant::Request(u64::from_le_bytes(name));
            let remote = [Seg { addr: u64::from_le_bytes(addr).into(), len: (8 << 20).into() }];
            let local = [Span::leak(8 << 20)];
            let mut rounds = 0u64;
            loop {
                hmem::write(&local, 0, &rounds.to_le_bytes());
                match link.put(from, grant, &remote, 0, &local, 0, 8 << 20) {
                    Ok(()) => rounds += 1,
                    Err(why) => {
                        assert_eq!(why, NoDirect::Revoked);
                        break;
                    }
                }
                if rounds == 3 {
                    say(&mut link, from, b"begun");
                }
            }
            assert_eq!(link.get(from, grant, &remote, 0, &local, 0, 8), Err(NoDirect::Revoked));
            // Another request is none of that.
            let other = Grant::Request(u64::from_le_bytes(name) + (1 << 32));
            link.get(from, other, &remote, 0, &local, 0, 8).unwrap();
            say(&mut link, from, b"revoked");
            closed(&mut link);
        }
        "killed inside" => {
            // A child that holds copies of the sockets, so that none of them is seen to end.
            say(&mut link, to, b"here");
            let (from, addr) = frame(&mut link);
            // SAFETY: the child only sleeps.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: system calls that touch no memory.
                unsafe {
                    libc::sleep(20);
                    libc::_exit(0);
                }
            }
            say(&mut link, from, &child.to_le_bytes());
            const LEN: usize = 64 << 20;
            let addr = u64::from_le_bytes(addr.try_into().unwrap());
            let remote = [Seg { addr: addr.into(), len: (LEN as u64).into() }];
            let local = [Span::leak(LEN)];
            loop {
                link.put(from, Grant::Request(5 << 32 | 9), &remote, 0, &local, 0, LEN).unwrap();
            }
        }
        "foreign" => {
            // The parent's listener is another user's.
            assert_eq!(link.send(to, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Denied)));
            // And does not listen to us either, whatever we say.
            let sock = connect(parent);
            // SAFETY: a local array of 16 bytes, sent and received.
            unsafe {
                let mut bytes = [0u8; 16];
                libc::send(sock, bytes.as_ptr().cast(), 16, libc::MSG_NOSIGNAL);
                assert!(libc::recv(sock, bytes.as_mut_ptr().cast(), 16, 0) <= 0);
            }
            println!("!{}", link.addr());
            // Until the parent has tried.
            let _ = std::io::stdin().read_line(&mut String::new());
            assert!(link.poll().is_none());
        }
        "without its first thread" => {
            drop(link);
            // SAFETY: this process runs one test, which is waiting here; the child starts a thread of its own.
            let child = unsafe { libc::fork() };
            if child == 0 {
                std::thread::spawn(move || {
                    let mut link = open();
                    let to = link.peer(&parent);
                    say(&mut link, to, b"here");
                    while let Event::Frame(f) = event(&mut link) {
                        link.release(f);
                        say(&mut link, to, b"yes");
                    }
                    std::process::exit(0);
                });
                // SAFETY: ends this thread alone, as pthread_exit(3) does in the end.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
            }
            let mut status = 0;
            // SAFETY: a child of ours, and a place for what became of it.
            unsafe { libc::waitpid(child, &mut status, 0) };
            assert_eq!(status, 0);
        }
        "short of memory" => short_of_memory(link),
        "short of descriptors" => short_of_descriptors(to, parent),
        "owner" => {
            println!("!{}", link.addr());
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                std::io::stdin().lines().map_while(Result::ok).for_each(|l| drop(tell.send(l)))
            });
            let other = loop {
                assert!(link.poll().is_none(), "heard of another user");
                match told.recv_timeout(Duration::from_millis(1)) {
                    Ok(line) => break link.peer(&Addr::new(line.parse().unwrap())),
                    Err(e) => assert_eq!(e, std::sync::mpsc::RecvTimeoutError::Timeout),
                }
            };
            assert_eq!(link.send(other, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Denied)));
        }
        "kin" => {
            let mut child = start("echo", link.addr());
            let (from, _) = frame(&mut link);
            say(&mut link, from, b"ping");
            assert_eq!(frame(&mut link), (from, b"ping".to_vec()));
            drop(link);
            child.wait().unwrap();
        }
        "refused" => {
            let mut hidden = start("hidden", link.addr());
            let (from, _) = frame(&mut link);
            let local = [Span::leak(8)];
            let remote = [Seg { addr: local[0].addr().into(), len: 8.into() }];
            assert_eq!(link.get(from, Grant::Agreed, &remote, 0, &local, 0, 8), Err(NoDirect::Never));
            assert_eq!(link.put(from, Grant::Agreed, &remote, 0, &local, 0, 8), Err(NoDirect::Never));
            let text = link.describe(from);
            assert!(text.contains("frames only: process_vm_readv refused: EPERM"), "{text}");
            say(&mut link, from, b"enough");
            hidden.wait().unwrap();
        }
        "hidden" => {
            // SAFETY: prctl(PR_SET_DUMPABLE) takes a number.
            unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
            say(&mut link, to, b"here");
            frame(&mut link);
        }
        other => panic!("no role {other}"),
    }
}

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
fn short_of_descriptors(_: PeerId, _: Addr) {
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let patience = Duration::from_millis(number("STRAIT_PATIENCE"));
    let bind = Some("127.0.0.1:0".parse().unwrap());
    let mut link = ShmLink::open(OpenOptions { bind, patience, ..OpenOptions::default() }).unwrap();
    let mut line = String::new();
    let old = leave_descriptors(number("STRAIT_ROOM"));
    println!("!{}", link.addr());
    std::io::stdin().read_line(&mut line).unwrap();
    let start = Instant::now();
    let more = Duration::from_millis(number("STRAIT_LATER"));
    if let Ok(peer) = line.trim().parse() {
        let peer = link.peer(&Addr::new(peer));
        loop {
            match link.send(peer, b"0", &[], 0, 0) {
                Ok(()) => break,
                Err(Refused::Busy) if start.elapsed() > more => descriptor_limit(old),
                Err(Refused::Busy) => assert!(start.elapsed() < Duration::from_secs(20)),
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
        assert!(start.elapsed() < Duration::from_secs(20), "frame {next} never comes");
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
            None if more > patience && start.elapsed() > patience * 3 => return,
            None => {}
        }
    }
    assert!(more <= patience);
}

/// A connection to the endpoint's socket, made by hand.
fn connect(addr: Addr) -> i32 {
    let text = format!("strait/{addr}");
    // SAFETY: a `sockaddr_un` is plain data; the name and its length are those of an abstract
    // socket.
    unsafe {
        let sock = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0);
        let mut name: libc::sockaddr_un = std::mem::zeroed();
        name.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, from) in name.sun_path[1..].iter_mut().zip(text.bytes()) {
            *to = from as libc::c_char;
        }
        let len = 3 + text.len() as libc::socklen_t;
        assert_eq!(libc::connect(sock, (&raw const name).cast(), len), 0);
        sock
    }
}

#[test]
fn a_killed_peer_is_closed_within_a_second() {
    let mut link = open();
    for _ in 0..3 {
        let mut child = start("echo", link.addr());
        let (from, _) = frame(&mut link);
        say(&mut link, from, b"ping");
        assert_eq!(frame(&mut link), (from, b"ping".to_vec()));
        assert!(link.arm());
        child.kill().unwrap();
        let start = Instant::now();
        assert!(wait(&link, 1000), "not woken by its end");
        assert_eq!(closed(&mut link), (from, Gone::Reset));
        assert!(start.elapsed() < Duration::from_secs(1));
        // Until all of it is gone, its listener may still take a connection that leads nowhere.
        child.wait().unwrap();
        assert_eq!(link.send(from, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Refused)));
    }
    // And by somebody who only polls.
    let mut child = start("echo", link.addr());
    let (from, _) = frame(&mut link);
    child.kill().unwrap();
    let start = Instant::now();
    let end = loop {
        if let Some(event) = link.poll() {
            break event;
        }
        assert!(start.elapsed() < Duration::from_secs(1));
    };
    assert!(matches!(end, Event::Closed(peer, Gone::Reset) if peer == from));
    child.wait().unwrap();
}

/// A process forked from the peer holds all its sockets, and neither reads nor closes any.
#[test]
fn a_killed_peer_is_closed_while_a_child_of_its_lives() {
    for slow in [false, true] {
        let mut link = open();
        let mut child = start("fork", link.addr());
        let (from, _) = frame(&mut link);
        say(&mut link, from, b"go on");
        if slow {
            child.wait().unwrap();
        }
        let (_, grandchild) = frame(&mut link);
        let grandchild = i32::from_le_bytes(grandchild.try_into().unwrap());
        let start = Instant::now();
        assert_eq!(closed(&mut link), (from, Gone::Reset));
        assert!(start.elapsed() < Duration::from_secs(10), "its child had to end first");
        child.wait().unwrap();
        // What is left of its listener leads nowhere.
        assert_eq!(link.send(from, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Refused)));
        // SAFETY: a process that was started for this test, and still sleeps.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };
    }
}

#[test]
fn words_of_a_peer_that_was_killed_before_we_looked() {
    let mut link = open();
    let mut child = start("last words", link.addr());
    assert!(!child.wait().unwrap().success());
    let (from, first) = frame(&mut link);
    assert_eq!(first, [0]);
    assert_eq!(frame(&mut link), (from, vec![1]));
    assert_eq!(frame(&mut link), (from, vec![2]));
    assert_eq!(closed(&mut link), (from, Gone::Reset));
}

#[test]
fn many_frames_there_and_back() {
    let mut link = open();
    let child = start("echo", link.addr());
    let (to, _) = frame(&mut link);
    let (mut sent, mut back) = (0u32, 0u32);
    while back < 200_000 {
        let mut bytes = vec![0; 4 + (sent as usize * 7919) % 900];
        bytes[..4].copy_from_slice(&sent.to_le_bytes());
        // Few enough for the other side never to be stuck between two full rings.
        if sent - back < 8 && link.send(to, &bytes, &[], 0, 0).is_ok() {
            sent += 1;
            continue;
        }
        let (_, bytes) = frame(&mut link);
        assert_eq!(bytes[..4], back.to_le_bytes());
        assert_eq!(bytes.len(), 4 + (back as usize * 7919) % 900);
        back += 1;
    }
    drop(link);
    finish(child);
}

#[test]
fn the_memory_of_another_process() {
    if let Err(why) = link::cma_allowed() {
        return eprintln!("skipped: {why}");
    }
    let mut link = open();
    let child = start("memory", link.addr());
    let (from, addr) = frame(&mut link);
    let addr = u64::from_le_bytes(addr.try_into().unwrap());
    let remote = [
        Seg { addr: addr.into(), len: 600_000.into() },
        Seg { addr: (addr + 600_000).into(), len: ((1 << 20) - 600_000).into() },
    ];
    let local = [Span::leak(333_333), Span::leak(1 << 20)];
    link.get(from, Grant::Agreed, &remote, 0, &local, 0, 1 << 20).unwrap();
    let mut bytes = vec![0; 1 << 20];
    hmem::read(&local, 0, &mut bytes);
    assert!(bytes.iter().all(|&b| b == 7));
    hmem::write(&local, 0, &vec![9; 1 << 20]);
    link.put(from, Grant::Agreed, &remote, 1000, &local, 77, 499_000).unwrap();
    assert!(link.describe(from).ends_with(&format!("with pid {}", child.id())));
    // Addresses that are none there; a good start does not help.
    let bad = [remote[0], Seg { addr: 64.into(), len: 100.into() }];
    assert_eq!(link.get(from, Grant::Agreed, &bad, 599_990, &local, 0, 100), Err(NoDirect::Memory));
    assert_eq!(link.put(from, Grant::Agreed, &bad[1..], 0, &local, 0, 100), Err(NoDirect::Memory));
    say(&mut link, from, b"look");
    finish(child);
    // The process is gone, though we have not taken note of it.
    assert_eq!(link.get(from, Grant::Agreed, &remote, 0, &local, 0, 8), Err(NoDirect::Fault));
    assert_eq!(closed(&mut link), (from, Gone::Reset));
}

/// A page at a place that is the same in every program.
fn fixed(fill: u8) -> Span {
    const AT: usize = 0x2345_6780_0000;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = flags | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping, which replaces none and is never given back.
    unsafe {
        let at = libc::mmap(std::ptr::without_provenance_mut(AT), 1 << 20, prot, flags, -1, 0);
        assert_eq!(at.addr(), AT);
        at.cast::<u8>().write_bytes(fill, 1 << 20);
        Span::new(at.expose_provenance(), 1 << 20, hmem::Kind::System)
    }
}

#[test]
fn a_program_that_was_executed_meanwhile_is_left_alone() {
    if let Err(why) = link::cma_allowed() {
        return eprintln!("skipped: {why}");
    }
    for round in 0..20 {
        let mut link = open();
        let mut child = command("before exec", link.addr());
        let mut child = child.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
        let (from, addr) = frame(&mut link);
        let addr = u64::from_le_bytes(addr.try_into().unwrap());
        let remote = [Seg { addr: addr.into(), len: (1 << 20).into() }];
        let local = [Span::leak(1 << 20)];
        link.get(from, Grant::Agreed, &remote, 0, &local, 0, 1 << 20).unwrap();
        let mut bytes = vec![0; 1 << 20];
        hmem::read(&local, 0, &mut bytes);
        assert!(bytes.iter().all(|&b| b == 7));
        say(&mut link, from, b"go");
        // Written to until it is not there any more, in most rounds: then the new program is.
        let mut put = || link.put(from, Grant::Agreed, &remote, 0, &local, 0, 8192);
        while round % 4 > 0 && put() != Err(NoDirect::Fault) {}
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        said.find(|line| line.ends_with("!ready")).expect("the program was executed");
        // Nothing tells of it: the process lives, and so do its sockets.
        for len in [8, 4096, 32 << 10, 512 << 10, 1 << 20] {
            let put = link.put(from, Grant::Agreed, &remote, 0, &local, 0, len);
            let get = link.get(from, Grant::Agreed, &remote, 0, &local, 0, len);
            assert_eq!((put, get), (Err(NoDirect::Fault), Err(NoDirect::Fault)), "{len}");
        }
        drop(child.stdin.take());
        finish(child);
    }
}

/// A peer that listens and has not looked at it, what it reads from its standard input, and what it has said.
fn slow(link: &mut ShmLink) -> (Child, PeerId, impl Iterator<Item = String> + use<>) {
    let mut child = command("slow", link.addr());
    let mut child = child.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let addr = said.find_map(|line| line.split_once('!').map(|(_, addr)| addr.parse().unwrap()));
    let peer = link.peer(&Addr::new(addr.expect("it listens")));
    (child, peer, said)
}

fn tell(child: &mut Child, line: &str) {
    child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
}

/// As [`event`], by one who sleeps and is woken by nothing but the link.
fn woken(link: &mut ShmLink) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = link.poll() {
            return event;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nothing happens");
        if link.arm() {
            assert!(wait(link, 20_000), "not woken");
        }
    }
}

/// The pid lives, and a forked child holds the listening socket and all channels: neither tells of an end.
#[test]
fn a_peer_that_is_another_program_by_now_is_closed_while_a_child_of_its_lives() {
    for stage in ["called before", "called afterwards", "met"] {
        let mut link = open();
        let (mut child, peer, mut said) = slow(&mut link);
        if stage == "called before" {
            say(&mut link, peer, b"heard by nobody");
        } else if stage == "met" {
            tell(&mut child, "meet\n");
            say(&mut link, peer, b"here");
            assert_eq!(frame(&mut link), (peer, b"met".to_vec()));
        }
        tell(&mut child, "exec\n");
        said.find(|line| line.ends_with("!ready")).expect("the program was executed");
        if stage == "called afterwards" {
            say(&mut link, peer, b"heard by nobody");
        }
        let end = woken(&mut link);
        assert!(matches!(end, Event::Closed(id, Gone::Reset) if id == peer), "{stage}: {end:?}");
        if stage != "met" {
            // It is known by now, and found out at once.
            let again = link.send(peer, b"x", &[], 0, 0);
            assert_eq!(again, Err(Refused::Gone(Gone::Refused)), "{stage}");
        }
        drop(child.stdin.take());
        finish(child);
    }
}

/// It has a forked child, too, but is the program that listens: its peers wait for it, through several looks.
#[test]
fn a_peer_that_takes_long_to_answer_is_waited_for() {
    let mut link = open();
    let (mut child, peer, _said) = slow(&mut link);
    say(&mut link, peer, b"patience");
    tell(&mut child, "look\n");
    match woken(&mut link) {
        Event::Frame(f) => link.release(f),
        other => panic!("{other:?}"),
    }
    drop(link);
    finish(child);
}

#[test]
fn memory_that_was_taken_back_is_not_written_any_more() {
    if let Err(why) = link::cma_allowed() {
        return eprintln!("skipped: {why}");
    }
    let mut link = open();
    let child = start("inside", link.addr());
    let (from, _) = frame(&mut link);
    let (request, memory) = (5u64 << 32 | 9, Span::leak(8 << 20));
    say(&mut link, from, &[request.to_le_bytes(), memory.addr().to_le_bytes()].concat());
    assert_eq!(frame(&mut link).1, b"begun");
    link.revoke(from, request).unwrap();
    hmem::write(&[memory], 0, &vec![0xcc; 8 << 20]);
    assert_eq!(frame(&mut link).1, b"revoked");
    let mut now = vec![0; 8 << 20];
    hmem::read(&[memory], 0, &mut now);
    assert!(now.iter().all(|&b| b == 0xcc), "written after it was taken back");
    // A stopped peer: what it is inside of, if anything, is told in bounded time.
    let pid = child.id() as i32;
    // SAFETY: kill(2) touches no memory.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let begin = Instant::now();
    link.close().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10));
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    drop(link);
    finish(child);
}

#[test]
fn a_peer_that_was_killed_inside_is_not_waited_for_while_a_child_of_its_lives() {
    if let Err(why) = link::cma_allowed() {
        return eprintln!("skipped: {why}");
    }
    // Not each time it is killed between its two stores.
    for round in 0..5 {
        let mut link = open();
        let mut child = start("killed inside", link.addr());
        let (from, _) = frame(&mut link);
        let memory = Span::leak(64 << 20);
        say(&mut link, from, &memory.addr().to_le_bytes());
        let sleeper = i32::from_le_bytes(frame(&mut link).1.try_into().unwrap());
        while !link.is_inside(from, 5 << 32 | 9) {}
        child.kill().unwrap();
        let inside = link.is_inside(from, 5 << 32 | 9);
        child.wait().unwrap();
        assert_eq!(closed(&mut link), (from, Gone::Reset));
        let begin = Instant::now();
        assert_eq!(link.revoke(from, 5 << 32 | 9), Ok(()), "round {round}, inside {inside}");
        assert_eq!(link.close(), Ok(()), "round {round}, inside {inside}");
        assert!(begin.elapsed() < Duration::from_millis(500), "took {:?}", begin.elapsed());
        // SAFETY: kill(2) touches no memory.
        unsafe { libc::kill(sleeper, libc::SIGKILL) };
    }
}

#[test]
fn other_users_are_refused_both_ways() {
    if !is_root() {
        return eprintln!("skipped: only root can start a process of another user");
    }
    let mut link = open();
    let mut child = command("foreign", link.addr());
    child.uid(NOBODY).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(e) => return eprintln!("skipped: another user may not start this program: {e}"),
    };
    let (tell, told) = std::sync::mpsc::channel();
    let out = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if let Some((_, addr)) = line.split_once('!') {
                let _ = tell.send(addr.to_owned());
            }
        }
    });
    let theirs = loop {
        assert!(link.poll().is_none());
        match told.recv_timeout(Duration::from_millis(1)) {
            Ok(addr) => break addr,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(e) => panic!("{e}"),
        }
    };
    let to = link.peer(&Addr::new(theirs.parse().unwrap()));
    assert_eq!(link.send(to, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Denied)));
    drop(child.stdin.take());
    finish(child);
}

/// A child that has `room` descriptors, and more `later`.
fn short(room: u64, later: u64, patience: u64) -> (Child, Addr) {
    let mut c = command("short of descriptors", open().addr());
    c.env("STRAIT_ROOM", room.to_string()).env("STRAIT_LATER", later.to_string());
    c.env("STRAIT_PATIENCE", patience.to_string()).stdout(Stdio::piped()).stdin(Stdio::piped());
    let mut child = c.spawn().unwrap();
    let addr = told(&mut child);
    (child, addr)
}

#[test]
fn nothing_is_lost_on_a_peer_that_is_short_of_descriptors() {
    for (room, later) in [(0, 200), (1, 2000), (2, 2000), (3, 2000)] {
        let (mut child, addr) = short(room, later, 2000);
        let mut link = open();
        let to = link.peer(&addr);
        for n in 0..100 {
            say(&mut link, to, &[n]);
        }
        drop(child.stdin.take());
        // All has been received, with no more descriptors than there were.
        let start = Instant::now();
        finish(child);
        assert!(room == 0 || start.elapsed() < Duration::from_secs(1), "{room} were not enough");
        assert_eq!(closed(&mut link), (to, Gone::Reset));
    }
}

/// Not a test's peer but one that has no room to map anything for a while.
fn short_of_memory(mut link: ShmLink) {
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

/// Its first thread has ended and is a zombie: the process goes on.
#[test]
fn a_peer_lives_without_its_first_thread() {
    let mut link = open();
    let child = start("without its first thread", link.addr());
    let (from, said) = frame(&mut link);
    assert_eq!(said, b"here");
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(5));
        say(&mut link, from, b"are you there?");
        assert_eq!(frame(&mut link), (from, b"yes".to_vec()));
        assert!(!link.is_gone(from));
    }
    drop(link);
    finish(child);
}

#[test]
fn nothing_is_lost_on_a_peer_that_is_short_of_memory() {
    let mut c = command("short of memory", open().addr());
    let mut child = c.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
    let addr = told(&mut child);
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
fn a_peer_that_stays_without_descriptors_is_given_up() {
    let (mut child, addr) = short(0, 100_000, 300);
    let mut link = open();
    let to = link.peer(&addr);
    say(&mut link, to, &[0]);
    drop(child.stdin.take());
    let start = Instant::now();
    assert_eq!(closed(&mut link), (to, Gone::Exhausted));
    assert!((250..5000).contains(&start.elapsed().as_millis()));
    finish(child);
}

#[test]
fn a_process_without_descriptors_calls_for_a_while() {
    for (room, later, patience) in
        [(0, 100, 2000), (1, 100, 2000), (2, 2000, 2000), (0, 100_000, 200), (1, 100_000, 200)]
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

/// Has a child be in a user namespace of its own, without a mapping.
fn unmapped(command: &mut Command) -> &mut Command {
    // SAFETY: unshare(2) takes a number.
    let leave = || match unsafe { libc::unshare(libc::CLONE_NEWUSER) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(leave) }
}

/// The address that a child prints.
fn told(child: &mut Child) -> Addr {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    let line =
        out.lines().map_while(Result::ok).find_map(|l| l.split_once('!').map(|(_, addr)| addr.to_owned()));
    Addr::new(line.expect("an address").parse().unwrap())
}

/// Without a mapping each user is seen as the same uid, and sees all others as that.
#[test]
fn users_without_a_mapping_are_not_taken_for_each_other() {
    if !is_root() {
        return eprintln!("skipped: only root can start processes of other users");
    }
    for (here, there) in [(true, true), (true, false), (false, true)] {
        let command = |role, addr, uid, apart| {
            let mut c = command(role, addr);
            c.uid(uid).stdout(Stdio::piped()).stdin(Stdio::piped());
            if apart {
                unmapped(&mut c);
            }
            c
        };
        // The one that is not mapped takes nobody of uid 65534 for its own, either.
        let mut owner = match command("owner", open().addr(), NOBODY - u32::from(here), here).spawn() {
            Ok(child) => child,
            Err(e) => return eprintln!("skipped: no user namespaces, or not this program: {e}"),
        };
        let mut other =
            command("foreign", told(&mut owner), NOBODY - 2 * u32::from(there), there).spawn().unwrap();
        let addr = told(&mut other);
        writeln!(owner.stdin.as_mut().unwrap(), "{addr}").unwrap();
        finish(owner);
        drop(other.stdin.take());
        finish(other);
    }
}

#[test]
fn processes_of_one_user_without_a_mapping_talk() {
    if !is_root() {
        return eprintln!("skipped: only root can start processes of other users");
    }
    for uid in [NOBODY, NOBODY - 1] {
        let mut c = command("kin", open().addr());
        match unmapped(c.uid(uid)).spawn() {
            Ok(child) => finish(child),
            Err(e) => eprintln!("skipped: no user namespaces, or not this program: {e}"),
        }
    }
}

#[test]
fn a_process_that_hides_its_memory_is_served_with_frames() {
    if !is_root() {
        return eprintln!("skipped: only root can start processes of another user");
    }
    let mut child = command("refused", open().addr());
    match child.uid(NOBODY).spawn() {
        Ok(child) => finish(child),
        Err(e) => eprintln!("skipped: another user may not start this program: {e}"),
    }
}

#[test]
fn a_forked_child_does_no_harm() {
    let (mut a, mut b) = (open(), open());
    let to = a.peer(&b.addr());
    say(&mut a, to, b"1");
    let (from, _) = frame(&mut b);
    let (there, here) = (Span::leak(8), Span::leak(8));
    let remote = [Seg { addr: there.addr().into(), len: 8.into() }];
    let reads = link::cma_allowed().is_ok();
    for _ in 0..3 {
        // SAFETY: the child only drops, which frees memory and makes system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // As an application does that closes all it has inherited.
            assert_eq!((a.close(), a.unpublish(7)), (Ok(()), Ok(())));
            drop(a);
            drop(b);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0);
        say(&mut a, to, b"2");
        assert_eq!(frame(&mut b).1, b"2");
        // What its owner allows is still allowed.
        let get = b.get(from, Grant::Request(1 << 32), &remote, 0, &[here], 0, 8);
        assert!(!reads || get == Ok(()), "{get:?}");
    }
    // A child that lives on does not keep the end from the peers, neither from those that were not met yet.
    let mut c = open();
    let to = c.peer(&a.addr());
    say(&mut c, to, b"3");
    // SAFETY: the child only sleeps.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe {
            libc::sleep(60);
            libc::_exit(0);
        }
    }
    drop(a);
    assert_eq!(closed(&mut b).1, Gone::Reset);
    assert_eq!(closed(&mut c).1, Gone::Reset);
    // SAFETY: our own child.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}
