//! Peers that come, end, follow one another, and are not there.

use std::io;
use std::time::{Duration, Instant};

use hmem::Span;
use ipc::{rights, socket};
use link_api::{
    Direct, Event, FrameLink as _, FrameSource, Gone, Grant, Link as _, NoDirect, Parting, PeerId, PollFrame,
    Refused, RmaLink as _, Sent, SleepLink as _, Way,
};
use wire::{Addr, Seg};

use super::DEFAULT_RING;
use super::FEW;
use super::LONG_RING;
use super::MIDDLE_RING;
use super::NEAR;
use super::OpenOptions;
use super::ShmLink;
use crate::shm::channel::ring::LINE;
use crate::shm::meet::guest::Guest;
use crate::shm::peer::Peer;
use crate::shm::tests::{closed, couple, event, event_none, frame, open, say};

#[test]
fn the_last_frames_come_before_the_end() {
    let (mut a, to_b, mut b, to_a) = couple();
    for i in 0..100u8 {
        say(&mut a, to_b, &[i]).unwrap();
    }
    drop(a);
    for i in 0..100u8 {
        assert_eq!(frame(&mut b), (to_a, vec![i]));
    }
    assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    assert_eq!(say(&mut b, to_a, b"?"), Err(Refused::Gone(Gone::Refused)));
    assert!(event_none(&mut b));
}

/// The lines that a lap leaves out which ends early count in positions, and a consumer that is behind then
/// has two laps to read.
#[test]
fn all_frames_of_a_full_ring_come_before_the_end_wherever_a_lap_has_ended() {
    for before in (0..LONG_RING / LINE / 8).step_by(37) {
        let (mut a, to_b, mut b, to_a) = couple();
        for n in 0..before {
            say(&mut a, to_b, &[n as u8; 20]).unwrap();
            assert_eq!(frame(&mut b).1, [n as u8; 20]);
        }
        let sent = (0u32..).take_while(|n| say(&mut a, to_b, &n.to_le_bytes()).is_ok()).count() as u32;
        drop(a);
        // As one that was away and looks at its sockets first.
        b.service().run();
        for n in 0..sent {
            match event(&mut b) {
                Some(Event::Frame(f)) => {
                    let mut bytes = [0; 4];
                    assert_eq!(b.read(&f, 0, &mut bytes), 4);
                    assert_eq!(u32::from_le_bytes(bytes), n);
                    b.release(f);
                }
                other => panic!("frame {n} of {sent} after {before} is {other:?}"),
            }
        }
        assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    }
}

#[test]
fn frames_of_a_peer_that_ended_before_the_first_poll_are_delivered() {
    let (mut a, mut b) = (open(), open());
    let (to_a, to_b) = (b.peer(&a.addr()), a.peer(&b.addr()));
    // b has a channel to a as well, whose end must not come first.
    say(&mut b, to_a, b"you there?").unwrap();
    say(&mut a, to_b, b"one").unwrap();
    say(&mut a, to_b, b"two").unwrap();
    drop(a);
    assert_eq!(frame(&mut b), (to_a, b"one".to_vec()));
    assert_eq!(frame(&mut b), (to_a, b"two".to_vec()));
    assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    assert!(event_none(&mut b));
}

#[test]
fn frames_of_a_peer_come_before_its_end_where_that_is_found_between_polls() {
    let (mut a, mut b) = (open(), open());
    let (to_a, to_b) = (b.peer(&a.addr()), a.peer(&b.addr()));
    say(&mut a, to_b, b"you there?").unwrap();
    assert_eq!(frame(&mut b).1, b"you there?");
    assert!(event_none(&mut a));
    say(&mut b, to_a, b"yes").unwrap();
    drop(b);
    // Reads the socket of the channel to b, whose own channel waits to be accepted.
    let _ = a.knows_space(to_b);
    assert_eq!(frame(&mut a), (to_b, b"yes".to_vec()));
    assert_eq!(closed(&mut a), (to_b, Gone::Reset));
    assert!(event_none(&mut a));
}

#[test]
fn a_successor_follows_the_former_under_its_name() {
    let (mut a, to_b, mut b, to_a) = couple();
    let again = OpenOptions { bind: Some(a.addr().sock()), ..OpenOptions::default() };
    assert_eq!(ShmLink::open(again.clone()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    say(&mut a, to_b, b"old").unwrap();
    drop(a);
    let mut a = ShmLink::open(again).unwrap();
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, b"new").unwrap();
    assert_eq!(frame(&mut b), (to_a, b"old".to_vec()));
    assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    assert_eq!(frame(&mut b), (to_a, b"new".to_vec()));
    say(&mut b, to_a, b"hi").unwrap();
    assert_eq!(frame(&mut a).1, b"hi");
    assert!(event_none(&mut b));
}

#[test]
fn a_successor_is_distinguished_from_a_peer_that_never_accepted() {
    let (a, mut b) = (open(), open());
    let to_a = b.peer(&a.addr());
    // a never takes note of this.
    say(&mut b, to_a, b"lost").unwrap();
    let again = OpenOptions { bind: Some(a.addr().sock()), ..OpenOptions::default() };
    drop(a);
    let mut a = ShmLink::open(again).unwrap();
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, b"new").unwrap();
    assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    assert_eq!(frame(&mut b), (to_a, b"new".to_vec()));
    say(&mut b, to_a, b"hi").unwrap();
    assert_eq!(frame(&mut a).1, b"hi");
    assert!(event_none(&mut b));
}

/// `a` sends behind the end of `b`, before it polls; then to what `b` is followed by.
fn send_behind_an_end(a: &mut ShmLink, to_b: PeerId, b: ShmLink) {
    let again = OpenOptions { bind: Some(b.addr().sock()), ..OpenOptions::default() };
    drop(b);
    let mut b = ShmLink::open(again).unwrap();
    for _ in 0..3 {
        // Neither taken nor kept.
        assert_eq!(say(a, to_b, b"12345678"), Err(Refused::Gone(Gone::Reset)));
    }
    assert!(event_none(&mut b));
    assert_eq!(closed(a), (to_b, Gone::Reset));
    say(a, to_b, b"anew").unwrap();
    assert_eq!(frame(&mut b).1, b"anew");
}

#[test]
fn nothing_is_sent_to_a_peer_that_has_closed() {
    let (mut a, to_b, b, _) = couple();
    send_behind_an_end(&mut a, to_b, b);
}

#[test]
fn nothing_is_sent_to_a_sleeper_that_has_closed() {
    let (mut a, to_b, mut b, _) = couple();
    while b.poll().is_some() {}
    assert!(b.arm());
    send_behind_an_end(&mut a, to_b, b);
}

/// It has not accepted the channel, or not read the hello.
#[test]
fn nothing_is_sent_to_a_peer_that_has_closed_without_a_poll() {
    let (mut a, b) = (open(), open());
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, b"before").unwrap();
    send_behind_an_end(&mut a, to_b, b);
}

#[test]
fn nothing_is_sent_to_a_peer_that_lacked_what_a_channel_takes_and_has_closed() {
    let (mut a, mut b) = (open(), open());
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, b"before").unwrap();
    // As after a hello for which there was no memory.
    let sock = socket::accept(b.meeting.listening.sock()).unwrap();
    let mut bytes = [0; 200];
    let (n, fd) = rights::recv_fd(&sock, &mut bytes).unwrap();
    let said = Some((bytes[..n].to_vec(), fd));
    let guests = b.meeting.listening.guests_mut();
    let at = guests.add((), Guest { sock, pid: 0, said });
    guests.has_spoken(at);
    send_behind_an_end(&mut a, to_b, b);
}

#[test]
fn a_frame_that_was_read_before_the_end_is_not_refused() {
    let (mut a, to_b, mut b, to_a) = couple();
    say(&mut a, to_b, b"read").unwrap();
    assert_eq!(frame(&mut b), (to_a, b"read".to_vec()));
    drop(b);
    // As if the sender had been stopped between its frame and this.
    let out = a.channels.peers[to_b.0].out.as_mut().unwrap();
    assert_eq!(out.notify(true), Ok(Sent::Done));
}

#[test]
fn a_name_without_a_listener_is_busy_until_the_connect_timeout() {
    let mut a = open();
    let mut b = open();
    let addr = b.addr();
    drop(b);
    let to = a.peer(&addr);
    let start = Instant::now();
    let last = loop {
        match say(&mut a, to, b"?") {
            Err(Refused::Busy) => assert!(!a.arm(), "sleeps though it should try again"),
            other => break other,
        }
        assert!(a.poll().is_none());
    };
    assert_eq!(last, Err(Refused::Gone(Gone::Refused)));
    assert!(start.elapsed() >= Duration::from_millis(60), "given up too early");
    // The next attempt has its own time, and a peer appears.
    assert_eq!(say(&mut a, to, b"?"), Err(Refused::Busy));
    b = ShmLink::open(OpenOptions { bind: Some(addr.sock()), ..OpenOptions::default() }).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    say(&mut a, to, b"!").unwrap();
    assert_eq!(frame(&mut b).1, b"!");
    let far = a.peer(&Addr::new("192.0.2.1:7".parse().unwrap()));
    assert_eq!(say(&mut a, far, b"?"), Err(Refused::Gone(Gone::Unreachable)));
}

#[test]
fn an_endpoint_of_every_address_is_reached_by_each() {
    let mut all = ShmLink::open(OpenOptions::default()).unwrap();
    assert!(!all.addr().ip().is_unspecified());
    let mut a = open();
    let port = all.addr().port();
    let names = [all.addr(), Addr::new(([127, 0, 0, 1], port).into())];
    for name in names.into_iter().cycle().take(6) {
        let to = a.peer(&name);
        say(&mut a, to, name.to_string().as_bytes()).unwrap();
        let (from, bytes) = frame(&mut all);
        assert_eq!((all.peer_addr(from), bytes), (a.addr(), name.to_string().into_bytes()));
        // It answers under the name it was called by.
        say(&mut all, from, b"yes").unwrap();
        assert_eq!(frame(&mut a), (to, b"yes".to_vec()));
    }
    // Also if it is the first to speak.
    let (mut all, mut a) = (ShmLink::open(OpenOptions::default()).unwrap(), open());
    let to = all.peer(&a.addr());
    say(&mut all, to, b"1").unwrap();
    assert_eq!(a.peer(&all.addr()), frame(&mut a).0);
    let other = a.peer(&Addr::new(([127, 0, 0, 1], all.addr().port()).into()));
    say(&mut a, other, b"2").unwrap();
    let (from, _) = frame(&mut all);
    say(&mut all, from, b"3").unwrap();
    assert_eq!(frame(&mut a), (other, b"3".to_vec()));
    let six = OpenOptions { bind: Some("[::1]:0".parse().unwrap()), ..OpenOptions::default() };
    if let Ok(mut six) = ShmLink::open(six) {
        let to = a.peer(&six.addr());
        say(&mut a, to, b"six").unwrap();
        assert_eq!(frame(&mut six).1, b"six");
    }
}

#[test]
fn few_peers_get_a_long_ring_some_one_between_and_more_a_short_one() {
    let mut a = open();
    let others: Vec<ShmLink> = (0..FEW + 2).map(|_| open()).collect();
    let ids: Vec<PeerId> = others.iter().map(|b| a.peer(&b.addr())).collect();
    let ring = |a: &ShmLink, id: PeerId| a.channels.peers[id.0].out.as_ref().map(|o| o.tx.mem().ring_bytes());
    let mut most = vec![0; a.path(PeerId(0)).max_frame];
    for (n, id) in ids.iter().enumerate() {
        // The longest frame fits either.
        say(&mut a, *id, &most).unwrap();
        let (near, some) = (n < NEAR, n < FEW);
        let bytes = if near {
            LONG_RING
        } else if some {
            MIDDLE_RING
        } else {
            DEFAULT_RING
        };
        assert_eq!(ring(&a, *id), Some(bytes), "{n}");
    }
    most.clear();
    // A place that comes free is given away again, of either sort.
    for (freed, bytes) in [(NEAR - 1, LONG_RING), (NEAR, MIDDLE_RING)] {
        let late = open();
        let id = a.peer(&late.addr());
        a.channels.peers[ids[freed].0].out = None;
        say(&mut a, id, &most).unwrap();
        assert_eq!(ring(&a, id), Some(bytes));
    }
}

#[test]
fn long_rings_are_few_however_long_they_are() {
    for long_ring in [MIDDLE_RING - (8 << 10), MIDDLE_RING, MIDDLE_RING + (8 << 10)] {
        let mut a = ShmLink::open(OpenOptions { long_ring, ..OpenOptions::default() }).unwrap();
        let others: Vec<ShmLink> = (0..FEW + 2).map(|_| open()).collect();
        let ids: Vec<PeerId> = others.iter().map(|b| a.peer(&b.addr())).collect();
        let rings = ids.iter().map(|id| {
            say(&mut a, *id, b"").unwrap();
            a.channels.peers[id.0].out.as_ref().map_or(0, |o| o.tx.mem().ring_bytes())
        });
        let rings: Vec<usize> = rings.collect();
        assert_eq!(rings.iter().filter(|bytes| **bytes > DEFAULT_RING).count(), FEW, "{rings:?}");
        assert_eq!(rings[0], long_ring);
    }
}

#[test]
fn an_idle_peer_takes_no_more_than_64_kib() {
    let (mut a, to_b, mut b, to_a) = couple();
    for n in 0..100u8 {
        say(&mut a, to_b, &[n; 40]).unwrap();
        assert_eq!(frame(&mut b), (to_a, vec![n; 40]));
        say(&mut b, to_a, &[n; 40]).unwrap();
        assert_eq!(frame(&mut a), (to_b, vec![n; 40]));
    }
    let peer = &a.channels.peers[to_b.0];
    let both =
        peer.out.as_ref().unwrap().tx.mem().resident() + peer.inb.as_ref().unwrap().rx.mem().resident();
    assert!(both + size_of::<Peer>() <= 64 << 10, "{both}");
}

#[test]
fn memory_is_accessed_directly_and_the_path_is_described() {
    let (mut a, to_b, _b, _) = couple();
    let theirs = Span::leak(32);
    hmem::write(&[theirs], 0, b"0123456789abcdefghijklmnopqrstuv");
    let seg = [Seg { addr: theirs.addr().into(), len: 32.into() }];
    let mine = [Span::leak(16)];
    a.access(Way::Get, to_b, &Direct::new(Grant::Agreed, &seg, &mine, 6).at(10, 2)).unwrap();
    let mut back = [0; 16];
    hmem::read(&mine, 0, &mut back);
    assert_eq!(&back, b"\0\0abcdef\0\0\0\0\0\0\0\0");
    a.access(Way::Put, to_b, &Direct::new(Grant::Agreed, &seg, &mine, 6).at(0, 2)).unwrap();
    let mut back = [0; 12];
    hmem::read(&[theirs], 0, &mut back);
    assert_eq!(&back, b"abcdef6789ab");
    let bad = [Seg { addr: 4096.into(), len: 32.into() }];
    assert_eq!(a.access(Way::Get, to_b, &Direct::new(Grant::Agreed, &bad, &mine, 8)), Err(NoDirect::Memory));
    let pid = std::process::id();
    assert_eq!(a.describe(to_b), format!("shm 508 KiB ring, cma (process_vm_readv) with pid {pid}"));
    let absent = a.peer(&Addr::new("127.0.0.1:3".parse().unwrap()));
    assert_eq!(a.access(Way::Get, absent, &Direct::new(Grant::Agreed, &seg, &mine, 8)), Err(NoDirect::Fault));
    // The kernel gives 0 for a process of another pid namespace.
    if let Some(out) = a.channels.peers[to_b.0].out.as_mut() {
        out.pid = 0;
    }
    a.channels.peers[to_b.0].inb = None;
    assert!(a.describe(to_b).contains("frames only: its pid is not visible"), "{}", a.describe(to_b));
    assert_eq!(a.describe(absent), "shm 124 KiB ring, not connected");
    a.channels.options.cma = false;
    assert_eq!(a.access(Way::Get, to_b, &Direct::new(Grant::Agreed, &seg, &mine, 8)), Err(NoDirect::Never));
    assert!(a.describe(to_b).contains("frames only"));
}

/// As where there is no memory for what a peer has left.
#[test]
fn a_frame_of_an_ended_peer_that_is_put_back_keeps_no_other_one_waiting() {
    // How many end, and how many live; which of them sent last, and so has a ring that each poll looks at.
    for (ended, live, last_ended) in [(1, 1, false), (1, 1, true), (1, 3, true), (3, 2, false), (3, 2, true)]
    {
        let mut b = open();
        let (name, mut ids) = (b.addr(), Vec::new());
        let mut links: Vec<_> = (0..ended + live).map(|_| open()).collect();
        let to: Vec<_> = links.iter_mut().map(|link| link.peer(&name)).collect();
        let order =
            if last_ended { [ended..ended + live, 0..ended] } else { [0..ended, ended..ended + live] };
        for at in order.into_iter().flatten() {
            say(&mut links[at], to[at], b"hello").unwrap();
            ids.push((at, frame(&mut b).0));
        }
        ids.sort_unstable_by_key(|(at, _)| *at);
        for (link, to) in links.iter_mut().zip(&to) {
            (0..3).for_each(|n| assert_eq!(say(link, *to, &[n]), Ok(Sent::Done)));
        }
        let mut others = links.split_off(ended);
        drop(links);
        let until = Instant::now() + Duration::from_secs(20);
        while b.channels.ends.len() < ended {
            assert!(Instant::now() < until, "their ends are not noticed");
            b.service().run();
        }
        let (mut found, mut put_back) = (vec![0; live], 0);
        for _ in 0..1000 {
            let Some(Event::Frame(frame)) = b.poll() else { continue };
            match ids.iter().position(|(_, id)| *id == frame.from).expect("one of them") {
                at if at < ended => {
                    put_back += 1;
                    b.land(frame, None);
                }
                at => {
                    found[at - ended] += 1;
                    b.release(frame);
                }
            }
        }
        assert_eq!(found, vec![3; live], "{ended} ended, {live} live, {last_ended}");
        assert!(put_back > 100, "{put_back}");
        // Then there is memory: all comes, in order, and the ends behind it.
        let mut came = vec![0; ended];
        let mut ends = 0;
        while ends < ended {
            match event(&mut b) {
                Some(Event::Frame(frame)) => {
                    let at = ids.iter().position(|(_, id)| *id == frame.from).expect("one of them");
                    let mut byte = [0];
                    assert_eq!((b.read(&frame, 0, &mut byte), byte[0]), (1, came[at]));
                    came[at] += 1;
                    b.release(frame);
                }
                Some(Event::Closed(..)) => ends += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(came, vec![3; ended]);
        say(&mut others[0], to[ended], b"more").unwrap();
        assert_eq!(frame(&mut b).1, b"more");
    }
}

#[test]
fn nothing_of_a_peer_that_was_cut_off_comes_beside_a_frame_that_is_put_back() {
    let (mut ended, mut cut, mut b) = (open(), open(), open());
    let name = b.addr();
    let [to_b, from_cut] = [&mut ended, &mut cut].map(|link| link.peer(&name));
    say(&mut ended, to_b, b"hello").unwrap();
    let of_ended = frame(&mut b).0;
    say(&mut cut, from_cut, b"hello").unwrap();
    let of_cut = frame(&mut b).0;
    say(&mut ended, to_b, b"last").unwrap();
    (0..3).for_each(|n| assert_eq!(say(&mut cut, from_cut, &[n]), Ok(Sent::Done)));
    drop(ended);
    let until = Instant::now() + Duration::from_secs(20);
    while b.channels.ends.is_empty() {
        assert!(Instant::now() < until, "its end is not noticed");
        b.service().run();
    }
    b.dismiss(of_cut, Parting::CutOff);
    let mut closed = Vec::new();
    for _ in 0..1000 {
        match b.poll() {
            Some(Event::Frame(frame)) => {
                assert_eq!(frame.from, of_ended);
                b.land(frame, None);
            }
            Some(Event::Closed(peer, why)) => closed.push((peer, why)),
            _ => {}
        }
    }
    assert_eq!(closed, [(of_cut, Gone::Denied)]);
    assert_eq!(frame(&mut b), (of_ended, b"last".to_vec()));
}

#[test]
fn nothing_comes_of_a_peer_behind_the_frame_for_which_it_was_cut_off() {
    let (mut a, mut b) = (open(), open());
    let to_b = a.peer(&b.addr());
    for text in ["first", "second", "third"] {
        say(&mut a, to_b, text.as_bytes()).unwrap();
    }
    let Some(Event::Frame(first)) = event(&mut b) else { panic!("no frame") };
    let (from, mut bytes) = (first.from, [0; 5]);
    b.dismiss(from, Parting::CutOff);
    assert_eq!((b.read(&first, 0, &mut bytes), &bytes), (5, b"first"));
    b.release(first);
    assert!(matches!(b.poll_frame(FrameSource::Next(from)), PollFrame::Unknown), "another frame");
    assert_eq!(closed(&mut b), (from, Gone::Denied));
}
