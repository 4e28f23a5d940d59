//! Peers that name a further address, behind which is nothing, or another program.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use crate::pair::{PATIENCE, open, options};
use link::TcpLink;
use link_api::{FrameLink, Link, Refused, Sent};

/// Sends to a peer that begins to listen after a moment, at its first address alone; how often the peer was
/// said to be gone.
fn sends_to_one_that_comes_later(further: Ipv4Addr, until_first: Duration) -> usize {
    let options_of = || {
        let mut options = options("key");
        options.connect_timeout = Duration::from_secs(20);
        options
    };
    let mut caller = TcpLink::bind("127.0.0.1:0".parse().unwrap(), options_of()).unwrap();
    // An address that no other test has: its port is free for a moment.
    let name = TcpLink::bind("127.0.0.11:0".parse().unwrap(), options_of()).unwrap().addr();
    let to = caller.peer(&name.with_further(further));
    let (begin, mut gone, mut later) = (Instant::now(), 0, None);
    loop {
        match caller.send(to, &[1; 64], &[], 0, 0) {
            Ok(_) => return gone,
            Err(Refused::Gone(_)) => gone += 1,
            Err(_) => {}
        }
        if begin.elapsed() > until_first && later.is_none() {
            later = TcpLink::bind(name.sock(), options_of()).ok();
        }
        if let Some(later) = &mut later {
            later.poll();
        }
        caller.poll();
        assert!(begin.elapsed() < PATIENCE, "no connection; said to be gone {gone} times");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A peer that is not there yet is waited for where its further address is silent.
#[test]
fn absent_peer_is_waited_for_if_its_further_address_is_silent() {
    // TEST-NET-1 of RFC 5737 leads nowhere.
    assert_eq!(sends_to_one_that_comes_later([192, 0, 2, 77].into(), Duration::from_millis(400)), 0);
}

/// A peer that is not there yet is waited for where another program has its further address.
#[test]
fn absent_peer_is_waited_for_if_its_further_address_is_foreign() {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 9), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let chatter = move || {
        for mut guest in listener.incoming().flatten() {
            let _ = guest.write_all(&[b'x'; 4096]);
        }
    };
    std::thread::spawn(chatter);
    let mut caller = TcpLink::bind("127.0.0.1:0".parse().unwrap(), options("key")).unwrap();
    // The peer's port is that of the other program, which has it at another address.
    let first = (Ipv4Addr::new(127, 0, 0, 10), port).into();
    let to = caller.peer(&wire::Addr::new(first).with_further([127, 0, 0, 9].into()));
    let (begin, mut later) = (Instant::now(), None);
    while caller.send(to, &[1; 64], &[], 0, 0) != Ok(Sent::Done) {
        if begin.elapsed() > Duration::from_millis(300) && later.is_none() {
            later = TcpLink::bind(first, options("key")).ok();
        }
        if let Some(later) = &mut later {
            later.poll();
        }
        caller.poll();
        assert!(begin.elapsed() < PATIENCE, "the other program was taken for the peer");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_peer_that_computes_while_it_is_called_is_waited_for() {
    let mut caller = TcpLink::bind("127.0.0.1:0".parse().unwrap(), options("key")).unwrap();
    let mut peer = open(options("key"));
    let to = caller.peer(&peer.addr().with_further([192, 0, 2, 77].into()));
    let begin = Instant::now();
    loop {
        match caller.send(to, &[1; 64], &[], 0, 0) {
            Ok(_) => return,
            Err(Refused::Gone(why)) => panic!("{why:?}"),
            Err(_) => {}
        }
        caller.poll();
        // Longer than one address is tried.
        if begin.elapsed() > Duration::from_millis(2500) {
            peer.poll();
        }
        assert!(begin.elapsed() < PATIENCE, "no connection");
        std::thread::sleep(Duration::from_millis(1));
    }
}
