//! A second door, as small as one can be, and what it is good for: it finds nothing missing below it.

mod door;

use std::process::Command;
use std::{env, thread};

use door::{Error, Op, Port};
use runtime::Progress;
use testkit::pattern;

/// InUse a frame, in several frames, and directly from memory to memory.
const SIZES: [usize; 5] = [0, 8, 4_000, 70_000, 3_000_000];
/// Milliseconds after which a test fails.
const LIMIT: i32 = 60_000;
/// The address that the child process connects to.
const PARENT: &str = "STRAIT_SECOND_DOOR";

fn polling(port: &Port, op: Op) -> Vec<u8> {
    loop {
        if let Some(buffer) = port.test(&op).unwrap() {
            return buffer;
        }
        thread::yield_now();
    }
}

fn sleeping(port: &Port, op: Op) -> Vec<u8> {
    port.wait(&op, LIMIT).unwrap()
}

/// How a side waits.
type Until = fn(&Port, Op) -> Vec<u8>;

/// Receives messages of all sizes, and sends each back.
fn echo(port: &Port, to: door::Peer, until: Until) {
    for len in SIZES {
        let got = until(port, port.recv(len).unwrap());
        until(port, port.send(to, got).unwrap());
    }
}

/// The other side.
fn ask(port: &Port, to: door::Peer, until: Until) {
    for (seed, len) in SIZES.into_iter().enumerate() {
        let (sent, answer) = (pattern(len, seed), port.recv(len).unwrap());
        let back = until(port, port.send(to, sent.clone()).unwrap());
        assert!(back == sent, "{len} bytes: the sender's buffer has changed");
        assert!(until(port, answer) == sent, "{len} bytes came back as others");
    }
}

#[test]
fn messages_between_two_ports_polling_and_sleeping() {
    for (progress, here, there) in [
        (Progress::Manual, polling as Until, polling as Until),
        (Progress::Manual, polling, sleeping),
        (Progress::Manual, sleeping, sleeping),
        (Progress::Auto, sleeping, sleeping),
    ] {
        let (a, b) = (Port::open(progress).unwrap(), Port::open(progress).unwrap());
        let (to_b, to_a) = (a.connect(b.addr).unwrap(), b.connect(a.addr).unwrap());
        thread::scope(|s| {
            s.spawn(|| echo(&b, to_a, there));
            ask(&a, to_b, here);
        });
    }
}

#[test]
fn messages_between_two_processes() {
    let port = Port::open(Progress::Manual).unwrap();
    let name = port.recv(64).unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env(PARENT, port.addr.to_string())
        .spawn()
        .unwrap();
    let name = String::from_utf8(sleeping(&port, name)).unwrap();
    let to = port.connect(wire::Addr::new(name.parse().unwrap())).unwrap();
    ask(&port, to, sleeping);
    assert!(child.wait().unwrap().success());
}

/// The second process of the test above.
#[test]
fn child() {
    let Ok(parent) = env::var(PARENT) else { return };
    let port = Port::open(Progress::Manual).unwrap();
    let to = port.connect(wire::Addr::new(parent.parse().unwrap())).unwrap();
    sleeping(&port, port.send(to, port.addr.to_string().into_bytes()).unwrap());
    echo(&port, to, sleeping);
}

#[test]
fn failures_are_the_callers_to_see() {
    let port = Port::open(Progress::Manual).unwrap();
    let never = port.recv(8).unwrap();
    assert!(matches!(port.wait(&never, 5), Err(Error::Timeout)));
    assert!(matches!(port.test(&never), Ok(None)));
    let other = Port::open(Progress::Manual).unwrap();
    let to = other.connect(port.addr).unwrap();
    let long = other.send(to, vec![1; 9]).unwrap();
    assert_eq!(sleeping(&other, long), vec![1; 9]);
    assert!(matches!(port.wait(&never, LIMIT), Err(Error::Engine(engine::Error::Truncated))));
}
