//! What the link over TCP says and believes where a connection is made: names, and bytes that come again.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use crate::caller::call;
use crate::pair::{event, open, options, say, take, until};
use link::TcpLink;
use link_api::{Connect, Event, FrameLink, Gone, Link, Parting, Refused, SleepLink};
use wire::Addr;
use wire::session::{Next, Verdict};

/// Carries bytes both ways between a caller and `to`.
fn repeater(to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let mut there = TcpStream::connect(to).unwrap();
        for stream in [&caller, &there] {
            stream.set_nonblocking(true).unwrap();
        }
        let mut some = [0; 4096];
        loop {
            match caller.read(&mut some) {
                Ok(0) => return,
                Ok(n) => there.write_all(&some[..n]).unwrap(),
                Err(_) => {}
            }
            match there.read(&mut some) {
                Ok(0) => return,
                Ok(n) => caller.write_all(&some[..n]).unwrap(),
                Err(_) => {}
            }
            thread::sleep(Duration::from_micros(50));
        }
    });
    at
}

#[test]
fn a_call_that_is_led_to_another_endpoint_of_the_job_is_refused() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&Addr::new(repeater(b.addr().sock())));
    let mut found = Ok(());
    until("an answer", || {
        assert!(b.poll().is_none() && a.poll().is_none(), "nothing was to come");
        found = a.connect(to_b, Connect::Now);
        assert_ne!(found, Ok(()), "it is connected");
        found != Err(Refused::Busy)
    });
    assert_eq!(found, Err(Refused::Gone(Gone::Denied)));
    // By its name it is reached.
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
}

#[test]
fn an_endpoint_of_all_addresses_answers_by_each_of_them() {
    let mut a = open(options("key"));
    let mut b = TcpLink::bind("0.0.0.0:0".parse().unwrap(), options("key")).expect("a free name");
    let to_b = a.peer(&Addr::new(([127, 0, 0, 9], b.addr().port()).into()));
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
    let mut stream = TcpStream::connect(("127.0.0.1", b.addr().port())).unwrap();
    let other = Addr::new(([127, 0, 0, 1], 1).into());
    let called = Addr::new(([127, 0, 0, 9], b.addr().port()).into());
    let told = call(&mut stream, &mut b, other, called, "key");
    assert!(matches!(told, Ok(Next::Declined(_, Verdict::Other))), "{told:?}");
}

#[test]
fn bytes_that_come_again_end_the_connection() {
    let mut b = open(options("key"));
    let name = Addr::new(([127, 0, 0, 1], 1).into());
    let mut stream = TcpStream::connect(b.addr().sock()).unwrap();
    let called = b.addr();
    let Ok(Next::Connected(_, mut keys)) = call(&mut stream, &mut b, name, called, "key") else {
        panic!("not connected")
    };
    let mut record = Vec::new();
    for text in [&b"first"[..], b"pay 10"] {
        record = keys.sealer.seal(text.len() as u32, text).to_vec();
        record.extend(text);
        stream.write_all(&record).unwrap();
        let mut other = open(options("key"));
        assert_eq!(take(&mut b, &mut other).1, text);
    }
    stream.write_all(&record).unwrap();
    let mut other = open(options("key"));
    match event(&mut b, &mut other) {
        Event::Closed(peer, Gone::Denied) => assert_eq!(b.peer_addr(peer), name),
        other => panic!("{other:?}"),
    }
}

/// An armed link says so until there is something that no descriptor shows.
#[test]
fn link_is_armed_until_work_comes_that_no_descriptor_shows() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let (own, to_b) = (a.peer(&a.addr()), a.peer(&b.addr()));
    say(&mut a, to_b, &mut [&mut b], b"hello");
    take(&mut b, &mut a);
    until("rest", || a.arm());
    assert!(a.is_armed());
    a.progress();
    assert!(a.is_armed(), "nothing has come");
    a.send(own, b"to itself", &[], 0, 0).unwrap();
    assert!(!a.is_armed(), "a frame is there");
    assert_eq!(take(&mut a, &mut b).1, b"to itself");
    assert!(a.arm() && a.is_armed());
    a.dismiss(to_b, Parting::CutOff);
    assert!(!a.is_armed(), "an end is to be told of");
}

/// Short messages leave at once, and the end of a host is found out, on either side of a connection: also on
/// that of the side that was called, whose socket has these options from the one that listens.
#[test]
fn both_sides_of_a_connection_have_its_options() {
    let mut with = options("key");
    with.timeout = Duration::from_secs(12);
    let (mut a, mut b) = (open(with.clone()), open(with));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    let (to_a, _) = take(&mut b, &mut a);
    for (link, peer) in [(&a, to_b), (&b, to_a)] {
        let socket = link.socket(peer).expect("a connection");
        let option = |level, name| {
            let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
            let at = (&raw mut value).cast();
            // SAFETY: `value` is a valid place of `len` bytes.
            assert_eq!(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, at, &mut len) }, 0);
            value
        };
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
        assert_eq!(option(libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 6);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), 2);
        assert_eq!(option(libc::IPPROTO_TCP, libc::TCP_KEEPCNT), 3);
    }
}
