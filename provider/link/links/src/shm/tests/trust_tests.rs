//! What a link makes of peers that do not keep to what was agreed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ipc::{rights, socket};
use link_api::{Channel, Event, FrameLink as _, Gone, Link as _, Parting, Refused, SleepLink as _};
use wire::Addr;
use wire::channel::{Hello, Packet};

use super::MIN_RING;
use super::OpenOptions;
use super::ShmLink;
use crate::shm::channel::allowance::Allowance;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::ring::{Consumer, Mem as _};
use crate::shm::channel::segment::Segment;
use crate::shm::meet::hello;
use crate::shm::sleep_tests::readable;
use crate::shm::tests::{closed, couple, event_none, frame, open, say};
use crate::space;

/// A connection to `link` made by hand.
fn raw(link: &ShmLink) -> OwnedFd {
    hello::connect(Some(link.addr().ip()), link.addr().port()).unwrap()
}

fn hello(addr: &str, ring: u32) -> Hello {
    let to = Addr::new("127.0.0.1:9".parse().unwrap());
    Hello {
        version: wire::VERSION,
        ring,
        incarnation: 1,
        from: Addr::new(addr.parse().unwrap()),
        to,
        space: space::own().unwrap(),
    }
}

fn hello_to(link: &ShmLink, from: &str) -> Hello {
    Hello { to: link.addr(), ..hello(from, MIN_RING as u32) }
}

#[test]
fn a_hello_that_is_not_as_agreed_is_refused() {
    let mut b = open();
    let ring = MIN_RING as u32;
    let good = hello_to(&b, "127.0.0.1:9");
    let (_keep, fd) = Segment::create(MIN_RING).unwrap();
    // SAFETY: memfd_create(2) takes a C string; the descriptor is new.
    let unsealed = unsafe {
        use std::os::fd::FromRawFd;
        OwnedFd::from_raw_fd(libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING))
    };
    // SAFETY: ftruncate(2) touches no memory of ours.
    unsafe { libc::ftruncate(unsealed.as_raw_fd(), 4096 + MIN_RING as i64) };
    let bad: [(&[u8], &OwnedFd); 7] = [
        (&hello("127.0.0.1:9", ring).encode(), &fd),
        (&Hello { version: wire::VERSION + 1, ..good }.encode(), &fd),
        (&Hello { ring: ring + 4096, ..good }.encode(), &fd),
        (&Hello { ring: 4096, ..good }.encode(), &fd),
        (&Hello { ring: u32::MAX, ..good }.encode(), &fd),
        (&good.encode(), &unsealed),
        (b"GET / HTTP/1.1\r\n\r\n", &fd),
    ];
    for (i, (bytes, fd)) in bad.into_iter().enumerate() {
        let sock = raw(&b);
        rights::send_fd(&sock, bytes, fd.as_fd()).unwrap();
        assert!(event_none(&mut b), "case {i}");
        assert_eq!(answer(&sock), Some(Packet::Refused), "case {i}");
        assert_eq!(socket::receive(&sock, &mut [0; 16]).unwrap(), 0);
    }
    // No descriptor, and nothing at all.
    let sock = raw(&b);
    socket::notify(&sock, &good.encode());
    drop(raw(&b));
    let mute = raw(&b);
    assert!(event_none(&mut b));
    assert_eq!(b.meeting.listening.guests().iter().count(), 1, "the mute one");
    // A connection that takes its time is welcome all the same.
    rights::send_fd(&mute, &good.encode(), fd.as_fd()).unwrap();
    assert!(event_none(&mut b));
    assert_eq!((b.meeting.listening.guests().iter().count(), b.channels.rings.peers().count()), (0, 1));
}

/// Of a process of the same user, which has the secrets of this link and none of the other's.
#[test]
fn a_name_that_another_link_serves_is_refused() {
    let (_keep, fd) = Segment::create(MIN_RING).unwrap();
    let mut b = open();
    let call = |b: &mut ShmLink, from: &str| {
        let sock = raw(b);
        rights::send_fd(&sock, &hello_to(b, from).encode(), fd.as_fd()).unwrap();
        assert!(event_none(b), "{from}");
        answer(&sock)
    };
    b.admit_callers(super::Callers::OfThisHost);
    assert_eq!(call(&mut b, "198.51.100.7:9"), Some(Packet::Refused));
    let served = b.peer(&Addr::new("127.0.0.1:9".parse().unwrap()));
    b.set_elsewhere(served, true);
    assert_eq!(call(&mut b, "127.0.0.1:9"), Some(Packet::Refused));
    assert_eq!(b.channel(served), Channel::None);
    b.admit_callers(super::Callers::Itself);
    assert_eq!(call(&mut b, "127.0.0.1:10"), Some(Packet::Refused));
    b.admit_callers(super::Callers::OfThisHost);
    assert_ne!(call(&mut b, "127.0.0.1:10"), Some(Packet::Refused));
}

#[test]
fn a_refusal_closes_the_peer() {
    let mut a = open();
    // Stands in for an endpoint of another version.
    let other = hello::listen("127.0.0.1:1".parse().unwrap()).unwrap();
    let to = a.peer(&Addr::new("127.0.0.1:1".parse().unwrap()));
    say(&mut a, to, b"1").unwrap();
    let sock = socket::accept(&other).unwrap();
    socket::notify(&sock, &Packet::Refused.encode());
    drop(sock);
    assert_eq!(closed(&mut a), (to, Gone::Denied));
    drop(other);
    assert_eq!(say(&mut a, to, b"2"), Err(Refused::Gone(Gone::Refused)));
}

#[test]
fn a_peer_that_breaks_the_ring_is_closed() {
    let mut b = open();
    for (i, word) in [u32::MAX, 1 << 30, 14_000, 20_000].into_iter().enumerate() {
        let (mem, fd) = Segment::create(MIN_RING).unwrap();
        let sock = raw(&b);
        let hello = hello_to(&b, &format!("127.0.0.1:{}", i + 10));
        rights::send_fd(&sock, &hello.encode(), fd.as_fd()).unwrap();
        mem.commit(0).store(word, Relaxed);
        let id = b.peer(&hello.from);
        assert_eq!(closed(&mut b), (id, Gone::Denied), "{word}");
        let mut answer = [0; 64];
        assert_eq!(socket::receive(&sock, &mut answer).unwrap(), Packet::MOST, "welcomed at first");
        assert_eq!(socket::receive(&sock, &mut answer).unwrap(), 0);
    }
    // The other direction: a receiver that has read more than was sent.
    let (mut a, to_b, b, _) = couple();
    while say(&mut a, to_b, &[1; 60]).is_ok() {
        b.channels.peers[0].inb.as_ref().unwrap().rx.mem().head().store(1 << 20, Relaxed);
    }
    assert_eq!(say(&mut a, to_b, b"?"), Err(Refused::Gone(Gone::Reset)));
    assert_eq!(closed(&mut a), (to_b, Gone::Denied));
}

#[test]
fn a_peer_that_writes_random_words_sends_frames_or_is_closed() {
    let mut b = open();
    let mut state = 1u64;
    let mut noise = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u32
    };
    let (mut frames, mut ends) = (0, 0);
    for round in 0..300u32 {
        let (mem, fd) = Segment::create(MIN_RING).unwrap();
        let sock = raw(&b);
        rights::send_fd(&sock, &hello_to(&b, "127.0.0.1:9").encode(), fd.as_fd()).unwrap();
        for _ in 0..2000 {
            let word = [noise() % 12_000, noise() % 60, noise(), 0][noise() as usize % 4];
            mem.commit(noise() % mem.lines()).store(word, Relaxed);
            mem.bell().store(noise(), Relaxed);
            mem.want().store(noise(), Relaxed);
        }
        if round % 3 == 0 {
            // The other end is closed, yet the ring never empties.
            drop(sock);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            mem.commit(noise() % mem.lines()).store(noise() % 60, Relaxed);
            match b.poll() {
                Some(Event::Frame(f)) => {
                    let mut bytes = vec![0; f.len + 9];
                    assert_eq!(b.read(&f, 0, &mut bytes), f.len);
                    b.release(f);
                    frames += 1;
                }
                Some(Event::Closed(..)) => ends += 1,
                Some(Event::PathChanged(_)) => {}
                Some(Event::Done(..) | Event::Cut(_) | Event::Written(..) | Event::Begun(_)) => {
                    panic!("no copy was started, and no frame asked for early")
                }
                None => {
                    b.arm();
                }
            }
        }
    }
    assert!(frames > 100 && ends > 100, "{frames} frames, {ends} ends");
}

#[test]
fn a_disconnected_peer_delivers_no_more_frames() {
    let (mut a, to_b, mut b, _) = couple();
    while say(&mut a, to_b, &[1; 60]).is_ok() {}
    let from = b.peer(&a.addr());
    b.dismiss(from, Parting::CutOff);
    assert_eq!(closed(&mut b), (from, Gone::Denied), "and no frame before");
    assert_eq!(closed(&mut a), (to_b, Gone::Reset));
}

/// One that calls itself `from`: its segment and its socket.
fn call(link: &ShmLink, from: Addr, incarnation: u64) -> (Producer<Segment>, OwnedFd) {
    let (mem, fd) = Segment::create(MIN_RING).unwrap();
    let sock = raw(link);
    let hello = Hello { incarnation, from, ..hello_to(link, "127.0.0.1:9") };
    rights::send_fd(&sock, &hello.encode(), fd.as_fd()).unwrap();
    (Producer::new(mem, 0, Allowance::new(u32::MAX)), sock)
}

/// It may be written to all the same, by a process forked from the peer's. Also where positions come around
/// meanwhile.
#[test]
fn the_ring_of_an_ended_peer_is_read_no_further_than_it_holds() {
    for start in [0, u32::MAX - 3] {
        let mut b = open();
        let (mut tx, sock) = call(&b, Addr::new(([127, 0, 0, 1], 10).into()), 7);
        assert!(event_none(&mut b));
        let id =
            b.channels.peers.list().iter().position(|peer| peer.inb.is_some()).expect("the peer is let in")
                as u32;
        if start != 0 {
            let (mem, fd) = Segment::create(MIN_RING).unwrap();
            mem.head().store(start, Relaxed);
            let theirs = Segment::adopt(fd.as_fd(), MIN_RING).unwrap();
            tx = Producer::starting_at(mem, start, Allowance::new(u32::MAX));
            b.channels.peers[id].inb.as_mut().unwrap().rx = Consumer::starting_at(theirs, start);
            b.channels.locate(id);
        }
        let lines = tx.mem().lines();
        let mut put = || {
            let room = tx.reserve(20) == Ok(true);
            if room {
                // SAFETY: as much was reserved.
                unsafe { tx.write(0, &[1; 20]) };
                tx.publish(20);
            }
            room
        };
        while put() {}
        drop(sock);
        let (mut frames, begin) = (0, Instant::now());
        loop {
            match b.poll() {
                Some(Event::Frame(f)) => {
                    frames += u32::from(b.channels.peers[id].dying.is_some());
                    b.release(f);
                    while put() {}
                    assert!(frames <= 2 * lines, "{frames} frames of one line");
                }
                Some(Event::Closed(..)) => break,
                _ => assert!(begin.elapsed() < Duration::from_secs(60)),
            }
        }
        // What it had sent, and the word behind that which is always kept.
        assert!(frames + 1 >= lines, "{frames} frames of {lines} lines");
    }
}

fn answer(sock: &OwnedFd) -> Option<Packet> {
    let mut bytes = [0; Packet::BUFFER];
    socket::receive(sock, &mut bytes).ok().and_then(|n| Packet::decode(&bytes[..n]))
}

/// Another process may not take the name of a peer that lives: `link` is asked which process has it.
#[test]
fn a_name_that_a_peer_has_is_not_taken_from_it() {
    // All are of one process here, so neither is known to be another: the newcomer waits, and is refused.
    let (mut a, to_b, mut b, to_a) = couple();
    let (_ring, forged) = call(&b, a.addr(), 7);
    let start = Instant::now();
    // Nothing comes of it by a socket, so a sleeper is woken by a timer, each time anew.
    assert!(event_none(&mut b));
    for _ in 0..3 {
        assert!(
            b.meeting.contests.len() == 1 && (!b.arm() || readable(&b, 1000)),
            "a sleeper is not woken to decide"
        );
        assert!(event_none(&mut b));
    }
    let mut n = 0u32;
    let said = loop {
        say(&mut a, to_b, &n.to_le_bytes()).unwrap();
        assert_eq!(frame(&mut b), (to_a, n.to_le_bytes().to_vec()), "the peer is cut off");
        n += 1;
        if let Some(said) = answer(&forged) {
            break said;
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    };
    assert_eq!((said, b.meeting.contests.len()), (Packet::Refused, 0));
    assert!(!b.meeting.contests.has_timer(), "the timer stays");
    // One with our own name.
    let own = b.addr();
    let (_ring, forged) = call(&b, own, 7);
    assert!(event_none(&mut b));
    assert_eq!(answer(&forged), Some(Packet::Refused));
    // Many at once are no more than are kept.
    let many: Vec<_> = (0..100).map(|n| call(&b, a.addr(), n)).collect();
    assert!(event_none(&mut b));
    assert!(
        b.meeting.contests.len() <= 16 && many.iter().any(|(_, sock)| answer(sock) == Some(Packet::Refused))
    );
    say(&mut a, to_b, b"still here").unwrap();
    assert_eq!(frame(&mut b), (to_a, b"still here".to_vec()));
}

#[test]
fn a_successor_is_let_in_once_the_former_has_ended() {
    let mut b = open();
    let name = Addr::new("127.0.0.1:9".parse().unwrap());
    let (_former, first) = call(&b, name, 1);
    assert!(event_none(&mut b));
    // Its socket is still open, as while a process ends.
    let (mut ring, second) = call(&b, name, 2);
    assert!(event_none(&mut b));
    assert_eq!((answer(&second), b.meeting.contests.len()), (None, 1));
    drop(first);
    let id = b.peer(&name);
    assert_eq!(closed(&mut b), (id, Gone::Reset));
    assert!(ring.reserve(3) == Ok(true));
    // SAFETY: room for it was found just now.
    unsafe { ring.write(0, b"new") };
    ring.publish(3);
    assert_eq!(frame(&mut b), (id, b"new".to_vec()));
    assert!(matches!(answer(&second), Some(Packet::Welcome(_))));
}

/// The second question, whether a peer waits, is asked after `accept` has found none.
#[test]
fn a_peer_that_connects_while_none_is_there_is_no_lack_of_descriptors() {
    let mut b = open();
    let addr = b.addr();
    let callers = std::thread::spawn(move || {
        for _ in 0..20_000 {
            while hello::connect(Some(addr.ip()), addr.port()).is_err() {
                std::thread::yield_now();
            }
        }
    });
    while !callers.is_finished() {
        b.service().accept();
        b.meeting.listening.guests_mut().take_all().for_each(drop);
    }
    callers.join().unwrap();
    assert!(!b.meeting.shortage.was_ever());
}

#[test]
fn connections_that_say_nothing_are_not_kept_without_end() {
    let mut b = open();
    let mute: Vec<OwnedFd> = (0..200).map(|_| raw(&b)).collect();
    assert!(event_none(&mut b));
    assert!(b.meeting.listening.guests().iter().count() <= 64);
    let (mut a, to_b) = (open(), b.addr());
    let to_b = a.peer(&to_b);
    say(&mut a, to_b, b"1").unwrap();
    assert_eq!(frame(&mut b).1, b"1");
    b.meeting.listening.guests_mut().each_since().for_each(|since| *since -= Duration::from_secs(4));
    assert!(event_none(&mut b));
    assert!(b.meeting.listening.guests().is_empty());
    drop(mute);
}

#[test]
fn a_name_with_another_listener_cannot_be_opened() {
    let taken = "127.0.0.1:0".parse().unwrap();
    let (port, bound) = crate::name::reserve(taken, false).unwrap();
    drop(port);
    let squatter = hello::listen(bound).unwrap();
    let open = |bind| ShmLink::open(OpenOptions { bind: Some(bind), ..OpenOptions::default() });
    assert_eq!(open(bound).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert!(open(taken).is_ok());
    drop(squatter);
    assert!(open(bound).is_ok());
}

/// Not a test: a process that calls itself by another's name.
#[test]
fn forger_child() {
    let Ok(victim) = std::env::var("STRAIT_VICTIM") else { return };
    // SAFETY: prctl(PR_SET_PDEATHSIG) takes a number: it ends with the process that started it.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let addr = |text: String| Addr::new(text.parse().unwrap());
    let (to, from) = (addr(victim), addr(std::env::var("STRAIT_NAME").unwrap()));
    let (_mem, fd) = Segment::create(MIN_RING).unwrap();
    let sock = hello::connect(Some(to.ip()), to.port()).unwrap();
    let hello = Hello { from, to, ..hello("127.0.0.1:9", MIN_RING as u32) };
    rights::send_fd(&sock, &hello.encode(), fd.as_fd()).unwrap();
    loop {
        if let Some(said) = answer(&sock) {
            // On a channel that is open nothing more is said until its end.
            println!("!{said:?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Forger(std::process::Child, std::sync::mpsc::Receiver<String>);

impl Forger {
    fn start(victim: &ShmLink, name: Addr) -> Forger {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shm::trust_tests::forger_child", "--nocapture", "--test-threads=1"])
            .env("STRAIT_VICTIM", victim.addr().to_string())
            .env("STRAIT_NAME", name.to_string())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let (report, reported) = std::sync::mpsc::channel();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in std::io::BufRead::lines(out).map_while(Result::ok) {
                if let Some((_, said)) = line.split_once('!') {
                    let _ = report.send(said.to_owned());
                }
            }
        });
        Forger(child, reported)
    }

    /// What the victim, which hears nothing else, says to it.
    fn hears(&self, victim: &mut ShmLink) -> String {
        let start = Instant::now();
        loop {
            if let Ok(said) = self.1.try_recv() {
                return said;
            }
            assert!(victim.poll().is_none());
            assert!(start.elapsed() < Duration::from_secs(60));
        }
    }
}

impl Drop for Forger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_under_the_name_of_another_one_is_refused() {
    let (mut a, to_b, mut b, to_a) = couple();
    let forger = Forger::start(&b, a.addr());
    assert_eq!(forger.hears(&mut b), "Refused");
    // Only the channel to the name is there.
    let (mut c, mut d) = (open(), open());
    let to_d = c.peer(&d.addr());
    say(&mut c, to_d, b"hello").unwrap();
    frame(&mut d);
    let forger = Forger::start(&c, d.addr());
    assert_eq!(forger.hears(&mut c), "Refused");
    for (from, to, link, other) in [(to_a, to_b, &mut a, &mut b), (d.peer(&c.addr()), to_d, &mut c, &mut d)] {
        say(link, to, b"still here").unwrap();
        assert_eq!(frame(other), (from, b"still here".to_vec()));
    }
}

#[test]
fn the_owner_of_a_name_takes_it_from_a_process_that_was_first() {
    let (mut a, mut b) = (open(), open());
    let forger = Forger::start(&b, a.addr());
    assert!(forger.hears(&mut b).starts_with("Welcome"));
    let (to_a, to_b) = (b.peer(&a.addr()), a.peer(&b.addr()));
    say(&mut a, to_b, b"me").unwrap();
    assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    assert_eq!(frame(&mut b), (to_a, b"me".to_vec()));
    // The same if it is called before it calls.
    let (mut a, mut b) = (open(), open());
    let forger = Forger::start(&b, a.addr());
    assert!(forger.hears(&mut b).starts_with("Welcome"));
    let (to_a, to_b) = (b.peer(&a.addr()), a.peer(&b.addr()));
    say(&mut b, to_a, b"you").unwrap();
    assert_eq!(frame(&mut a), (to_b, b"you".to_vec()));
    assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    assert_eq!(closed(&mut a), (to_b, Gone::Reset));
    say(&mut b, to_a, b"again").unwrap();
    assert_eq!(frame(&mut a), (to_b, b"again".to_vec()));
    say(&mut a, to_b, b"back").unwrap();
    assert_eq!(frame(&mut b), (to_a, b"back".to_vec()));
    assert!(event_none(&mut a) && event_none(&mut b));
}
