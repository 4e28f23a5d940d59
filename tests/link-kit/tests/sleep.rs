//! What the selector of links does around a sleep, where one of its links has something or does nothing any
//! more.
#![cfg(not(loom))]

#[path = "support/fake.rs"]
mod fake;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::RawFd;
use std::time::Duration;

use below::{Below as _, BelowLink, BelowOptions, Dest, Message};
use fake::{Fake, FakeNet};
use ipc::Poller;
use link::{Links, OpenOptions, ShmLink, TcpOptions};
use link_api::{Event, FrameLink, Link, PeerId, SleepLink, WaitFd};
use wire::session::JobKey;

/// More polls than are ever between two looks at a further link.
const MANY: usize = 20_000;

fn key() -> JobKey {
    JobKey::from_secret(b"of the checks")
}

fn open() -> Links {
    let bind = Some("127.0.0.1:0".parse().expect("an address"));
    Links::open(OpenOptions { bind, port: link::Port::Listens, ..OpenOptions::default() })
        .expect("a free port")
}

fn take(link: &mut Links) -> bool {
    match link.poll() {
        Some(Event::Frame(frame)) => {
            link.release(frame);
            true
        }
        _ => false,
    }
}

fn arm(link: &mut Links) {
    for _ in 0..MANY {
        if link.arm() {
            return;
        }
        take(link);
    }
    panic!("it never sleeps");
}

struct Fd(RawFd);

impl std::os::fd::AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

fn wakes(link: &Links) -> bool {
    let poller = Poller::new().expect("a descriptor");
    poller.add(&Fd(link.wait_fd(WaitFd::All).expect("it can sleep")), 0).expect("it can be watched");
    !poller.ready::<1>().is_empty()
}

/// A selector that looks at tcp as rarely as it does at all, since a peer on this host sends so much; and
/// that peer.
fn busy_near() -> (Links, ShmLink, PeerId) {
    let mut link = open();
    link.add_tcp(TcpOptions::new(key())).expect("descriptors");
    let mut near = ShmLink::open(OpenOptions::default()).expect("a free port");
    let to = near.peer(&link.addr());
    let mut taken = 0;
    while taken < MANY {
        let _ = near.send(to, b"frame", &[], 0, 0);
        near.poll();
        taken += usize::from(take(&mut link));
    }
    (link, near, to)
}

/// Counted by polls alone, the time between two looks would be that of thousands of whatever is done between
/// two polls.
#[test]
fn polls_that_are_rare_and_find_near_frames_do_not_keep_a_caller_waiting() {
    let (mut link, mut near, to) = busy_near();
    let mut caller = TcpStream::connect(link.addr().to_string()).expect("it listens");
    caller.write_all(&[7; 256]).and_then(|()| caller.set_nonblocking(true)).expect("a connection");
    let is_answered = |caller: &mut TcpStream| match caller.read(&mut [0; 8]) {
        Err(e) => e.kind() != ErrorKind::WouldBlock,
        Ok(_) => true,
    };
    let mut polls = 0;
    while !is_answered(&mut caller) {
        polls += 1;
        assert!(polls < 600, "it was not looked at");
        let _ = near.send(to, b"frame", &[], 0, 0);
        std::thread::sleep(Duration::from_millis(1));
        take(&mut link);
    }
}

/// However rarely it was looked at before: a sleeper that wakes for it would else not sleep again for as many
/// polls.
#[test]
fn the_poll_after_a_sleep_is_a_look_at_each_link() {
    let (mut link, _near, _) = busy_near();
    arm(&mut link);
    let _caller = TcpStream::connect(link.addr().to_string()).expect("it listens");
    while !wakes(&link) {
        std::thread::yield_now();
    }
    let mut polls = 0;
    while wakes(&link) {
        polls += 1;
        assert!(polls < 100, "the caller was not taken in");
        take(&mut link);
        arm(&mut link);
    }
}

/// A selector over a fabric for which something comes that it does not take; changed by `change` first.
fn over_fabric(change: impl FnOnce(&mut Fake)) -> Links {
    let net = FakeNet::default();
    let (mut fake, mut other) = (net.open(), net.open());
    change(&mut fake);
    let to = Dest(u64::from_ne_bytes(fake.about().address.try_into().expect("eight bytes")));
    let message =
        Message { who: 0, is_frame: false, front: b"a stranger's", middle: &[], body: &[], off: 0, len: 0 };
    other.send(to, &message).expect("room");
    let mut link = open();
    let over = |tcp| {
        let over = BelowLink::new(tcp, Ok(fake), BelowOptions::new(key()))?;
        Ok(Box::new(over) as link::BoxedLink)
    };
    link.add_over_tcp(TcpOptions::new(key()), over).expect("descriptors");
    assert!(wakes(&link), "its descriptor is readable");
    link
}

#[test]
fn a_dead_fabric_keeps_no_sleeper_awake() {
    let mut link = over_fabric(|fake| fake.dead = true);
    for _ in 0..MANY {
        take(&mut link);
    }
    arm(&mut link);
    assert!(!wakes(&link), "the fabric is dead, and wakes it for good");
}

#[test]
fn a_fabric_whose_descriptor_stays_readable_is_not_slept_on_for_long() {
    let mut link = over_fabric(|fake| fake.noisy = true);
    let mut sleeps = 0;
    while wakes(&link) {
        sleeps += 1;
        assert!(sleeps < 1000, "it never sleeps");
        take(&mut link);
        arm(&mut link);
    }
    assert!(sleeps > 1, "it is to turn out first");
}
