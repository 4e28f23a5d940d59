//! What the link over TCP does with strangers, with calls that cross, and with long frames.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use crate::pair::{open, open_alone, options, say, take, until};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Channel, Connect, Event, FrameLink, Gone, Link, PeerId, Refused, Sent, SleepLink, WaitFd};
use link_kit::{bytes, is_readable, text};
use wire::Addr;
use wire::session::{Caller, Hello, JobKey, MAC, Next, Role};

/// What a send comes to that is never taken.
fn refused(from: &mut TcpLink, to: PeerId, other: &mut TcpLink) -> Gone {
    let mut found = None;
    until("an answer", || match from.send(to, b"hello", &[], 0, 0) {
        Ok(_) => panic!("a frame was taken"),
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

#[test]
fn a_peer_with_another_key_is_refused_on_both_sides() {
    let (mut a, mut b) = (open(options("one")), open(options("another")));
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    assert_eq!(refused(&mut a, to_b, &mut b), Gone::Denied);
    assert_eq!(refused(&mut b, to_a, &mut a), Gone::Denied);
    assert_eq!([a.channel(to_b), b.channel(to_a)], [Channel::None; 2]);
    // Another one, with the same key, is not.
    let mut c = open(options("one"));
    let c_to_a = c.peer(&a.addr());
    say(&mut c, c_to_a, &mut [&mut a, &mut b], b"hello");
    assert_eq!(take(&mut a, &mut c).1, b"hello");
}

/// A peer that accepts nothing is unreachable after a while, also where its queue is full.
/// A socket on which no process accepts, as that of an ended process that another one has inherited.
#[test]
fn peer_that_accepts_nothing_times_out() {
    for full in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("a name");
        // SAFETY: the descriptor of a socket that listens.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let mut filling = Vec::new();
        while full && filling.len() < 100 {
            match TcpStream::connect_timeout(&addr, Duration::from_millis(50)) {
                Ok(stream) => filling.push(stream),
                Err(_) => break,
            }
        }
        assert!(filling.len() < 100, "a queue without end");
        let timeout = Duration::from_millis(300);
        let (mut a, mut b) = (open(TcpOptions { timeout, ..options("key") }), open(options("key")));
        let to = a.peer(&Addr::new(addr));
        let start = Instant::now();
        assert_eq!(refused(&mut a, to, &mut b), Gone::TimedOut, "full: {full}");
        assert!(start.elapsed() >= timeout);
    }
}

#[test]
fn calls_that_cross_make_one_connection_and_lose_nothing() {
    for round in 0..100 {
        let (mut a, mut b) = (open(options("key")), open(options("key")));
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        let (mut sent, mut got) = ([0usize; 2], [0usize; 2]);
        // Both call before either hears of that; then in either order.
        let _ = (a.connect(to_b, Connect::Now), b.connect(to_a, Connect::Now));
        until("all frames of both", || {
            let first = round % 2;
            for which in [first, 1 - first] {
                let (link, peer) = if which == 0 { (&mut a, to_b) } else { (&mut b, to_a) };
                while sent[which] < 5 {
                    match link.send(peer, &bytes(300, sent[which]), &[], 0, 0) {
                        Ok(Sent::Done) => sent[which] += 1,
                        other => {
                            assert_eq!(other, Err(Refused::Busy), "in round {round}");
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
    let hello = Hello { role: Role::Caller, instance: 1, name: addr, other: addr, nonce: [7; 32] };
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
    let own = Hello { role: Role::Caller, instance: 1, name: addr, other: addr, nonce: [7; 32] };
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

/// Frames of any length, in memory of any shape, while the receiver looks at different times: bytes that were
/// received and bytes that are still with the kernel make up one frame.
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
                    Ok(Sent::Done) => sent += 1,
                    other => assert_eq!(other, Err(Refused::Busy)),
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

/// Most looks are at the connection that was used last. A sleeper is woken for another one too.
#[test]
fn who_was_not_heard_last_does_not_wake_a_sleeper_in_vain() {
    let (mut a, mut b, mut c) = (open(options("key")), open(options("key")), open(options("key")));
    let (b_to_a, c_to_a) = (b.peer(&a.addr()), c.peer(&a.addr()));
    for polls in [0, 10, 100, 1000] {
        say(&mut b, b_to_a, &mut [&mut a, &mut c], b"b");
        assert_eq!(take(&mut a, &mut b).1, b"b");
        say(&mut c, c_to_a, &mut [&mut a, &mut b], b"c");
        assert_eq!(take(&mut a, &mut c).1, b"c");
        (0..polls).for_each(|_| assert!(a.poll().is_none(), "nothing was sent"));
        until("a sleep", || a.poll().is_none() && a.arm());
        say(&mut b, b_to_a, &mut [&mut c], b"b");
        let mut wakes = 0;
        until("a frame", || {
            assert!(is_readable(a.wait_fd(WaitFd::All).unwrap(), crate::pair::PATIENCE), "not woken");
            wakes += 1;
            let frame = a.poll();
            let came = matches!(frame, Some(Event::Frame(_)));
            match frame {
                Some(Event::Frame(frame)) => a.release(frame),
                None => _ = a.arm(),
                Some(other) => panic!("{other:?}"),
            }
            came
        });
        // A timer may.
        assert!(wakes <= 2, "woken {wakes} times after {polls} polls");
    }
}

/// A receive that names the peer is posted again each time, and asks for a connection.
#[test]
fn a_refusal_that_waits_for_a_send_does_not_keep_its_program_awake() {
    let (mut a, absent) = (
        open(TcpOptions { connect_timeout: Duration::from_secs(1), ..options("key") }),
        open_alone(1, options("key")).addr(),
    );
    let to = a.peer(&absent);
    assert_eq!(a.send(to, b"hello", &[], 0, 0), Err(Refused::Busy));
    until("the end of the first call", || {
        a.poll();
        a.connect(to, Connect::Now) != Err(Refused::Busy)
    });
    let mut asleep = 0;
    for _ in 0..20 {
        assert_eq!(a.connect(to, Connect::Now), Err(Refused::Busy));
        asleep += usize::from(a.arm());
        a.poll();
    }
    assert!(asleep > 15, "{asleep} of 20");
}

/// The same with a successor that listens, and has not answered yet when the send is tried again.
#[test]
fn a_send_to_a_peer_that_has_come_is_not_told_that_there_was_none() {
    let (mut a, gone) = (open(options("key")), open_alone(2, options("key")));
    let name = gone.addr();
    drop(gone);
    let to = a.peer(&name);
    assert_eq!(a.send(to, b"hello", &[], 0, 0), Err(Refused::Busy));
    until("the end of the first call", || {
        a.poll();
        a.connect(to, Connect::Now) != Err(Refused::Busy)
    });
    let mut b = TcpLink::bind(name.sock(), options("key")).expect("its name");
    assert_eq!(a.connect(to, Connect::Now), Err(Refused::Busy));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        a.poll();
    }
    assert_eq!(a.send(to, b"hello", &[], 0, 0), Err(Refused::Busy));
    say(&mut a, to, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
}

/// One that was there before, and ends; what came of a call before its successor came is no answer to a later
/// send. Where there is none the second call has one.
#[test]
fn a_peer_that_did_not_listen_some_time_ago_is_called_again_once() {
    for succeeded in [true, false] {
        for by_receive in [false, true] {
            let (mut a, mut b) = (open(options("key")), open_alone(3, options("key")));
            let (name, to) = (b.addr(), a.peer(&b.addr()));
            say(&mut a, to, &mut [&mut b], b"hello");
            assert_eq!(take(&mut b, &mut a).1, b"hello");
            drop(b);
            until("its end", || matches!(a.poll(), Some(Event::Closed(..))));
            let ask = |a: &mut TcpLink| match by_receive {
                true => a.connect(to, Connect::Now),
                false => a.send(to, b"hello", &[], 0, 0).map(|_| ()),
            };
            // Later where calls take longer.
            let refused = (0..60).find(|_| {
                let found = ask(&mut a);
                let start = Instant::now();
                while start.elapsed() < Duration::from_millis(150) {
                    a.poll();
                }
                found == Err(Refused::Gone(Gone::Refused))
            });
            assert!(refused.is_some_and(|asked| asked >= 2), "by a receive: {by_receive}: {refused:?}");
            assert_eq!(ask(&mut a), Err(Refused::Busy));
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(150) {
                a.poll();
            }
            if succeeded {
                let mut b = TcpLink::bind(name.sock(), options("key")).expect("its name");
                assert_eq!(a.send(to, b"hello", &[], 0, 0), Err(Refused::Busy));
                say(&mut a, to, &mut [&mut b], b"hello");
                assert_eq!(take(&mut b, &mut a).1, b"hello");
            } else {
                // As one does that tries again at once.
                until("an answer", || {
                    a.poll();
                    ask(&mut a) == Err(Refused::Gone(Gone::Refused))
                });
            }
        }
    }
}

/// What takes connections and ends each at once.
#[test]
fn a_send_beside_receives_learns_that_what_listens_answers_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let name = Addr::new(listener.local_addr().expect("a name"));
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let mut a = open(TcpOptions { timeout: Duration::from_millis(300), ..options("key") });
    let to = a.peer(&name);
    let mut found = Refused::Busy;
    until("an answer to a send", || {
        // As a receive does that is posted again each time.
        let _ = a.connect(to, Connect::Now);
        a.poll();
        let _ = a.connect(to, Connect::Now);
        found = a.send(to, b"hello", &[], 0, 0).expect_err("a frame was taken");
        found != Refused::Busy
    });
    assert_eq!(found, Refused::Gone(Gone::Refused));
}
