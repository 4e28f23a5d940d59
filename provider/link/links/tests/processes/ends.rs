//! Peers that are killed, fork, or lose their first thread.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use hmem::Span;
use link::{OpenOptions, ShmLink};
use link_api::{
    Channel, Connect, Direct, Event, FrameLink, Gone, Grant, Link, PeerId, Refused, Revoke, RmaLink as _,
    SleepLink, Way,
};
use wire::{Addr, Seg};

use crate::common::{closed, command, event, finish, frame, open, say, start, wait};

/// Sends back what it receives.
pub fn echo(mut link: ShmLink, to: PeerId, _parent: Addr) {
    say(&mut link, to, b"here");
    while let Event::Frame(f) = event(&mut link) {
        let mut bytes = vec![0; f.len];
        link.read(&f, 0, &mut bytes);
        link.release(f);
        while link.send(to, &bytes, &[], 0, 0) == Err(Refused::Busy) {}
    }
}

/// Forks, and is killed: the child holds copies of all descriptors.
pub fn fork(mut link: ShmLink, to: PeerId, _parent: Addr) {
    // Both ways, so that neither socket ends with this process.
    say(&mut link, to, b"here");
    frame(&mut link);
    // SAFETY: the child only sleeps, with copies of all descriptors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls that touch no memory.
        unsafe {
            libc::sleep(120);
            libc::_exit(0);
        }
    }
    say(&mut link, to, &child.to_le_bytes());
    // SAFETY: raise(3) touches no memory.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// Forks before a peer has connected, and is killed.
pub fn fork_unmet(link: ShmLink, _to: PeerId, _parent: Addr) {
    // SAFETY: the child only sleeps, with copies of all descriptors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls that touch no memory.
        unsafe {
            libc::sleep(120);
            libc::_exit(0);
        }
    }
    println!("{child}!{}", link.addr());
    // SAFETY: raise(3) touches no memory.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// Sends frames, and is killed.
pub fn last_words(mut link: ShmLink, to: PeerId, _parent: Addr) {
    for i in 0..3 {
        say(&mut link, to, &[i]);
    }
    // SAFETY: raise(3) touches no memory.
    unsafe { libc::raise(libc::SIGKILL) };
}

/// Goes on after its first thread has ended.
pub fn without_its_first_thread(link: ShmLink, _to: PeerId, parent: Addr) {
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

#[test]
fn a_killed_peer_is_closed() {
    let mut link = open();
    for _ in 0..3 {
        let mut child = start("echo", link.addr());
        let (from, _) = frame(&mut link);
        say(&mut link, from, b"ping");
        assert_eq!(frame(&mut link), (from, b"ping".to_vec()));
        assert!(link.arm());
        child.kill().unwrap();
        assert!(wait(&link, 60_000), "not woken by its end");
        assert_eq!(closed(&mut link), (from, Gone::Reset));
        // Until all of it is gone, its listener may still take a connection that leads nowhere.
        child.wait().unwrap();
        assert_eq!(link.send(from, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Refused)));
    }
    // And by a process that only polls.
    let mut child = start("echo", link.addr());
    let (from, _) = frame(&mut link);
    child.kill().unwrap();
    let start = Instant::now();
    let end = loop {
        if let Some(event) = link.poll() {
            break event;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "never closed");
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
        assert!(start.elapsed() < Duration::from_secs(60), "its child had to end first");
        child.wait().unwrap();
        // What is left of its listener leads nowhere.
        assert_eq!(link.send(from, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Refused)));
        // SAFETY: a process that was started for this test, and still sleeps.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };
    }
}

/// Posts until that is refused for good.
fn refused(link: &mut ShmLink, to: PeerId, most: Duration) -> Refused {
    let start = Instant::now();
    loop {
        match link.send(to, b"x", &[], 0, 0) {
            Ok(_) => panic!("sent to a process that is gone"),
            Err(Refused::Busy) => assert!(start.elapsed() < most, "busy for ever"),
            Err(why) => return why,
        }
        assert!(link.poll().is_none());
        std::thread::yield_now();
    }
}

const TIMEOUT: Duration = Duration::from_millis(300);
/// Far longer than it takes to find out.
const MOST: Duration = Duration::from_secs(60);

/// A link that takes a peer for absent after a short time.
fn impatient() -> ShmLink {
    let bind = Some("127.0.0.1:0".parse().unwrap());
    ShmLink::open(OpenOptions { bind, connect_timeout: TIMEOUT, ..OpenOptions::default() }).unwrap()
}

/// The name of a peer that was killed before any other process had called it, and a process forked from it
/// that lives.
fn leave_a_child(link: &ShmLink) -> (String, i32) {
    let mut child = command("fork unmet", link.addr()).stdout(Stdio::piped()).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let said = out.lines().map_while(Result::ok).find(|line| line.contains('!')).expect("its names");
    let (grandchild, addr) = said.rsplit_once('!').unwrap();
    let grandchild = grandchild.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    child.wait().unwrap();
    (addr.to_owned(), grandchild)
}

/// Each connection to what is left of its listener stays in a queue that no process empties, until that is
/// full.
#[test]
fn a_killed_peer_whose_child_holds_a_full_queue_is_not_waited_for() {
    let mut link = impatient();
    let (addr, grandchild) = leave_a_child(&link);
    let to = link.peer(&Addr::new(addr.parse().unwrap()));
    // Never reached, and known to be gone.
    assert_eq!(refused(&mut link, to, MOST), Refused::Gone(Gone::Refused));
    let name = format!("strait/{addr}");
    while ipc::socket::connect(&name).is_ok() {}
    assert_eq!(refused(&mut link, to, MOST), Refused::Gone(Gone::Refused));
    // SAFETY: a process that was started for this test, and still sleeps.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
    // Once the name is free a successor may have it, and is found.
    let start = Instant::now();
    let mut heir = loop {
        match ShmLink::open(OpenOptions { bind: Some(addr.parse().unwrap()), ..OpenOptions::default() }) {
            Ok(heir) => break heir,
            Err(why) => assert!(start.elapsed() < Duration::from_secs(10), "{why}"),
        }
    };
    say(&mut link, to, b"you");
    assert_eq!(frame(&mut heir).1, b"you");
}

/// The same where the queue is full before the first call.
#[test]
fn a_killed_peer_whose_queue_is_full_at_the_first_call_is_not_waited_for() {
    let mut link = impatient();
    let (addr, grandchild) = leave_a_child(&link);
    let name = format!("strait/{addr}");
    while ipc::socket::connect(&name).is_ok() {}
    let to = link.peer(&Addr::new(addr.parse().unwrap()));
    let start = Instant::now();
    assert_eq!(refused(&mut link, to, MOST), Refused::Gone(Gone::Refused));
    assert!(start.elapsed() >= TIMEOUT, "it might have come");
    // And where a receive names it.
    let mut link = impatient();
    let to = link.peer(&Addr::new(addr.parse().unwrap()));
    assert_eq!(link.connect(to, Connect::Expected), Ok(()));
    assert_eq!(closed(&mut link), (to, Gone::Refused));
    // SAFETY: a process that was started for this test, and still sleeps.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
}

/// A process that does not look at its sockets is no dead one, however full their queue.
#[test]
fn a_peer_whose_queue_is_full_and_that_lives_is_waited_for() {
    let (mut link, mut other) = (impatient(), open());
    let name = format!("strait/{}", other.addr());
    while ipc::socket::connect(&name).is_ok() {}
    let to = link.peer(&other.addr());
    let start = Instant::now();
    while start.elapsed() < 4 * TIMEOUT {
        assert_eq!(link.send(to, b"x", &[], 0, 0), Err(Refused::Busy));
        assert!(link.poll().is_none());
        std::thread::yield_now();
    }
    let mut sent = false;
    let found = loop {
        sent = sent || link.send(to, b"x", &[], 0, 0).is_ok();
        assert!(link.poll().is_none());
        if let Some(found) = other.poll() {
            break found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it was not let in");
    };
    assert!(matches!(found, Event::Frame(_)));
}

/// One that was met, whose child holds its sockets: posts to it, each of which ends at once, fill the queue.
#[test]
fn posts_without_end_to_a_killed_peer_whose_child_lives_all_end() {
    let mut link = open();
    let mut child = start("fork", link.addr());
    let (from, _) = frame(&mut link);
    say(&mut link, from, b"go on");
    let (_, grandchild) = frame(&mut link);
    let grandchild = i32::from_le_bytes(grandchild.try_into().unwrap());
    assert_eq!(closed(&mut link), (from, Gone::Reset));
    child.wait().unwrap();
    for i in 0..10_000 {
        assert_eq!(link.send(from, b"x", &[], 0, 0), Err(Refused::Gone(Gone::Refused)), "post {i}");
    }
    // SAFETY: a process that was started for this test, and still sleeps.
    unsafe { libc::kill(grandchild, libc::SIGKILL) };
}

#[test]
fn frames_of_a_peer_killed_before_the_first_poll_are_delivered() {
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
fn many_frames_arrive_in_order_both_ways() {
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
        assert_ne!(link.channel(from), Channel::Ended);
    }
    drop(link);
    finish(child);
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
            assert_eq!((a.revoke(Revoke::All), a.revoke(Revoke::Region(7))), (Ok(()), Ok(())));
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
        let get = b.access(Way::Get, from, &Direct::new(Grant::Request(1 << 32), &remote, &[here], 8));
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
            libc::sleep(120);
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
