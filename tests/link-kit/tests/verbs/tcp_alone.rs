//! An endpoint that has tcp alone, and one that has a device, and tcp besides: which of them sends first.

use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use below::{BelowLink, BelowOptions};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Link as _, RmaLink};
use log::{Log, Metadata, Record};
use testkit::{from_any, msg, pattern};
use verbs::Verbs;
use wire::session::JobKey;

use crate::device::{open, set};
use crate::node::Node;

const WAIT: Duration = Duration::from_secs(60);
const LEN: usize = 1000;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LINES.lock().expect("no panic").push(record.args().to_string());
    }

    fn flush(&self) {}
}

fn tcp(key: &JobKey) -> TcpLink {
    let to = "127.0.0.1:0".parse().expect("an address");
    TcpLink::bind(to, TcpOptions::new(key.clone())).expect("a free name")
}

/// The one with tcp alone, and the one with a device, which waits for an answer for longer than a test may take.
fn both() -> (Node<TcpLink>, Node<BelowLink<TcpLink, Verbs>>) {
    set("sv0", &[]);
    let _ = log::set_logger(&Lines);
    log::set_max_level(log::LevelFilter::Warn);
    let key = JobKey::from_secret(b"of one with tcp alone");
    let options = BelowOptions { fallback: true, patience: 60 * WAIT, ..BelowOptions::new(key.clone()) };
    let (plain, device) = (tcp(&key), BelowLink::new(tcp(&key), Ok(open()), options).expect("descriptors"));
    let names = (plain.addr(), device.addr());
    (Node::new(plain, names.1), Node::new(device, names.0))
}

/// A message of the first, which the second one takes.
fn talk<A: RmaLink, B: RmaLink>(one: &mut Node<A>, other: &mut Node<B>) {
    let (from, to, start) = (Span::leak(LEN), Span::leak(LEN), Instant::now());
    hmem::write(&[from], 0, &pattern(LEN, 7));
    other.domain.recv(other.rx, &from_any(&[to], 2)).expect("room for a receive");
    let (mut is_posted, mut sent, mut got) = (false, None, None);
    while sent.is_none() || got.is_none() {
        is_posted = is_posted || one.domain.send(one.ep, &msg(one.peer, &[from], 1)).is_ok();
        sent = one.next().or(sent);
        got = other.next().or(got);
        assert!(start.elapsed() < WAIT, "sent: {sent:?}, taken: {got:?}");
        sleep(Duration::from_micros(10));
    }
    assert_eq!((sent.and_then(|c| c.err), got.and_then(|c| c.err)), (None, None));
    assert!(link_kit::text(&[to]) == pattern(LEN, 7), "other bytes");
}

fn no_line() {
    assert_eq!(*LINES.lock().expect("no panic"), Vec::<String>::new());
}

#[test]
fn what_has_a_device_sends_first() {
    let (mut plain, mut device) = both();
    for _ in 0..3 {
        talk(&mut device, &mut plain);
        talk(&mut plain, &mut device);
    }
    no_line();
}

#[test]
fn what_has_tcp_alone_sends_first() {
    let (mut plain, mut device) = both();
    for _ in 0..3 {
        talk(&mut plain, &mut device);
        talk(&mut device, &mut plain);
    }
    no_line();
}
