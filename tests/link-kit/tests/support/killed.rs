//! Processes that are killed in the middle of a read of the provider below.
//!
//! Each test starts itself once more, as the process that is killed. Memory that was given back is made
//! inaccessible, or freed, so that a provider that still touches it ends the test.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use engine::{Access, Completion, Reg};
use hmem::Span;
use link_api::Link as _;
use link_kit::process::{Process, meet};
use ofi::Fabric;
use testkit::{from_any, msg, read, there, write};

use super::counted::Counts;
use super::duo::{Node, link_over};
use super::fabric;
use super::memory::{LEN, forbid, pages};

/// Of what is registered for RMA.
const KEY: u64 = 5;
/// Says what the process is to do.
const ROLE: &str = "STRAIT_TEST_KILLED";
const WAIT: Duration = Duration::from_secs(120);

fn byte(span: Span, at: usize) -> u8 {
    let mut found = [0];
    assert_eq!(hmem::read(&[span], at, &mut found), 1);
    found[0]
}

/// Whether a part of the bytes has come.
pub fn is_in_the_middle(span: Span) -> bool {
    byte(span, LEN / 8) != 0 && byte(span, LEN - 1) == 0
}

fn post(node: &mut Node<Fabric>, mut post: impl FnMut(&mut Node<Fabric>) -> Result<(), engine::Error>) {
    let start = Instant::now();
    while let Err(why) = post(node) {
        assert_eq!(why, engine::Error::Again);
        assert!(start.elapsed() < WAIT, "no room");
        node.domain.progress();
    }
}

/// The next completion, with a look after each time that progress was made.
fn next(node: &mut Node<Fabric>, mut look: impl FnMut()) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(found) = node.next() {
            return found;
        }
        look();
        assert!(start.elapsed() < WAIT, "it never completes");
    }
}

fn receive(node: &mut Node<Fabric>, into: Span) {
    node.domain.recv(node.rx, &from_any(&[into], 2)).expect("a receive");
}

fn send(node: &mut Node<Fabric>, from: Span) {
    let to = node.peer;
    post(node, |node| node.domain.send(node.ep, &msg(to, &[from], 1)));
}

/// Another process, with which a short message was exchanged each way.
struct Other {
    process: Process,
    here: Node<Fabric>,
    counts: Arc<Counts>,
}

impl Other {
    fn start(role: &str) -> Other {
        let counts = Arc::new(Counts::default());
        let link = link_over(fabric(), &counts);
        let (process, name) = Process::start("killed::another_process", (ROLE, role), link.addr());
        let mut here = Node::new(link, name);
        here.domain.set_lasting();
        let mut other = Other { process, here, counts };
        greet(&mut other.here);
        other
    }
}

fn greet(node: &mut Node<Fabric>) {
    receive(node, Span::leak(8));
    send(node, Span::leak(8));
    for _ in 0..2 {
        assert_eq!(next(node, || {}).err, None);
    }
}

/// Whatever a killed process left behind, another one is exchanged messages with, and memory that was given
/// back is let be.
fn goes_on(mut old: Node<Fabric>, given_back: Span) {
    forbid(given_back);
    let mut other = Other::start("receive");
    let long = pages(1);
    send(&mut other.here, long);
    assert_eq!(next(&mut other.here, || assert!(old.next().is_none())).err, None);
}

fn share(node: &mut Node<Fabric>, memory: Span) -> engine::MrId {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    node.domain.mr_reg(&Reg { iov: &[memory], access, key: Some(KEY) }).expect("a key that is free").0
}

/// What is started by the others.
#[test]
#[ignore = "it is the other process of the tests here"]
fn another_process() {
    let role = std::env::var(ROLE).expect("a role");
    // SAFETY: plain call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let link = link_over(fabric(), &Arc::default());
    let name = meet(link.addr());
    let mut node = Node::new(link, name);
    node.domain.set_lasting();
    greet(&mut node);
    let memory = pages(u8::from(role == "send" || role == "write"));
    let die = || {
        if is_in_the_middle(memory) && role.ends_with("and die") {
            // SAFETY: plain call.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    };
    let to = node.peer;
    match role.as_str() {
        "send" => send(&mut node, memory),
        "write" => post(&mut node, |n| n.domain.rma(n.ep, &write(to, &[memory], &[there(0, LEN, KEY)], 1))),
        "read and die" => {
            post(&mut node, |n| n.domain.rma(n.ep, &read(to, &[memory], &[there(0, LEN, KEY)], 1)));
        }
        _ => receive(&mut node, memory),
    }
    next(&mut node, die);
    loop {
        assert!(node.next().is_none());
    }
}

#[test]
fn a_receiver_that_is_killed_in_the_middle_of_its_read() {
    let mut other = Other::start("receive and die");
    let memory = pages(1);
    send(&mut other.here, memory);
    let sent = next(&mut other.here, || {});
    assert!(sent.err.is_some(), "{sent:?}");
    let status = other.process.0.wait().expect("a process");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGKILL),
        "not in the middle"
    );
    assert_eq!(other.counts.lent.load(Relaxed), 0);
    goes_on(other.here, memory);
}

#[test]
fn a_sender_that_is_killed_in_the_middle_of_a_read_of_its_memory() {
    for _ in 0..20 {
        let mut other = Other::start("send");
        let memory = pages(0);
        receive(&mut other.here, memory);
        let child = &mut other.process.0;
        let mut killed = false;
        let got = next(&mut other.here, || {
            if !killed && is_in_the_middle(memory) {
                child.kill().and_then(|()| child.wait()).expect("a process");
                killed = true;
            }
        });
        assert_eq!(other.counts.reads.load(Relaxed), 1);
        // All of it may have come before the signal did.
        if got.err.is_none() {
            continue;
        }
        assert!(killed, "{got:?}");
        return goes_on(other.here, memory);
    }
    panic!("no process was killed in time");
}

#[test]
fn an_initiator_that_is_killed_in_the_middle_of_its_read() {
    let memory = pages(1);
    let mut other = Other::start("read and die");
    let mr = share(&mut other.here, memory);
    let (start, mut is_read) = (Instant::now(), false);
    // By the initiator, or written there by this side.
    while !is_read || other.counts.lent.load(Relaxed) > 0 || other.here.domain.ep_under_way(other.here.ep) > 0
    {
        assert!(other.here.next().is_none());
        is_read |= other.counts.lent.load(Relaxed) > 0 || other.counts.writes.load(Relaxed) > 0;
        assert!(start.elapsed() < WAIT, "its end is never reported");
    }
    let status = other.process.0.wait().expect("a process");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGKILL),
        "not in the middle"
    );
    other.here.domain.mr_close(mr).expect("a registration that nothing accesses");
    goes_on(other.here, memory);
}

#[test]
fn an_initiator_that_is_killed_in_the_middle_of_its_write() {
    for _ in 0..20 {
        let memory = pages(0);
        let mut other = Other::start("write");
        let mr = share(&mut other.here, memory);
        let start = Instant::now();
        while !is_in_the_middle(memory) && byte(memory, LEN - 1) == 0 {
            assert!(other.here.next().is_none());
            assert!(start.elapsed() < WAIT, "nothing is written");
        }
        other.process.0.kill().and_then(|()| other.process.0.wait()).expect("a process");
        assert_eq!(other.counts.reads.load(Relaxed), 1);
        while other.here.domain.ep_under_way(other.here.ep) > 0 {
            assert!(other.here.next().is_none());
        }
        other.here.domain.mr_close(mr).expect("a registration that nothing accesses");
        // All of it may have come before the signal did.
        if byte(memory, LEN - 1) == 0 {
            return goes_on(other.here, memory);
        }
    }
    panic!("no process was killed in time");
}
