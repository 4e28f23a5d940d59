use std::collections::HashMap;
use std::io;

use link_api::{Gone, Grant, NoDirect, RmaLink as _};
use wire::Seg;

use super::peer::Peer;
use super::*;

pub(super) fn open() -> ShmLink {
    ShmLink::open(OpenOptions {
        bind: Some("127.0.0.1:0".parse().unwrap()),
        connect_timeout: Duration::from_millis(60),
        ..OpenOptions::default()
    })
    .unwrap()
}

/// The next event, waited for a while.
pub(super) fn event(link: &mut ShmLink) -> Option<Event> {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if let Some(event) = link.poll() {
            return Some(event);
        }
    }
    None
}

pub(super) fn frame(link: &mut ShmLink) -> (PeerId, Vec<u8>) {
    match event(link) {
        Some(Event::Frame(f)) => {
            let mut bytes = vec![0; f.len];
            assert_eq!(link.read(&f, 0, &mut bytes), f.len);
            let from = f.from;
            link.release(f);
            (from, bytes)
        }
        other => panic!("no frame but {other:?}"),
    }
}

pub(super) fn closed(link: &mut ShmLink) -> (PeerId, Gone) {
    match event(link) {
        Some(Event::Closed(peer, why)) => (peer, why),
        other => panic!("not closed but {other:?}"),
    }
}

pub(super) fn say(link: &mut ShmLink, to: PeerId, bytes: &[u8]) -> Result<(), Refused> {
    link.send(to, bytes, &[], 0, 0)
}

fn readable(link: &ShmLink, ms: i32) -> bool {
    let mut p = libc::pollfd { fd: link.wait_fd().unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, ms) == 1 }
}

/// Two links that know each other both ways.
pub(super) fn couple() -> (ShmLink, PeerId, ShmLink, PeerId) {
    let (mut a, mut b) = (open(), open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    say(&mut a, to_b, b"hello").unwrap();
    assert_eq!(frame(&mut b), (to_a, b"hello".to_vec()));
    say(&mut b, to_a, b"hi").unwrap();
    assert_eq!(frame(&mut a), (to_b, b"hi".to_vec()));
    (a, to_b, b, to_a)
}

#[test]
fn a_frame_is_its_head_and_the_right_part_of_its_body() {
    let (mut a, to_b, mut b, to_a) = couple();
    let body = [Span::leak(100), Span::leak(0), Span::leak(9000)];
    let text: Vec<u8> = (0..9100).map(|i| (i % 251) as u8).collect();
    hmem::write(&body, 0, &text);
    let into = [Span::leak(64), Span::leak(9000)];
    // Often enough for frames to run over the end of the ring.
    for i in 0..50 {
        let (off, len) = (i * 3, 8500 - i * 7);
        a.send(to_b, b"01234567890123456789", &body, off, len).unwrap();
        let Some(Event::Frame(f)) = event(&mut b) else { panic!("no frame") };
        assert_eq!((f.from, f.len), (to_a, 20 + len));
        let mut head = [0; 20];
        assert_eq!(b.read(&f, 0, &mut head), 20);
        assert_eq!(&head, b"01234567890123456789");
        assert_eq!(b.copy_out(&f, 20, &into, 5, usize::MAX >> 1), len);
        let mut back = vec![0; len];
        hmem::read(&into, 5, &mut back);
        assert!(back == text[off..off + len], "frame {i}");
        assert_eq!(b.copy_out(&f, 20 + len, &into, 0, 1), 0);
        b.release(f);
    }
    let longest = vec![1; a.path(PeerId(0)).max_frame];
    say(&mut a, to_b, &longest).unwrap();
    assert_eq!(frame(&mut b).1, longest);
    assert!(longest.len() >= 10 << 10);
}

#[test]
fn a_full_ring_is_busy_and_an_emptied_one_is_not() {
    let (mut a, to_b, mut b, _) = couple();
    for round in 0..20u32 {
        let mut sent = 0u32;
        while say(&mut a, to_b, &[round.to_le_bytes(), sent.to_le_bytes()].concat()).is_ok() {
            sent += 1;
        }
        assert!(sent > 300, "{sent}");
        assert_eq!(say(&mut a, to_b, b""), Err(Refused::Busy));
        for i in 0..sent {
            assert_eq!(frame(&mut b).1, [round.to_le_bytes(), i.to_le_bytes()].concat());
        }
    }
    // A frame that is not given back is given back by the next poll.
    say(&mut a, to_b, b"1").unwrap();
    say(&mut a, to_b, b"2").unwrap();
    let (Some(Event::Frame(_)), Some(Event::Frame(f))) = (event(&mut b), event(&mut b)) else {
        panic!("no frames")
    };
    let mut byte = [0];
    b.read(&f, 0, &mut byte);
    assert_eq!(&byte, b"2");
}

#[test]
fn an_endpoint_reaches_itself() {
    let mut a = open();
    let addr = a.addr();
    let own = a.peer(&addr);
    for i in 0..2000u32 {
        say(&mut a, own, &i.to_le_bytes()).unwrap();
        assert_eq!(frame(&mut a), (own, i.to_le_bytes().to_vec()));
    }
    assert!(event_none(&mut a));
}

pub(super) fn event_none(link: &mut ShmLink) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(20) {
        if link.poll().is_some() {
            return false;
        }
    }
    true
}

#[test]
fn many_peers_each_in_order() {
    const PEERS: usize = 200;
    let mut hub = open();
    let addr = hub.addr();
    let mut spokes: Vec<ShmLink> = (0..PEERS).map(|_| open()).collect();
    let mut next: HashMap<PeerId, u32> = HashMap::new();
    let mut got = 0;
    for round in 0..100u32 {
        for s in &mut spokes {
            let to = s.peer(&addr);
            say(s, to, &round.to_le_bytes()).unwrap();
        }
        while got < PEERS * (round as usize + 1) {
            let (from, bytes) = frame(&mut hub);
            let next = next.entry(from).or_default();
            assert_eq!(bytes, next.to_le_bytes());
            *next += 1;
            got += 1;
        }
    }
    assert_eq!(next.len(), PEERS);
    for s in &spokes {
        let id = hub.peer(&s.addr());
        say(&mut hub, id, b"back").unwrap();
    }
    for s in &mut spokes {
        assert_eq!(frame(s).1, b"back");
    }
    drop(spokes);
    let ends: Vec<_> = (0..PEERS).map(|_| closed(&mut hub).0).collect();
    assert_eq!(ends.iter().collect::<std::collections::HashSet<_>>().len(), PEERS);
}

/// The next frame, by quick looks where these can tell.
fn glanced(link: &mut ShmLink) -> (PeerId, Vec<u8>) {
    loop {
        match link.poll_frame() {
            PollFrame::Frame(f) => {
                let mut bytes = vec![0; f.len];
                assert_eq!(link.read(&f, 0, &mut bytes), f.len);
                let from = f.from;
                link.release(f);
                return (from, bytes);
            }
            PollFrame::Nothing => {}
            PollFrame::Unknown => return frame(link),
        }
    }
}

#[test]
fn who_fell_silent_is_heard_again_and_nobody_is_talked_down() {
    let mut hub = open();
    let mut others: Vec<ShmLink> = (0..9).map(|_| open()).collect();
    let to_hub: Vec<PeerId> = others.iter_mut().map(|o| o.peer(&hub.addr())).collect();
    for round in 0..3u8 {
        for (n, other) in others.iter_mut().enumerate() {
            say(other, to_hub[n], &[round, n as u8]).unwrap();
            assert_eq!(glanced(&mut hub).1, [round, n as u8]);
        }
        // Nobody sends.
        let begin = Instant::now();
        while hub.hot_len > 1 {
            assert!(hub.poll().is_none() && begin.elapsed() < Duration::from_secs(5));
        }
        assert_eq!((hub.ins.len(), hub.hot_len), (9, 1));
    }
    // One never stops.
    for late in 1..9 {
        let mut before = 0;
        say(&mut others[late], to_hub[late], b"me too").unwrap();
        while before < 1000 {
            say(&mut others[0], to_hub[0], b"again").unwrap();
            let (_, said) = glanced(&mut hub);
            if said == b"me too" {
                break;
            }
            before += 1;
        }
        assert!(before < 100, "heard after {before} others");
        while hub.poll().is_some() {}
    }
}

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

#[test]
fn frames_of_a_peer_that_came_and_went_unseen_are_delivered() {
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
fn a_successor_is_told_from_one_that_never_looked() {
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

#[test]
fn nobody_there_is_busy_for_a_while() {
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
    assert!((60..500).contains(&start.elapsed().as_millis()));
    // The next attempt has its own time, and somebody comes.
    assert_eq!(say(&mut a, to, b"?"), Err(Refused::Busy));
    b = ShmLink::open(OpenOptions { bind: Some(addr.sock()), ..OpenOptions::default() }).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    say(&mut a, to, b"!").unwrap();
    assert_eq!(frame(&mut b).1, b"!");
    let far = a.peer(&Addr::new("192.0.2.1:7".parse().unwrap()));
    assert_eq!(say(&mut a, far, b"?"), Err(Refused::Gone(Gone::Unreachable)));
}

#[test]
fn whoever_serves_every_address_is_reached_by_each() {
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
fn a_sleeper_is_woken_by_each_thing_that_may_happen() {
    let (mut a, mut b) = (open(), open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    // A first connection.
    assert!(b.arm() && !readable(&b, 0));
    say(&mut a, to_b, b"1").unwrap();
    assert!(readable(&b, 1000));
    assert!(!b.arm(), "something is there");
    assert_eq!(frame(&mut b).1, b"1");
    // Frames on a channel that is there, and not twice for one.
    for i in 0..100u8 {
        assert!(b.arm() && !readable(&b, 0));
        say(&mut a, to_b, &[i]).unwrap();
        say(&mut a, to_b, &[i]).unwrap();
        assert!(readable(&b, 1000));
        assert_eq!(frame(&mut b).1, [i]);
        assert!(!b.arm());
        assert_eq!(frame(&mut b).1, [i]);
    }
    // Frames that are there already.
    say(&mut a, to_b, b"2").unwrap();
    assert!(!b.arm());
    assert_eq!(frame(&mut b).1, b"2");
    // Room.
    while say(&mut a, to_b, &[3; 5000]).is_ok() {}
    assert!(a.arm() && !readable(&a, 0));
    // A quarter of the ring, which is when the sender is told.
    (0..LONG_RING / 4 / 5000 + 2).for_each(|_| drop(frame(&mut b)));
    assert!(readable(&a, 1000));
    assert!(a.poll().is_none());
    say(&mut a, to_b, &[3; 5000]).unwrap();
    assert!(!a.arm(), "there is room");
    assert!(a.arm(), "nothing is wanted any more");
    assert!(a.poll().is_none());
    while let Some(Event::Frame(f)) = b.poll() {
        b.release(f);
    }
    // The end.
    assert!(b.arm() && !readable(&b, 0));
    drop(a);
    assert!(readable(&b, 1000));
    assert_eq!(closed(&mut b), (to_a, Gone::Reset));
    assert!(b.arm() && !readable(&b, 0));
}

#[test]
fn two_threads_that_always_sleep_miss_nothing() {
    const ROUNDS: u32 = 20_000;
    let (mut a, to_b, mut b, to_a) = couple();
    let work = |link: &mut ShmLink, to, first: bool| {
        for i in 0..ROUNDS {
            if first || i > 0 {
                say(link, to, &i.to_le_bytes()).unwrap();
            }
            let got = loop {
                match link.poll() {
                    Some(Event::Frame(f)) => {
                        let mut n = [0; 4];
                        link.read(&f, 0, &mut n);
                        link.release(f);
                        break u32::from_le_bytes(n);
                    }
                    Some(e) => panic!("{e:?}"),
                    None => {
                        if link.arm() {
                            assert!(readable(link, 5000), "woken by nobody");
                        }
                    }
                }
            };
            assert_eq!(got, if first { i + 1 } else { i });
        }
        if !first {
            say(link, to, &ROUNDS.to_le_bytes()).unwrap();
        }
    };
    std::thread::scope(|s| {
        s.spawn(|| work(&mut a, to_b, true));
        work(&mut b, to_a, false);
    });
}

#[test]
fn nothing_is_left_open() {
    // Other tests open and close meanwhile, so count only what has one of our names.
    let ours = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|l| l.contains("memfd:strait")).count()
    };
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let alone = std::env::args().any(|a| a.contains("nothing_is_left_open"));
    let before = (fds(), ours());
    for _ in 0..50 {
        let (mut a, to_b, b, _) = couple();
        drop(b);
        assert_eq!(closed(&mut a), (to_b, Gone::Reset));
        if alone {
            // Listener, port, epoll, timer, board and spare of `a`; its channels are gone.
            assert_eq!((fds(), ours()), (before.0 + 6, before.1 + 1));
        }
    }
    if alone {
        assert_eq!((fds(), ours()), before);
    }
}

#[test]
fn a_few_peers_get_a_long_ring_and_more_a_short_one() {
    let mut a = open();
    let others: Vec<ShmLink> = (0..FEW + 2).map(|_| open()).collect();
    let ids: Vec<PeerId> = others.iter().map(|b| a.peer(&b.addr())).collect();
    let ring = |a: &ShmLink, id: PeerId| a.peers[id.0 as usize].out.as_ref().map(|o| o.tx.mem().ring());
    let mut most = vec![0; a.path(PeerId(0)).max_frame];
    for (n, id) in ids.iter().enumerate() {
        // The longest frame fits either.
        say(&mut a, *id, &most).unwrap();
        assert_eq!(ring(&a, *id), Some(if n < FEW { LONG_RING } else { DEFAULT_RING }));
    }
    most.clear();
    // A place that comes free is given away again.
    let late = open();
    let id = a.peer(&late.addr());
    a.peers[ids[3].0 as usize].out = None;
    say(&mut a, id, &most).unwrap();
    assert_eq!(ring(&a, id), Some(LONG_RING));
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
    let peer = &a.peers[to_b.0 as usize];
    let both =
        peer.out.as_ref().unwrap().tx.mem().resident() + peer.inb.as_ref().unwrap().rx.mem().resident();
    assert!(both + size_of::<Peer>() <= 64 << 10, "{both}");
}

#[test]
fn direct_access_and_its_description() {
    let (mut a, to_b, _b, _) = couple();
    let theirs = Span::leak(32);
    hmem::write(&[theirs], 0, b"0123456789abcdefghijklmnopqrstuv");
    let seg = [Seg { addr: theirs.addr().into(), len: 32.into() }];
    let mine = [Span::leak(16)];
    a.get(to_b, Grant::Agreed, &seg, 10, &mine, 2, 6).unwrap();
    let mut back = [0; 16];
    hmem::read(&mine, 0, &mut back);
    assert_eq!(&back, b"\0\0abcdef\0\0\0\0\0\0\0\0");
    a.put(to_b, Grant::Agreed, &seg, 0, &mine, 2, 6).unwrap();
    let mut back = [0; 12];
    hmem::read(&[theirs], 0, &mut back);
    assert_eq!(&back, b"abcdef6789ab");
    let bad = [Seg { addr: 4096.into(), len: 32.into() }];
    assert_eq!(a.get(to_b, Grant::Agreed, &bad, 0, &mine, 0, 8), Err(NoDirect::Memory));
    let pid = std::process::id();
    assert_eq!(a.describe(to_b), format!("shm 508 KiB ring, cma (process_vm_readv) with pid {pid}"));
    let nobody = a.peer(&Addr::new("127.0.0.1:3".parse().unwrap()));
    assert_eq!(a.get(nobody, Grant::Agreed, &seg, 0, &mine, 0, 8), Err(NoDirect::Fault));
    // The kernel gives 0 for a process of another pid namespace.
    if let Some(out) = a.peers[to_b.0 as usize].out.as_mut() {
        out.pid = 0;
    }
    a.peers[to_b.0 as usize].inb = None;
    assert!(a.describe(to_b).contains("frames only: its pid is not visible"), "{}", a.describe(to_b));
    assert_eq!(a.describe(nobody), "shm 124 KiB ring, not connected");
    a.options.cma = false;
    assert_eq!(a.get(to_b, Grant::Agreed, &seg, 0, &mine, 0, 8), Err(NoDirect::Never));
    assert!(a.describe(to_b).contains("frames only"));
}
