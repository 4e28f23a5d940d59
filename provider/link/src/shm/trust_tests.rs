//! What a link makes of peers that do not keep to what was agreed.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering::Relaxed;

use engine::{Frame as _, Gone};

use super::control::Hello;
use super::ring::Mem as _;
use super::segment::Segment;
use super::tests::{closed, couple, event_none, open, say};
use super::*;
use crate::space::Space;

/// A connection to `link` made by hand.
fn raw(link: &ShmLink) -> OwnedFd {
    control::connect(Some(link.addr().ip()), link.addr().port()).unwrap()
}

fn hello(addr: &str, ring: u32) -> Hello {
    let to = Addr::new("127.0.0.1:9".parse().unwrap());
    Hello {
        version: wire::VERSION,
        ring,
        incarnation: 1,
        from: Addr::new(addr.parse().unwrap()),
        to,
        space: Space::own().unwrap(),
    }
}

fn hello_to(link: &ShmLink, from: &str) -> Hello {
    Hello { to: link.addr(), ..hello(from, MIN_RING as u32) }
}

#[test]
fn a_hello_survives_the_wire() {
    let h = hello("10.0.0.1:5", 28672);
    assert_eq!(Hello::decode(&h.encode()), Some(h));
    let mut bytes = h.encode();
    bytes[0] ^= 1;
    assert_eq!(Hello::decode(&bytes), None);
    assert_eq!(Hello::decode(&h.encode()[1..]), None);
}

#[test]
fn whoever_is_not_as_agreed_is_refused() {
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
        control::send_fd(&sock, bytes, fd.as_fd()).unwrap();
        assert!(event_none(&mut b), "case {i}");
        let mut answer = [0; 16];
        assert_eq!(control::receive(&sock, &mut answer).unwrap(), 1, "case {i}");
        assert_eq!(answer[0], control::REFUSED);
        assert_eq!(control::receive(&sock, &mut answer).unwrap(), 0);
    }
    // No descriptor, and nothing at all.
    let sock = raw(&b);
    control::notify(&sock, &good.encode());
    drop(raw(&b));
    let mute = raw(&b);
    assert!(event_none(&mut b));
    assert_eq!(b.guests.iter().flatten().count(), 1, "the mute one");
    // Who takes its time is welcome all the same.
    control::send_fd(&mute, &good.encode(), fd.as_fd()).unwrap();
    assert!(event_none(&mut b));
    assert_eq!((b.guests.iter().flatten().count(), b.ins.len()), (0, 1));
}

#[test]
fn a_refusal_closes_the_peer() {
    let mut a = open();
    // Stands in for an endpoint of another version.
    let other = control::listen("127.0.0.1:1".parse().unwrap()).unwrap();
    let to = a.peer(&Addr::new("127.0.0.1:1".parse().unwrap()));
    say(&mut a, to, b"1").unwrap();
    let sock = control::accept(&other).unwrap();
    control::notify(&sock, &[control::REFUSED]);
    drop(sock);
    assert_eq!(closed(&mut a), (to, Gone::Denied));
    drop(other);
    assert_eq!(say(&mut a, to, b"2"), Err(Refused::Gone(Gone::Refused)));
}

#[test]
fn a_peer_that_writes_nonsense_is_closed() {
    let mut b = open();
    for (i, word) in [u32::MAX, 1 << 30, 14_000, 20_000].into_iter().enumerate() {
        let (mem, fd) = Segment::create(MIN_RING).unwrap();
        let sock = raw(&b);
        let hello = hello_to(&b, &format!("127.0.0.1:{}", i + 10));
        control::send_fd(&sock, &hello.encode(), fd.as_fd()).unwrap();
        mem.commit(0).store(word, Relaxed);
        let id = b.peer(&hello.from);
        assert_eq!(closed(&mut b), (id, Gone::Denied), "{word}");
        let mut answer = [0; 64];
        assert_eq!(control::receive(&sock, &mut answer).unwrap(), control::WELCOME_LEN, "welcomed at first");
        assert_eq!(control::receive(&sock, &mut answer).unwrap(), 0);
    }
    // The other direction: a receiver that has read more than was sent.
    let (mut a, to_b, b, _) = couple();
    while say(&mut a, to_b, &[1; 60]).is_ok() {
        b.peers[0].inb.as_ref().unwrap().rx.mem().head().store(1 << 20, Relaxed);
    }
    assert_eq!(say(&mut a, to_b, b"?"), Err(Refused::Gone(Gone::Reset)));
    assert_eq!(closed(&mut a), (to_b, Gone::Denied));
}

#[test]
fn a_peer_that_scribbles_ends_in_frames_or_in_an_end() {
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
        control::send_fd(&sock, &hello_to(&b, "127.0.0.1:9").encode(), fd.as_fd()).unwrap();
        for _ in 0..2000 {
            let word = [noise() % 12_000, noise() % 60, noise(), 0][noise() as usize % 4];
            mem.commit(noise() % mem.lines()).store(word, Relaxed);
            mem.bell().store(noise(), Relaxed);
            mem.want().store(noise(), Relaxed);
        }
        if round % 3 == 0 {
            // Nobody is at the other end any more, yet the ring never empties.
            drop(sock);
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            mem.commit(noise() % mem.lines()).store(noise() % 60, Relaxed);
            match b.poll() {
                Some(Event::Frame(f)) => {
                    let mut bytes = vec![0; f.len() + 9];
                    assert_eq!(b.read(&f, 0, &mut bytes), f.len());
                    b.release(f);
                    frames += 1;
                }
                Some(Event::Closed(..)) => ends += 1,
                Some(Event::Copied(..)) => panic!("no copy was started"),
                None => {
                    b.arm();
                }
            }
        }
    }
    assert!(frames > 100 && ends > 100, "{frames} frames, {ends} ends");
}

#[test]
fn a_peer_that_is_cut_off_is_not_heard_any_more() {
    let (mut a, to_b, mut b, _) = couple();
    while say(&mut a, to_b, &[1; 60]).is_ok() {}
    let from = b.peer(&a.addr());
    b.cut(from);
    assert_eq!(closed(&mut b), (from, Gone::Denied), "and no frame before");
    assert_eq!(closed(&mut a), (to_b, Gone::Reset));
}
