//! A process without descriptors says so to those that call it. By itself, since it takes all that its
//! process may have.
#![cfg(not(loom))]

#[path = "support/caller.rs"]
mod caller;
#[path = "support/pair.rs"]
mod pair;

use std::fs::File;
use std::net::TcpStream;

use caller::call;
use link_api::Link;
use pair::{open, options, say, take};
use wire::Addr;
use wire::session::{Next, Verdict};

#[test]
fn a_caller_is_told_that_there_is_no_descriptor_for_it() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let called = b.addr();
    let mut streams = [0; 2].map(|_| TcpStream::connect(called.sock()).expect("a listener"));
    // SAFETY: a valid limit.
    let lower =
        |n| unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: n, rlim_max: 1 << 10 }) };
    assert_eq!(lower(256), 0);
    let mut all = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        all.push(file);
    }
    for (port, stream) in (1..).zip(&mut streams) {
        let told = call(stream, &mut b, Addr::new(([127, 0, 0, 1], port).into()), called, "key");
        assert!(matches!(told, Ok(Next::Declined(_, Verdict::Full))), "{told:?}");
    }
    // With some again, callers are let in.
    all.truncate(all.len() - 20);
    let to_b = a.peer(&called);
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
}
