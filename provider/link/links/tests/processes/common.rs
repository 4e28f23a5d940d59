//! What these tests have in common: links, and children with a role.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use link::{OpenOptions, ShmLink};
use link_api::{Event, FrameLink, Gone, PeerId, Refused, SleepLink, WaitFd};
use wire::Addr;

/// A user without a name of its own.
pub const OTHER_UID: u32 = 65534;

pub fn open() -> ShmLink {
    let bind = Some("127.0.0.1:0".parse().unwrap());
    ShmLink::open(OpenOptions { bind, ..OpenOptions::default() }).unwrap()
}

pub fn command(role: &str, addr: Addr) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    c.env("STRAIT_ROLE", role).env("STRAIT_ADDR", addr.to_string()).stdout(Stdio::null());
    c
}

pub fn start(role: &str, addr: Addr) -> Child {
    command(role, addr).spawn().unwrap()
}

pub fn finish(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

pub fn is_root() -> bool {
    // SAFETY: geteuid(2) cannot fail.
    unsafe { libc::geteuid() == 0 }
}

pub fn event(link: &mut ShmLink) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = link.poll() {
            return event;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
        if link.arm() {
            wait(link, 1000);
        }
    }
}

pub fn wait(link: &ShmLink, ms: i32) -> bool {
    let mut p = libc::pollfd { fd: link.wait_fd(WaitFd::All).unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, ms) == 1 }
}

pub fn frame(link: &mut ShmLink) -> (PeerId, Vec<u8>) {
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

pub fn closed(link: &mut ShmLink) -> (PeerId, Gone) {
    match event(link) {
        Event::Closed(peer, why) => (peer, why),
        other => panic!("not closed but {other:?}"),
    }
}

pub fn say(link: &mut ShmLink, to: PeerId, bytes: &[u8]) {
    let start = Instant::now();
    while let Err(e) = link.send(to, bytes, &[], 0, 0) {
        assert_eq!(e, Refused::Busy);
        assert!(start.elapsed() < Duration::from_secs(60), "no room");
        std::thread::yield_now();
    }
}

/// The address that a child prints.
pub fn printed_addr(child: &mut Child) -> Addr {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    let line =
        out.lines().map_while(Result::ok).find_map(|l| l.split_once('!').map(|(_, addr)| addr.to_owned()));
    Addr::new(line.expect("an address").parse().unwrap())
}
