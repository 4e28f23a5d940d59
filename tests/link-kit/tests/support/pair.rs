//! Two endpoints of the link over TCP, and what they say.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink, PeerId, Refused, Sent};
use wire::session::JobKey;

pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn options(key: &str) -> TcpOptions {
    let mut options = TcpOptions::new(JobKey::from_secret(key.as_bytes()));
    options.connect_timeout = Duration::from_millis(60);
    options
}

pub fn open(options: TcpOptions) -> TcpLink {
    TcpLink::bind("127.0.0.1:0".parse().unwrap(), options).expect("a free name")
}

/// One whose name is used again after its end: at an address at which no other test is given it meanwhile.
#[allow(dead_code)]
pub fn open_alone(last: u8, options: TcpOptions) -> TcpLink {
    TcpLink::bind((Ipv4Addr::new(127, 0, 1, last), 0).into(), options).expect("a free name")
}

/// Waits until that is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_micros(50));
    }
}

/// Sends as soon as that can be, while all go on; nothing else may happen meanwhile.
#[allow(dead_code)]
pub fn say(from: &mut TcpLink, to: PeerId, others: &mut [&mut TcpLink], frame: &[u8]) {
    until("room for a frame", || match from.send(to, frame, &[], 0, 0) {
        Ok(Sent::Done) => true,
        other => {
            assert_eq!(other, Err(Refused::Busy));
            from.progress();
            others.iter_mut().for_each(|link| link.progress());
            false
        }
    });
}

/// The next event of a link, while another one goes on.
#[allow(dead_code)]
pub fn event(of: &mut TcpLink, other: &mut TcpLink) -> Event {
    let mut found = None;
    until("an event", || {
        other.progress();
        found = of.poll();
        found.is_some()
    });
    found.unwrap()
}

#[allow(dead_code)]
pub fn take(of: &mut TcpLink, other: &mut TcpLink) -> (PeerId, Vec<u8>) {
    match event(of, other) {
        Event::Frame(frame) => {
            let (from, mut out) = (frame.from, vec![0; frame.len]);
            assert_eq!(of.read(&frame, 0, &mut out), frame.len);
            of.release(frame);
            (from, out)
        }
        other => panic!("no frame, but {other:?}"),
    }
}
