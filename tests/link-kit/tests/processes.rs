//! Two processes, which have a link over shared memory each. The second one is this very program, started
//! anew.
#![cfg(not(loom))]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hmem::Span;
use link::{OpenOptions, ShmLink};
use link_api::{Direct, Event, FrameLink, Grant, Link, NoDirect, PeerId, Refused, Revoke, RmaLink as _, Way};
use link_kit::conformance::threads::{exchange, ping_pong};
use link_kit::{bytes, name, text};
use wire::{Addr, Seg};

const PATIENCE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 3_000;
const LEN: usize = 5_000;
const REQUEST: u64 = 1 << 32 | 3;

fn open() -> ShmLink {
    let bind = Some("127.0.0.1:0".parse().expect("an address"));
    ShmLink::open(OpenOptions { bind, ..OpenOptions::default() }).expect("a free port")
}

fn start(role: &str, addr: Addr) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env("LINK_KIT_ROLE", role).env("LINK_KIT_ADDR", addr.to_string()).stdout(Stdio::null());
    command.spawn().expect("this program can be started")
}

fn say(link: &mut ShmLink, to: PeerId, bytes: &[u8]) {
    let start = Instant::now();
    while let Err(why) = link.send(to, bytes, &[], 0, 0) {
        assert!(why == Refused::Busy && start.elapsed() < PATIENCE, "{why:?}");
        std::thread::yield_now();
    }
}

fn event(link: &mut ShmLink) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = link.poll() {
            return event;
        }
        assert!(start.elapsed() < PATIENCE, "nothing happens");
        std::thread::yield_now();
    }
}

fn take(link: &mut ShmLink) -> (PeerId, Vec<u8>) {
    let Event::Frame(frame) = event(link) else { panic!("no frame") };
    let (from, mut bytes) = (frame.from, vec![0; frame.len]);
    assert_eq!(link.read(&frame, 0, &mut bytes), frame.len);
    link.release(frame);
    (from, bytes)
}

/// What a child does; nothing where this is just one test among others.
#[test]
fn child() {
    let (Ok(role), Ok(addr)) = (std::env::var("LINK_KIT_ROLE"), std::env::var("LINK_KIT_ADDR")) else {
        return;
    };
    let mut link = open();
    let peer = link.peer(&Addr::new(addr.parse().expect("an address")));
    let memory = Span::leak(LEN);
    hmem::write(&[memory], 0, &bytes(LEN, 1));
    say(&mut link, peer, &memory.addr().to_le_bytes());
    assert_eq!(take(&mut link).1, b"hello");
    match &role[..] {
        "ping-pong" => ping_pong(&mut link, peer, false, PATIENCE, ROUNDS),
        "exchange" => exchange(&mut link, peer, false, PATIENCE),
        "memory" => {
            assert_eq!(take(&mut link).1, b"written");
            assert!(text(&[memory]) == bytes(LEN, 2), "what the other process has written");
            assert_eq!(link.revoke(Revoke::Request(peer, REQUEST)), Ok(()));
            say(&mut link, peer, b"taken back");
            assert_eq!(take(&mut link).1, b"tried");
            assert!(text(&[memory]) == bytes(LEN, 2), "memory that was taken back is written");
            assert_eq!(link.revoke(Revoke::All), Ok(()));
            say(&mut link, peer, b"closed");
            assert_eq!(take(&mut link).1, b"tried");
            assert!(text(&[memory]) == bytes(LEN, 2), "memory of a link that closed is written");
        }
        other => panic!("no such role: {other}"),
    }
    // Until the other process has heard all.
    assert!(matches!(event(&mut link), Event::Closed(..)));
}

/// A child of that role, and its memory.
fn with_child(role: &str) -> (ShmLink, PeerId, Seg, Child) {
    let mut link = open();
    let child = start(role, link.addr());
    let (peer, at) = take(&mut link);
    say(&mut link, peer, b"hello");
    let addr = u64::from_le_bytes(at.try_into().expect("an address"));
    (link, peer, Seg { addr: addr.into(), len: (LEN as u64).into() }, child)
}

fn finish(link: ShmLink, mut child: Child) {
    drop(link);
    assert!(child.wait().expect("a child").success(), "the other process has failed, as it said");
}

#[test]
fn no_wake_up_between_processes_is_lost() {
    let (mut link, peer, _, child) = with_child("ping-pong");
    ping_pong(&mut link, peer, true, PATIENCE, ROUNDS);
    finish(link, child);
}

#[test]
fn two_processes_exchange_all_they_send() {
    let (mut link, peer, _, child) = with_child("exchange");
    exchange(&mut link, peer, true, PATIENCE);
    finish(link, child);
}

#[test]
fn memory_of_another_process_is_accessed_until_it_is_taken_back() {
    if let Err(why) = link::cma_allowed() {
        println!("not here: {why}");
        return;
    }
    let (mut link, peer, there, child) = with_child("memory");
    let (here, grant) = ([Span::leak(LEN)], Grant::Request(REQUEST));
    assert_eq!(link.access(Way::Get, peer, &Direct::new(grant, &[there], &here, LEN)), Ok(()));
    assert!(text(&here) == bytes(LEN, 1));
    hmem::write(&here, 0, &bytes(LEN, 2));
    assert_eq!(link.access(Way::Put, peer, &Direct::new(grant, &[there], &here, LEN)), Ok(()));
    say(&mut link, peer, b"written");
    assert_eq!(take(&mut link).1, b"taken back");
    let other = [Span::leak(LEN)];
    hmem::write(&other, 0, &bytes(LEN, 3));
    assert_eq!(
        link.access(Way::Put, peer, &Direct::new(grant, &[there], &other, LEN)),
        Err(NoDirect::Revoked)
    );
    assert_eq!(
        link.access(Way::Get, peer, &Direct::new(grant, &[there], &other, LEN)),
        Err(NoDirect::Revoked)
    );
    assert_eq!(
        link.access(Way::Get, peer, &Direct::new(Grant::Request(name(4, 1)), &[there], &here, LEN)),
        Ok(()),
        "another request"
    );
    say(&mut link, peer, b"tried");
    assert_eq!(take(&mut link).1, b"closed");
    for grant in [Grant::Request(name(4, 1)), Grant::Agreed] {
        assert!(
            link.access(Way::Put, peer, &Direct::new(grant, &[there], &other, LEN)).is_err(),
            "{grant:?} after it closed"
        );
    }
    say(&mut link, peer, b"tried");
    finish(link, child);
}
