//! Memory of another process, and taking it back.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use hmem::Span;
use link::ShmLink;
use link_api::{Direct, Gone, Grant, Link, NoDirect, PeerId, Revoke, RmaLink as _, Way};
use wire::{Addr, Seg};

use crate::common::{closed, command, finish, frame, open, say, start};

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

/// Shows memory, and ends without closing anything.
pub fn memory(mut link: ShmLink, to: PeerId, _parent: Addr) {
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

/// Executes another program, while a child holds copies of its sockets.
pub fn before_exec(mut link: ShmLink, to: PeerId, parent: Addr) {
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

/// That program: nothing writes to its memory.
pub fn after_exec(_link: ShmLink, _to: PeerId, _parent: Addr) {
    let memory = fixed(5);
    println!("!ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    let mut now = vec![0; memory.len()];
    hmem::read(&[memory], 0, &mut now);
    assert!(now.iter().all(|&b| b == 5), "written by a peer of the program before");
}

/// Copies from and to the parent's memory, over and over, until that is revoked.
pub fn inside(mut link: ShmLink, to: PeerId, _parent: Addr) {
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
        match link.access(Way::Put, from, &Direct::new(grant, &remote, &local, 8 << 20)) {
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
    assert_eq!(link.access(Way::Get, from, &Direct::new(grant, &remote, &local, 8)), Err(NoDirect::Revoked));
    // Another request is none of that.
    let other = Grant::Request(u64::from_le_bytes(name) + (1 << 32));
    link.access(Way::Get, from, &Direct::new(other, &remote, &local, 8)).unwrap();
    say(&mut link, from, b"revoked");
    closed(&mut link);
}

/// Copies from and to the parent's memory until it is killed, while a child holds copies of its sockets.
pub fn killed_inside(mut link: ShmLink, to: PeerId, _parent: Addr) {
    // A child that holds copies of the sockets, so that none of them is seen to end.
    say(&mut link, to, b"here");
    let (from, addr) = frame(&mut link);
    // SAFETY: the child only sleeps.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls that touch no memory.
        unsafe {
            libc::sleep(120);
            libc::_exit(0);
        }
    }
    say(&mut link, from, &child.to_le_bytes());
    const LEN: usize = 64 << 20;
    let addr = u64::from_le_bytes(addr.try_into().unwrap());
    let remote = [Seg { addr: addr.into(), len: (LEN as u64).into() }];
    let local = [Span::leak(LEN)];
    loop {
        link.access(Way::Put, from, &Direct::new(Grant::Request(5 << 32 | 9), &remote, &local, LEN)).unwrap();
    }
}

#[test]
fn memory_of_another_process_is_read_and_written() {
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
    link.access(Way::Get, from, &Direct::new(Grant::Agreed, &remote, &local, 1 << 20)).unwrap();
    let mut bytes = vec![0; 1 << 20];
    hmem::read(&local, 0, &mut bytes);
    assert!(bytes.iter().all(|&b| b == 7));
    hmem::write(&local, 0, &vec![9; 1 << 20]);
    link.access(Way::Put, from, &Direct::new(Grant::Agreed, &remote, &local, 499_000).at(1000, 77)).unwrap();
    assert!(link.describe(from).ends_with(&format!("with pid {}", child.id())));
    // Addresses that are none there; a good start does not help.
    let bad = [remote[0], Seg { addr: 64.into(), len: 100.into() }];
    assert_eq!(
        link.access(Way::Get, from, &Direct::new(Grant::Agreed, &bad, &local, 100).at(599_990, 0)),
        Err(NoDirect::Memory)
    );
    assert_eq!(
        link.access(Way::Put, from, &Direct::new(Grant::Agreed, &bad[1..], &local, 100)),
        Err(NoDirect::Memory)
    );
    say(&mut link, from, b"look");
    finish(child);
    // The process is gone, though we have not taken note of it.
    assert_eq!(
        link.access(Way::Get, from, &Direct::new(Grant::Agreed, &remote, &local, 8)),
        Err(NoDirect::Fault)
    );
    assert_eq!(closed(&mut link), (from, Gone::Reset));
}

#[test]
fn memory_of_a_program_executed_meanwhile_is_not_accessed() {
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
        link.access(Way::Get, from, &Direct::new(Grant::Agreed, &remote, &local, 1 << 20)).unwrap();
        let mut bytes = vec![0; 1 << 20];
        hmem::read(&local, 0, &mut bytes);
        assert!(bytes.iter().all(|&b| b == 7));
        say(&mut link, from, b"go");
        // Written to until it is not there any more, in most rounds: then the new program is.
        let mut put = || link.access(Way::Put, from, &Direct::new(Grant::Agreed, &remote, &local, 8192));
        while round % 4 > 0 && put() != Err(NoDirect::Fault) {}
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        said.find(|line| line.ends_with("!ready")).expect("the program was executed");
        // Nothing shows it: the process lives, and so do its sockets.
        for len in [8, 4096, 32 << 10, 512 << 10, 1 << 20] {
            let put = link.access(Way::Put, from, &Direct::new(Grant::Agreed, &remote, &local, len));
            let get = link.access(Way::Get, from, &Direct::new(Grant::Agreed, &remote, &local, len));
            assert_eq!((put, get), (Err(NoDirect::Fault), Err(NoDirect::Fault)), "{len}");
        }
        drop(child.stdin.take());
        finish(child);
    }
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
    link.revoke(Revoke::Request(from, request)).unwrap();
    hmem::write(&[memory], 0, &vec![0xcc; 8 << 20]);
    assert_eq!(frame(&mut link).1, b"revoked");
    let mut now = vec![0; 8 << 20];
    hmem::read(&[memory], 0, &mut now);
    assert!(now.iter().all(|&b| b == 0xcc), "written after it was taken back");
    // A stopped peer: what it is inside of, if anything, is known in bounded time.
    let pid = child.id() as i32;
    // SAFETY: kill(2) touches no memory.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let begin = Instant::now();
    link.revoke(Revoke::All).unwrap();
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
        // Either would be refused had it been waited for.
        assert_eq!(link.revoke(Revoke::Request(from, 5 << 32 | 9)), Ok(()), "round {round}, inside {inside}");
        assert_eq!(link.revoke(Revoke::All), Ok(()), "round {round}, inside {inside}");
        // SAFETY: kill(2) touches no memory.
        unsafe { libc::kill(sleeper, libc::SIGKILL) };
    }
}
