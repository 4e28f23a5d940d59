//! Sleeping on the descriptor, and what wakes; and that nothing stays open.

use link_api::{Event, FrameLink as _, Gone, Link as _, SleepLink as _, WaitFd};

use super::LONG_RING;
use super::ShmLink;
use crate::shm::tests::{closed, couple, frame, open, say};

pub(super) fn readable(link: &ShmLink, ms: i32) -> bool {
    let mut p = libc::pollfd { fd: link.wait_fd(WaitFd::All).unwrap(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, ms) == 1 }
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
    // A quarter of the ring, by when the position was published.
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
fn two_threads_that_always_sleep_miss_no_frame() {
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
                            assert!(readable(link, 5000), "not woken");
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
            // Listener, port, epoll, timer, MR table and spare of `a`; its channels are gone.
            assert_eq!((fds(), ours()), (before.0 + 6, before.1 + 1));
        }
    }
    if alone {
        assert_eq!((fds(), ours()), before);
    }
}
