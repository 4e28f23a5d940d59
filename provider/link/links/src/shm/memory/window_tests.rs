use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hmem::share::FileAt;
use link_api::{Link, Refused};

use crate::shm::ShmLink;
use crate::shm::memory::windows::{MOST_BARE, WindowId, Windows};
use crate::shm::options::OpenOptions;
use crate::shm::tests::{event_none, frame, say};

fn open(windows: &Arc<Windows>) -> ShmLink {
    ShmLink::open(OpenOptions {
        bind: Some("127.0.0.1:0".parse().unwrap()),
        windows: Some(Arc::clone(windows)),
        connect_timeout: Duration::ZERO,
        ..OpenOptions::default()
    })
    .unwrap()
}

/// Two links, each with windows of its own.
fn pair() -> (ShmLink, Arc<Windows>, ShmLink, Arc<Windows>) {
    let (a, b) = (Arc::new(Windows::new().unwrap()), Arc::new(Windows::new().unwrap()));
    (open(&a), a, open(&b), b)
}

/// Asks until `done` says so.
fn until(a: &mut ShmLink, b: &mut ShmLink, id: WindowId, done: impl Fn() -> bool) {
    let peer = a.peer(&b.addr());
    let begin = Instant::now();
    while !done() {
        a.want(peer, id).unwrap();
        assert!(a.poll().is_none() && b.poll().is_none());
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing came");
    }
}

#[test]
fn a_window_comes_on_demand_and_outlives_its_maker() {
    let (mut a, at_a, mut b, at_b) = pair();
    let (id, here) = at_b.create(8192, None).unwrap();
    assert!(at_a.find(id).is_none());
    until(&mut a, &mut b, id, || at_a.find(id).is_some());
    let there = at_a.find(id).unwrap();
    assert_eq!((there.len(), here.len()), (8192, 8192));
    assert_ne!(there.base(), here.base());
    // SAFETY: the two mappings of the window, both alive.
    unsafe {
        there.base().add(5000).write_volatile(77);
        assert_eq!(here.base().add(5000).read_volatile(), 77);
    }
    at_b.remove(id);
    drop((here, b));
    // SAFETY: as above; the memory lives while anybody maps it.
    assert_eq!(unsafe { there.base().add(5000).read_volatile() }, 77);
    // While it is in use it stays; then it goes.
    at_a.forget(id);
    assert!(at_a.find(id).is_some());
    drop(there);
    at_a.forget(id);
    assert!(at_a.find(id).is_none());
}

#[test]
fn a_window_that_does_not_exist_is_denied() {
    let (mut a, at_a, mut b, at_b) = pair();
    let gone = WindowId { maker: at_b.maker(), number: 9 };
    until(&mut a, &mut b, gone, || at_a.denied(gone));
    // Another maker's, which this peer has mapped but may not pass on.
    let strange = WindowId { maker: 1, number: 1 };
    until(&mut a, &mut b, strange, || at_a.denied(strange));
    // A maker that does not exist.
    let addr = b.addr();
    drop(b);
    let mut c = open(&at_a);
    let peer = c.peer(&addr);
    assert!(matches!(c.want(peer, gone), Err(Refused::Gone(_))));
}

#[test]
fn a_window_whose_descriptor_does_not_come_is_denied_in_the_end() {
    let (mut a, at_a, mut b, at_b) = pair();
    let peer = a.peer(&b.addr());
    say(&mut a, peer, b"hello").unwrap();
    assert_eq!(frame(&mut b).1, b"hello");
    let (id, _here) = at_b.create(4096, None).unwrap();
    a.want(peer, id).unwrap();
    for n in 1..=MOST_BARE {
        assert!(!at_a.denied(id), "after {n} answers");
        at_a.granted(id, None, a.addr(), b.addr());
    }
    assert!(at_a.denied(id));
    // It is not asked for again.
    assert!(!at_a.ask(id));
}

#[test]
fn a_window_at_an_address_takes_no_other_memory() {
    let windows = Windows::new().unwrap();
    let (_, taken) = windows.create(4096, None).unwrap();
    let at = taken.base() as usize;
    assert!(windows.create(4096, Some(at)).is_err());
    // Another thread of the tests may map something there first.
    let is_taken = (0..100).any(|_| {
        let (id, free) = windows.create(4096, None).unwrap();
        let at = free.base() as usize;
        windows.remove(id);
        drop(free);
        windows.create(4096, Some(at)).is_ok_and(|(_, window)| window.base() as usize == at)
    });
    assert!(is_taken, "no address that was free");
    // Over what is mapped, if that is what is asked for, and no more than that.
    let (_, pages) = windows.create(3 * 4096, None).unwrap();
    let at = pages.base() as usize + 4096;
    let byte = |n: usize| pages.base().wrapping_add(n * 4096);
    // SAFETY: the middle page is replaced by what goes before `pages`; all are mapped, and used by this test
    // alone.
    unsafe {
        (0..3).for_each(|n| byte(n).write_volatile(7));
        let (_, over) = windows.create_over(4096, at).unwrap();
        assert_eq!(over.base() as usize, at);
        assert_eq!((0..3).map(|n| byte(n).read_volatile()).collect::<Vec<_>>(), [7, 0, 7]);
        assert!(windows.create_over(4096, at + 1).is_err());
        assert_eq!(byte(1).read_volatile(), 0);
    }
}

#[test]
fn a_window_that_was_not_asked_for_is_not_taken() {
    let (mut a, at_a, mut b, at_b) = pair();
    let peer = a.peer(&b.addr());
    say(&mut a, peer, b"hello").unwrap();
    let (_, bytes) = frame(&mut b);
    assert_eq!(bytes, b"hello");
    let (id, _here) = at_b.create(4096, None).unwrap();
    let from_b = b.peer(&a.addr());
    at_b.grant(&b.channels.peers[from_b.0].inb.as_ref().unwrap().sock, id, b.addr());
    assert!(event_none(&mut a));
    assert!(at_a.find(id).is_none());
}

#[test]
fn a_packed_frame_arrives_over_the_end_of_the_ring() {
    let (mut a, _, mut b, _) = pair();
    let peer = a.peer(&b.addr());
    let (mut direct, mut wrapped) = (0, 0);
    for i in 0..2000usize {
        let n = 1 + i * 37 % 3000;
        let scratch = a.channels.sending.scratch().capacity();
        let at = a.channels.sending.scratch().as_ptr() as usize;
        // SAFETY: `n` bytes, of 3000 there is room for.
        let sent = unsafe {
            a.send_packed(peer, &[9, i as u8], 3000, |to| {
                if scratch > 0 && to as usize == at {
                    wrapped += 1
                } else {
                    direct += 1
                }
                to.write_bytes(i as u8, n);
                n
            })
        };
        assert_eq!(sent, Ok(n));
        // The receiver stays behind, so that laps do not end early.
        let Some(i) = i.checked_sub(40) else { continue };
        let n = 1 + i * 37 % 3000;
        let (_, bytes) = frame(&mut b);
        assert_eq!(bytes[..2], [9, i as u8]);
        assert!(bytes.len() == n + 2 && bytes[2..].iter().all(|x| *x == i as u8));
    }
    assert!(direct > 100 && wrapped > 2, "{direct} {wrapped}");
    assert!(a.room(peer, 3000).is_ok());
}

#[test]
fn a_window_is_fetched_without_a_channel() {
    let (ours, theirs) = (Windows::new().unwrap(), Windows::new().unwrap());
    let (id, mapping) = theirs.create(8192, None).unwrap();
    let (at, pid) = (theirs.place(id.number).unwrap(), std::process::id() as i32);
    assert_eq!(theirs.place(id.number + 1), None);
    // Another file has the number by now; there is none.
    assert!(ours.fetch(id, pid, FileAt { file: [0; 2], ..at }).is_err());
    assert!(ours.fetch(id, pid, FileAt { fd: 9999, ..at }).is_err());
    let here = ours.fetch(id, pid, at).unwrap();
    // SAFETY: both are mappings of that many bytes.
    unsafe {
        mapping.base().add(8191).write_volatile(7);
        assert_eq!((here.len(), here.base().add(8191).read_volatile()), (8192, 7));
    }
    assert!(ours.find(id).is_some() && ours.fetch(id, pid, FileAt { fd: -1, ..at }).is_ok());
    // What is no window is refused.
    let fd: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    let other = WindowId { number: 9, ..id };
    assert!(ours.fetch(other, pid, FileAt::of(&fd).unwrap()).unwrap_err().contains("no memfd"));
}
