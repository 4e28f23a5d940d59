//! What the link over TCP does with strangers, with calls that cross, and with long frames.
#![cfg(not(loom))]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Event, Gone, Link, PeerId, Refused};
use link_kit::{bytes, text};
use wire::session::{Caller, Hello, JobKey, MAC, Next, Role};

const PATIENCE: Duration = Duration::from_secs(20);

fn options(key: &str) -> TcpOptions {
    let mut options = TcpOptions::new(JobKey::from_secret(key.as_bytes()));
    options.connect_timeout = Duration::from_millis(60);
    options
}

fn open(options: TcpOptions) -> TcpLink {
    TcpLink::bind("127.0.0.1:0".parse().unwrap(), options).expect("a free name")
}

/// Waits until that is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::sleep(Duration::from_micros(50));
    }
}

/// Sends as soon as that can be, while all go on; nothing else may happen meanwhile.
fn say(from: &mut TcpLink, to: PeerId, others: &mut [&mut TcpLink], frame: &[u8]) {
    until("room for a frame", || match from.send(to, frame, &[], 0, 0) {
        Ok(()) => true,
        Err(why) => {
            assert_eq!(why, Refused::Busy);
            from.progress();
            others.iter_mut().for_each(|link| link.progress());
            false
        }
    });
}

/// What a send comes to that is never taken.
fn refused(from: &mut TcpLink, to: PeerId, other: &mut TcpLink) -> Gone {
    let mut found = None;
    until("an answer", || match from.send(to, b"hello", &[], 0, 0) {
        Ok(()) => panic!("a frame was taken"),
        Err(Refused::Busy) => {
            assert!(from.poll().is_none() && other.poll().is_none(), "nothing was to come");
            false
        }
        Err(Refused::Gone(why)) => {
            found = Some(why);
            true
        }
        Err(why) => panic!("{why:?}"),
    });
    found.unwrap()
}

/// The next event of a link, while another one goes on.
fn event(of: &mut TcpLink, other: &mut TcpLink) -> Event {
    let mut found = None;
    until("an event", || {
        other.progress();
        found = of.poll();
        found.is_some()
    });
    found.unwrap()
}

fn take(of: &mut TcpLink, other: &mut TcpLink) -> (PeerId, Vec<u8>) {
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

#[test]
fn a_peer_with_another_key_is_refused_on_both_sides() {
    let (mut a, mut b) = (open(options("one")), open(options("another")));
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    assert_eq!(refused(&mut a, to_b, &mut b), Gone::Denied);
    assert_eq!(refused(&mut b, to_a, &mut a), Gone::Denied);
    assert!(!a.is_connected(to_b) && !b.is_connected(to_a));
    // Another one, with the same key, is not.
    let mut c = open(options("one"));
    let c_to_a = c.peer(&a.addr());
    say(&mut c, c_to_a, &mut [&mut a, &mut b], b"hello");
    assert_eq!(take(&mut a, &mut c).1, b"hello");
}

#[test]
fn calls_that_cross_make_one_connection_and_lose_nothing() {
    for round in 0..100 {
        let (mut a, mut b) = (open(options("key")), open(options("key")));
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        let (mut sent, mut got) = ([0usize; 2], [0usize; 2]);
        // Both call before either hears of that; then in either order.
        let _ = (a.connect(to_b), b.connect(to_a));
        until("all frames of both", || {
            let first = round % 2;
            for which in [first, 1 - first] {
                let (link, peer) = if which == 0 { (&mut a, to_b) } else { (&mut b, to_a) };
                while sent[which] < 5 {
                    match link.send(peer, &bytes(300, sent[which]), &[], 0, 0) {
                        Ok(()) => sent[which] += 1,
                        Err(why) => {
                            assert_eq!(why, Refused::Busy, "in round {round}");
                            break;
                        }
                    }
                }
                match link.poll() {
                    None => {}
                    Some(Event::Frame(frame)) => {
                        let mut out = vec![0; frame.len];
                        link.read(&frame, 0, &mut out);
                        assert_eq!((frame.from, out), (peer, bytes(300, got[which])), "in round {round}");
                        got[which] += 1;
                        link.release(frame);
                    }
                    Some(other) => panic!("{other:?} in round {round}"),
                }
            }
            got == [5, 5]
        });
        for _ in 0..50 {
            assert!(a.poll().is_none() && b.poll().is_none(), "nothing was to come, in round {round}");
        }
    }
}

#[test]
fn strangers_that_say_nothing_keep_nobody_out_and_are_sent_away() {
    let mut few = options("key");
    (few.guests, few.guest_timeout) = (4, Duration::from_millis(300));
    let mut a = open(few);
    let mut silent: Vec<TcpStream> =
        (0..12).map(|_| TcpStream::connect(a.addr().sock()).expect("a listener")).collect();
    let mut b = open(options("key"));
    let to_a = b.peer(&a.addr());
    say(&mut b, to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut b).1, b"hello");
    until("the end of all of them", || {
        a.progress();
        silent.retain_mut(|stream| {
            stream.set_nonblocking(true).unwrap();
            !matches!(stream.read(&mut [0]), Ok(0))
        });
        silent.is_empty()
    });
    assert!(b.poll().is_none() && a.poll().is_none());
}

#[test]
fn garbage_is_closed_at_once_and_a_newer_version_is_told_ours() {
    let mut a = open(options("key"));
    let addr = a.addr();
    let hello = Hello { role: Role::Caller, instance: 1, epoch: 0, name: addr, other: addr, nonce: [7; 32] };
    let mut newer = hello.encode();
    newer[10] ^= 0x40;
    for (said, told) in [(&b"GET / HTTP/1.0\r\n\r\n"[..], 0), (&newer[..], Hello::LEN)] {
        let mut stream = TcpStream::connect(addr.sock()).expect("a listener");
        stream.write_all(said).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut heard = Vec::new();
        until("its end", || {
            a.progress();
            let mut some = [0; 200];
            match stream.read(&mut some) {
                Ok(0) => true,
                Ok(n) => {
                    heard.extend(&some[..n]);
                    false
                }
                // What was not read of it makes for another end.
                Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
            }
        });
        assert_eq!(heard.len(), told);
        if let Some(ours) = heard.first_chunk() {
            assert_eq!(Hello::decode(ours).map(|hello| hello.role), Ok(Role::Answerer));
        }
    }
    assert!(a.poll().is_none());
}

#[test]
fn a_caller_without_the_key_gets_no_further_than_its_proof() {
    let mut a = open(options("key"));
    let addr = a.addr();
    let own = Hello { role: Role::Caller, instance: 1, epoch: 0, name: addr, other: addr, nonce: [7; 32] };
    let mut caller = Caller::new(&JobKey::from_secret(b"guess"), own);
    let mut stream = TcpStream::connect(addr.sock()).expect("a listener");
    stream.write_all(&caller.hello()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut heard = Vec::new();
    let mut read = |a: &mut TcpLink, stream: &mut TcpStream, most: usize| {
        let mut over = false;
        until("an answer or the end", || {
            a.progress();
            let mut some = [0; 500];
            match stream.read(&mut some) {
                Ok(0) => over = true,
                Ok(n) => heard.extend(&some[..n]),
                Err(e) => over = e.kind() == std::io::ErrorKind::ConnectionReset,
            }
            over || heard.len() >= most
        });
        (heard.clone(), over)
    };
    let (answer, over) = read(&mut a, &mut stream, Hello::LEN + MAC);
    assert!(!over && !matches!(caller.hear(&answer), Ok(Next::Say(_))), "the answer is no proof to it");
    stream.write_all(&[0x55; MAC]).unwrap();
    let (all, over) = read(&mut a, &mut stream, usize::MAX);
    assert!(over && all.len() == answer.len(), "it is told nothing more");
    assert!(a.poll().is_none());
}

#[test]
fn what_a_peer_has_sent_before_its_end_comes_also_where_a_send_notices_the_end() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    let (to_a, _) = take(&mut b, &mut a);
    // It closes with something that it has not received, so that its host refuses all that comes after.
    a.send(to_b, b"never taken", &[], 0, 0).expect("room");
    for i in 0..3 {
        b.send(to_a, &bytes(300, i), &[], 0, 0).expect("room");
    }
    drop(b);
    let mut c = open(options("key"));
    until("the end", || a.send(to_b, b"more", &[], 0, 0).is_err());
    for i in 0..3 {
        assert_eq!(take(&mut a, &mut c), (to_b, bytes(300, i)));
    }
    assert!(matches!(event(&mut a, &mut c), Event::Closed(peer, Gone::Reset) if peer == to_b));
}

#[test]
fn what_was_sent_arrives_though_its_sender_closes_with_something_unread() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    let (to_a, _) = take(&mut b, &mut a);
    let (mut sent, mut got) = (0, 0);
    while b.send(to_a, &bytes(60_000, sent), &[], 0, 0) == Ok(()) {
        sent += 1;
    }
    // Until all of it is with the kernel, of which much is with that of the sender.
    until("room", || {
        if b.has_room_to_spare(to_a) {
            return true;
        }
        assert_eq!(take(&mut a, &mut b), (to_b, bytes(60_000, got)));
        got += 1;
        false
    });
    a.send(to_b, b"never taken", &[], 0, 0).expect("room");
    drop(b);
    let mut c = open(options("key"));
    while got < sent {
        assert_eq!(take(&mut a, &mut c), (to_b, bytes(60_000, got)), "frame {got} of {sent}");
        got += 1;
    }
}

/// Lets time pass in which a link goes on.
fn pass(time: Duration, link: Option<&mut TcpLink>) {
    let start = Instant::now();
    match link {
        None => thread::sleep(time),
        Some(link) => until("some time", || {
            link.progress();
            start.elapsed() > time
        }),
    }
}

/// Longer than what a guest is given, which is longer than a process that goes on does not look.
const LONG: Duration = Duration::from_millis(2_500);

fn hasty() -> TcpOptions {
    let mut hasty = options("key");
    hasty.guest_timeout = Duration::from_millis(1_200);
    hasty
}

#[test]
fn a_caller_that_had_something_else_to_do_is_let_in_later() {
    let (mut a, mut b) = (open(hasty()), open(options("key")));
    let to_a = b.peer(&a.addr());
    assert_eq!(b.connect(to_a), Err(Refused::Busy));
    pass(LONG, Some(&mut a));
    say(&mut b, to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut b).1, b"hello");
}

#[test]
fn a_caller_is_let_in_by_one_that_had_something_else_to_do() {
    let (mut a, mut b) = (open(hasty()), open(options("key")));
    let to_a = b.peer(&a.addr());
    assert_eq!(b.connect(to_a), Err(Refused::Busy));
    a.progress();
    // What the caller says comes after the first tick of the timer.
    pass(Duration::from_millis(100), None);
    pass(LONG, Some(&mut b));
    say(&mut b, to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut b).1, b"hello");
}

#[test]
fn a_forked_child_that_closes_an_endpoint_ends_nothing_of_its_parent() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    take(&mut b, &mut a);
    // SAFETY: the child does no more than the block below, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(a);
        // SAFETY: ends the process without anything else.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: no status is asked for.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    say(&mut a, to_b, &mut [&mut b], b"more");
    assert_eq!(take(&mut b, &mut a).1, b"more");
    let mut c = open(options("key"));
    let c_to_a = c.peer(&a.addr());
    say(&mut c, c_to_a, &mut [&mut a], b"hello");
    assert_eq!(take(&mut a, &mut c).1, b"hello");
}

#[test]
fn the_end_of_a_peer_that_was_forgotten_is_no_others() {
    let mut a = open(options("key"));
    let nobody: Vec<_> = (0..2).map(|_| open(options("key")).addr()).collect();
    let [one, other] = [a.peer(&nobody[0]), a.peer(&nobody[1])];
    a.expect(one);
    a.expect(other);
    let mut found = None;
    until("the end of either", || {
        // So that both are over at the same look.
        thread::sleep(Duration::from_millis(400));
        found = a.poll();
        found.is_some()
    });
    let Some(Event::Closed(first, Gone::Refused)) = found else { panic!("{found:?}") };
    let rest = if first == one { other } else { one };
    a.forget(rest);
    assert!((0..50).all(|_| a.poll().is_none()));
}

/// Carries bytes between a caller and `to`, and once it is told, what the caller sent last a second time.
fn repeater(to: SocketAddr) -> (SocketAddr, impl FnOnce()) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let mut there = TcpStream::connect(to).unwrap();
        for stream in [&caller, &there] {
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        let (mut last, mut some) = (Vec::new(), [0; 4096]);
        loop {
            match caller.read(&mut some) {
                Ok(0) => return,
                Ok(n) => {
                    last = some[..n].to_vec();
                    there.write_all(&last).unwrap();
                }
                Err(_) => {}
            }
            match there.read(&mut some) {
                Ok(0) => return,
                Ok(n) => caller.write_all(&some[..n]).unwrap(),
                Err(_) => {}
            }
            if told.try_recv().is_ok() {
                there.write_all(&last).unwrap();
            }
            thread::sleep(Duration::from_micros(50));
        }
    });
    (at, move || tell.send(()).unwrap())
}

#[test]
fn bytes_that_come_again_end_the_connection() {
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let (at, repeat) = repeater(b.addr().sock());
    // Under another name than its own, as through another address of its host.
    let to_b = a.peer(&wire::Addr::new(at));
    say(&mut a, to_b, &mut [&mut b], b"first");
    let (to_a, frame) = take(&mut b, &mut a);
    assert_eq!((b.peer_addr(to_a), &frame[..]), (a.addr(), &b"first"[..]));
    say(&mut a, to_b, &mut [&mut b], b"pay 10");
    assert_eq!(take(&mut b, &mut a).1, b"pay 10");
    repeat();
    match event(&mut b, &mut a) {
        Event::Closed(peer, Gone::Denied) => assert_eq!(peer, to_a),
        other => panic!("{other:?}"),
    }
}

/// Frames of any length, in memory of any shape, while the receiver looks at different times: bytes that were received
/// and bytes that are still with the kernel make up one frame.
#[test]
fn long_frames_of_any_length_land_where_they_should() {
    const FRAMES: usize = 400;
    let (mut a, mut b) = (open(options("key")), open(options("key")));
    let to_b = a.peer(&b.addr());
    let most = a.path(to_b).max_frame;
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
    let len = |i: usize| 1 + (i * 7_919 * (1 + i % 13)) % (most - 20);
    let shapes = [vec![most], vec![1, 0, 4_000, most], vec![70_000, 3, most], vec![500; 300]];
    let (source, mut sent, mut got) = (Span::leak(most), 0, 0);
    let into: Vec<Vec<Span>> = shapes.iter().map(|s| s.iter().map(|n| Span::leak(*n)).collect()).collect();
    let mut seed = 7u64;
    until("all frames", || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for _ in 0..seed >> 61 {
            if sent < FRAMES {
                hmem::write(&[source], 0, &bytes(len(sent), sent));
                match a.send(to_b, &bytes(20, sent), &[source], 0, len(sent)) {
                    Ok(()) => sent += 1,
                    Err(why) => assert_eq!(why, Refused::Busy),
                }
            }
        }
        assert!(a.poll().is_none());
        for _ in 0..seed >> 59 & 7 {
            match b.poll() {
                None => {}
                Some(Event::Frame(frame)) => {
                    assert_eq!(frame.len, 20 + len(got), "frame {got}");
                    let (mut head, iov) = ([0; 20], &into[got % into.len()]);
                    let doff = got % 7;
                    let n = len(got).min(hmem::total(iov) - doff);
                    if got % 3 == 0 {
                        // From the middle, and in two parts.
                        let half = n / 2;
                        assert_eq!(b.copy_out(&frame, 20 + half, iov, doff + half, n - half), n - half);
                        assert_eq!(b.copy_out(&frame, 20, iov, doff, half), half);
                    } else {
                        assert_eq!(b.copy_out(&frame, 20, iov, doff, len(got)), n);
                    }
                    assert_eq!(b.read(&frame, 0, &mut head), 20);
                    assert_eq!(head[..], bytes(20, got));
                    assert!(text(iov)[doff..doff + n] == bytes(len(got), got)[..n], "frame {got}");
                    b.release(frame);
                    got += 1;
                }
                Some(other) => panic!("{other:?}"),
            }
        }
        got == FRAMES
    });
}
