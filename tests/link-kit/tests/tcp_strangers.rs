//! Callers that do not show that they have the key, in any number, cost an endpoint of the link over TCP
//! nothing, and keep no caller waiting that has it.
#![cfg(not(loom))]

#[allow(dead_code)]
#[path = "support/caller.rs"]
mod caller;
#[path = "support/pair.rs"]
mod pair;

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use caller::{call, read};
use link::{TcpLink, TcpOptions};
use link_api::{Budget, Event, FrameLink, Gone, Link, Parting, Refused, Sent, Setting};
use pair::{open, options, say, take, until};
use wire::Addr;
use wire::session::{Caller, Hello, JobKey, Next, Role};

/// None is sent away for its silence while the test runs.
fn few(guests: usize) -> TcpOptions {
    TcpOptions { guests, guest_timeout: Duration::from_secs(1000), ..options("key") }
}

fn hello(to: &TcpLink, port: u16) -> Caller {
    let name = Addr::new(([127, 0, 0, 1], port).into());
    let own = Hello { role: Role::Caller, instance: 1, name, other: to.addr(), nonce: [port as u8; 32] };
    Caller::new(&JobKey::from_secret(b"key"), own)
}

/// Connections that say this, which the endpoint has taken in.
fn strangers(to: &mut TcpLink, n: usize, what: &[u8]) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..n {
        let mut stream = TcpStream::connect(to.addr().sock()).expect("a listener");
        stream.write_all(what).unwrap();
        all.push(stream);
        to.progress();
    }
    all
}

#[test]
fn a_caller_does_not_wait_for_the_place_of_one_that_says_too_little() {
    // Silent; the begin of a hello; all of one, and no proof.
    for said in [0, 5, Hello::LEN] {
        let mut a = open(few(4));
        let bytes = hello(&a, 1).hello();
        let _strangers = strangers(&mut a, 64, &bytes[..said]);
        let mut b = open(options("key"));
        let (to_a, start) = (b.peer(&a.addr()), Instant::now());
        say(&mut b, to_a, &mut [&mut a], b"hello");
        assert_eq!(take(&mut a, &mut b).1, b"hello");
        // A second for each place was sixteen.
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?} where {said} bytes were said",
            start.elapsed()
        );
    }
}

#[test]
fn a_handshake_that_goes_on_is_kept_while_silent_ones_come() {
    let mut a = open(few(4));
    let mut caller = hello(&a, 7);
    let mut stream = TcpStream::connect(a.addr().sock()).expect("a listener");
    stream.write_all(&caller.hello()).unwrap();
    let wants = caller.wants();
    let Ok(Next::Say(proof)) = caller.hear(&read(&mut stream, &mut a, wants)) else { panic!("no answer") };
    let bytes = caller.hello();
    let _silent = strangers(&mut a, 64, &bytes[..3]);
    stream.write_all(&proof).unwrap();
    let wants = caller.wants();
    assert!(matches!(caller.hear(&read(&mut stream, &mut a, wants)), Ok(Next::Connected(..))));
}

/// A caller whose place another one took has seen the end of its connection, in the middle of the handshake.
#[test]
fn a_caller_that_had_to_give_way_calls_again_by_itself() {
    // Also one that was met before, and one that is not waited for.
    for met in [false, true] {
        let mut a = open(few(1));
        let mut b = open(TcpOptions { connect_timeout: Duration::ZERO, ..options("key") });
        let to_a = b.peer(&a.addr());
        if met {
            say(&mut b, to_a, &mut [&mut a], b"hello");
            assert_eq!(take(&mut a, &mut b).1, b"hello");
            b.dismiss(to_a, Parting::CutOff);
            until("its end here", || b.poll().is_some());
            until("its end there", || a.poll().is_some());
        }
        let to_a = b.peer(&a.addr());
        assert_eq!(b.send(to_a, b"hello", &[], 0, 0), Err(Refused::Busy));
        until("its hello", || {
            b.progress();
            a.progress();
            a.guests() == 1
        });
        let bytes = hello(&a, 1).hello();
        let mut strangers = strangers(&mut a, 3, &bytes);
        until("the last one's answer", || {
            a.progress();
            let last = strangers.last_mut().unwrap();
            last.set_nonblocking(true).unwrap();
            matches!(last.read(&mut [0; 10]), Ok(10))
        });
        say(&mut b, to_a, &mut [&mut a], b"hello");
        assert_eq!(take(&mut a, &mut b).1, b"hello");
    }
}

/// What ends each call is given up after the time that a connection may take.
/// What takes connections and ends each at once is no peer, in the end.
#[test]
fn address_that_ends_each_call_is_given_up_after_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let name = Addr::new(listener.local_addr().expect("a name"));
    thread::spawn(move || listener.incoming().for_each(drop));
    let timeout = Duration::from_millis(700);
    let mut a = open(TcpOptions { timeout, ..options("key") });
    let (to, start) = (a.peer(&name), Instant::now());
    let mut found = Refused::Busy;
    until("an answer", || {
        a.poll();
        found = a.send(to, b"hello", &[], 0, 0).expect_err("a frame was taken");
        found != Refused::Busy
    });
    assert_eq!(found, Refused::Gone(Gone::Refused));
    assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
}

/// Twelve peers with the key of which each has sent a part of a frame, and no more.
fn parts_of_frames(a: &mut TcpLink, called: Addr, check: impl Fn()) -> Vec<TcpStream> {
    (1..=12)
        .map(|port| {
            let mut stream = TcpStream::connect(called.sock()).expect("a listener");
            stream.set_nodelay(true).unwrap();
            let name = Addr::new(([127, 0, 0, 1], port).into());
            assert!(matches!(call(&mut stream, a, name, called, "key"), Ok(Next::Connected(..))));
            stream.write_all(&[1; 5]).unwrap();
            for _ in 0..20 {
                a.progress();
                assert!(a.poll().is_none());
                check();
            }
            stream
        })
        .collect()
}

/// Parts of frames take up no more than they may, and go on when there is room.
#[test]
fn partial_frames_are_bounded_and_continue_when_there_is_room() {
    const MOST: usize = 1 << 20;
    let budget = Budget::new(MOST);
    let mut a = open(options("key"));
    a.set(Setting::Budget(&budget));
    let called = a.addr();
    let peers = parts_of_frames(&mut a, called, || {
        assert!(budget.used() <= MOST, "{}", budget.used());
    });
    assert!(budget.used() > MOST / 2, "{}: there is no part of any", budget.used());
    let mut b = open(options("key"));
    let to_a = b.peer(&called);
    say(&mut b, to_a, &mut [&mut a], b"hello");
    (0..20).for_each(|_| assert!(a.poll().is_none(), "there is no room for it"));
    drop(peers);
    let mut ended = 0;
    until("the frame", || match a.poll() {
        Some(Event::Closed(..)) => {
            ended += 1;
            false
        }
        Some(Event::Frame(frame)) => {
            assert_eq!(frame.len, 5);
            a.release(frame);
            true
        }
        None => false,
        Some(other) => panic!("{other:?}"),
    });
    until("all ends", || {
        ended += usize::from(matches!(a.poll(), Some(Event::Closed(..))));
        ended == 12
    });
    assert_eq!(budget.used(), 0);
}

/// Each holds the key, and sends a part of a frame and no more.
#[test]
fn a_part_of_a_frame_that_stays_one_gives_its_memory_to_peers_that_wait() {
    let budget = Budget::new(1 << 20);
    let mut a = open(TcpOptions { timeout: Duration::from_secs(1), ..options("key") });
    a.set(Setting::Budget(&budget));
    let called = a.addr();
    let _parts = parts_of_frames(&mut a, called, || {});
    let mut b = open(options("key"));
    let to_a = b.peer(&called);
    say(&mut b, to_a, &mut [&mut a], b"hello");
    let start = Instant::now();
    let mut ended = 0;
    until("the frame", || match a.poll() {
        Some(Event::Closed(_, why)) => {
            assert!(start.elapsed() >= Duration::from_millis(500), "ended at once");
            assert_eq!(why, Gone::Reset);
            ended += 1;
            false
        }
        Some(Event::Frame(frame)) => {
            a.release(frame);
            true
        }
        None => false,
        Some(other) => panic!("{other:?}"),
    });
    assert!(ended > 0, "there was room for it");
    // Where memory is left, a part may take as long as it likes.
    let mut roomy = open(TcpOptions { timeout: Duration::from_secs(1), ..options("key") });
    let called = roomy.addr();
    let mut stream = TcpStream::connect(called.sock()).expect("a listener");
    stream.set_nodelay(true).unwrap();
    let name = Addr::new(([127, 0, 0, 1], 1).into());
    assert!(matches!(call(&mut stream, &mut roomy, name, called, "key"), Ok(Next::Connected(..))));
    stream.write_all(&[1; 5]).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        assert!(roomy.poll().is_none());
    }
}

#[test]
fn a_process_without_descriptors_takes_those_of_silent_connections() {
    // In a process of its own, since it takes all that its process may have.
    const CHILD: &str = "STRAIT_TEST_STRANGERS";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "a_process_without_descriptors_takes_those_of_silent_connections"])
            .env(CHILD, "1");
        assert!(child.status().unwrap().success());
        return;
    }
    let (mut a, mut b) = (open(few(256)), open(options("key")));
    let bytes = hello(&a, 1).hello();
    let _silent = strangers(&mut a, 8, &bytes[..3]);
    until("all of them", || {
        a.progress();
        a.guests() == 8
    });
    let to_a = b.peer(&a.addr());
    // Its socket is made while there are some.
    assert_eq!(b.send(to_a, b"hello", &[], 0, 0), Err(Refused::Busy));
    let limit = libc::rlimit { rlim_cur: 256, rlim_max: 1 << 10 };
    // SAFETY: a valid limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let all: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let mut told_to_wait = 0;
    until("room for a frame", || match b.send(to_a, b"hello", &[], 0, 0) {
        Ok(Sent::Done) => true,
        other => {
            assert_eq!(other, Err(Refused::Busy));
            told_to_wait += 1;
            a.progress();
            b.progress();
            false
        }
    });
    assert_eq!(take(&mut a, &mut b).1, b"hello");
    assert!(a.guests() < 8 && !all.is_empty());
}

/// A connection to `to` from this address, which is begun and not waited for; reset when it is closed.
fn begin(to: SocketAddr, from: Ipv4Addr) -> Option<TcpStream> {
    let (domain, kind) = (libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let SocketAddr::V4(to) = to else { panic!("{to}") };
    let raw = |ip: Ipv4Addr, port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    };
    let (from, to) = (raw(from, 0), raw(*to.ip(), to.port()));
    let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: a new descriptor, and valid places of the lengths that are said.
    unsafe {
        let fd = libc::socket(domain, kind, 0);
        if fd < 0 {
            return None;
        }
        let stream = TcpStream::from_raw_fd(fd);
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        libc::setsockopt(fd, level, name, (&raw const linger).cast(), size_of_val(&linger) as u32);
        libc::bind(fd, (&raw const from).cast(), len);
        libc::connect(stream.as_raw_fd(), (&raw const to).cast(), len);
        Some(stream)
    }
}

/// How many descriptors this process may have, after it has asked for more.
fn descriptors() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the limit, and a valid limit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX)
}

/// Silent connections at a rate that one thread reaches, up to ten thousand a second, while callers come one
/// after the other. Prints what was measured.
#[test]
fn the_first_message_of_a_caller_arrives_in_a_flood_of_silent_connections() {
    const RATE: usize = 10_000;
    const CALLERS: usize = 4;
    // As many as this process may have, so that they stay for a second or so where nothing ends them.
    let most = (descriptors() / 4 * 3).min(15_000);
    let mut a = open(options("key"));
    let at = a.addr().sock();
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut times, start) = (Vec::new(), Instant::now());
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut held, start) = (VecDeque::new(), Instant::now());
            while !stop.load(Ordering::Relaxed) {
                let due = (start.elapsed().as_micros() * RATE as u128 / 1_000_000) as usize;
                let n = count.load(Ordering::Relaxed);
                if n >= due {
                    thread::sleep(Duration::from_micros(200));
                    continue;
                }
                held.extend(begin(at, Ipv4Addr::LOCALHOST));
                count.store(n + 1, Ordering::Relaxed);
                if held.len() > most {
                    held.pop_front();
                }
            }
        });
        let mut go = || {
            // Callers from the start on, and when the places are all taken.
            while start.elapsed() < Duration::from_secs(4) || times.len() < CALLERS {
                let (mut b, begin) = (open(options("key")), Instant::now());
                let to_a = b.peer(&a.addr());
                say(&mut b, to_a, &mut [&mut a], b"hello");
                assert_eq!(take(&mut a, &mut b).1, b"hello");
                times.push(begin.elapsed());
                drop(b);
                until("its end", || a.poll().is_some());
            }
        };
        let went = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut go));
        stop.store(true, Ordering::Relaxed);
        went.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let rate = count.into_inner() as f64 / start.elapsed().as_secs_f64();
    times.sort_unstable();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{rate:.0} silent connections a second; {} callers: first message after {median:?}, at most {most:?}",
        times.len()
    );
}
