//! Long frames of which a part is there: where their bytes go, and what becomes of them when that ends early.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use crate::caller::call;
use crate::pair::{event, open, options, say, take, until};
use hmem::Span;
use link::TcpLink;
use link_api::{
    Event, Frame, FrameLink, Gone, LandAt, Landing, Link, OpId, Parting, Path, RmaLink, Setting, SleepLink,
    WaitFd,
};
use link_kit::is_readable;
use wire::Addr;
use wire::session::{COVERED, Next, Sealer};

const LEN: usize = 200_000;
const HEAD: usize = 20;

/// A connection by hand to a link that tells of frames early.
struct Ends {
    stream: TcpStream,
    sealer: Sealer,
    link: TcpLink,
    /// Only goes on, for nothing.
    other: TcpLink,
}

/// The bytes of a frame.
fn frame() -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect()
}

impl Ends {
    fn new() -> Ends {
        let mut link = open(options("key"));
        link.set(Setting::Early);
        let name = Addr::new(([127, 0, 0, 1], 1).into());
        let mut stream = TcpStream::connect(link.addr().sock()).unwrap();
        let called = link.addr();
        let Ok(Next::Connected(_, keys)) = call(&mut stream, &mut link, name, called, "key") else {
            panic!("not connected")
        };
        Ends { stream, sealer: keys.sealer, link, other: open(options("key")) }
    }

    fn record(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut record = self.sealer.seal(frame.len() as u32, &frame[..frame.len().min(COVERED)]).to_vec();
        record.extend(frame);
        record
    }

    /// The first bytes of the frame's record arrive, and the link tells of it; what is still to come of it.
    fn begin(&mut self, bytes: usize) -> (Frame, Vec<u8>) {
        let record = self.record(&frame());
        self.stream.write_all(&record[..bytes]).unwrap();
        match event(&mut self.link, &mut self.other) {
            Event::Begun(begun) => {
                assert_eq!(begun.len, LEN);
                let mut front = [0; Path::FRONT];
                assert_eq!(self.link.read(&begun, 0, &mut front), Path::FRONT);
                assert_eq!(front, frame()[..Path::FRONT]);
                (begun, record[bytes..].to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    /// Likewise, and its bytes behind a head go to `dst`.
    fn begin_landing(&mut self, bytes: usize, dst: Span) -> (OpId, Vec<u8>) {
        let (begun, rest) = self.begin(bytes);
        match self.link.land(begun, Some(LandAt { off: HEAD, dst: &[dst], doff: 0, len: dst.len() })) {
            Landing::InFlight(op) => (op, rest),
            over => panic!("{over:?}"),
        }
    }

    fn nothing_comes(&mut self) {
        for _ in 0..100 {
            let found = self.link.poll();
            assert!(found.is_none(), "{found:?}");
        }
    }

    /// A short frame behind it is what it is.
    fn goes_on(&mut self) {
        let record = self.record(b"behind");
        self.stream.write_all(&record).unwrap();
        assert_eq!(take(&mut self.link, &mut self.other).1, b"behind");
    }
}

fn bytes(span: Span) -> Vec<u8> {
    let mut out = vec![0; span.len()];
    assert_eq!(hmem::read(&[span], 0, &mut out), span.len());
    out
}

#[test]
fn the_bytes_of_a_frame_go_where_they_belong_as_they_come() {
    for len in [LEN - HEAD, LEN - HEAD - 1000, 5000, 100, 0] {
        let mut ends = Ends::new();
        let dst = Span::leak(len);
        let (op, rest) = ends.begin_landing(30_000, dst);
        let (second, last) = rest.split_at(100_000);
        ends.stream.write_all(second).unwrap();
        // What has come is there, before the rest is.
        let there = len.min(130_000 - 16 - HEAD);
        until("the second part", || {
            assert!(ends.link.poll().is_none(), "it is not whole");
            bytes(dst)[..there] == frame()[HEAD..HEAD + there]
        });
        ends.stream.write_all(last).unwrap();
        let done = event(&mut ends.link, &mut ends.other);
        assert!(matches!(done, Event::Done(of, true) if of == op), "{done:?}");
        assert_eq!(bytes(dst), frame()[HEAD..HEAD + len]);
        ends.goes_on();
    }
}

/// A long frame behind few short ones stays with the kernel but for its front.
/// What a rendezvous says between two long frames is short. Bytes that are received with the front of a long
/// frame are copied once more.
#[test]
fn long_frame_behind_short_ones_stays_in_the_kernel_but_its_front() {
    for (short, least) in [(0, 30_000 - 400), (1, 30_000 - 400), (3, 30_000 - 400), (4, 0)] {
        let mut ends = Ends::new();
        let dst = Span::leak(LEN - HEAD);
        let (_, rest) = ends.begin_landing(30_000, dst);
        ends.stream.write_all(&rest).unwrap();
        assert!(matches!(event(&mut ends.link, &mut ends.other), Event::Done(_, true)));
        (0..short).for_each(|_| ends.goes_on());
        let (begun, _) = ends.begin(30_000);
        let socket = ends.link.socket(begun.from).expect("a connection").try_clone_to_owned().unwrap();
        let left = TcpStream::from(socket).peek(&mut [0; 30_000]).unwrap_or(0);
        assert!(left >= least && (least > 0 || left == 0), "{left} bytes behind {short} short frames");
    }
}

/// Bytes with the kernel of a connection.
fn left(stream: &TcpStream) -> usize {
    stream.peek(&mut vec![0; 2 * LEN]).unwrap_or(0)
}

#[test]
fn the_front_of_the_next_frame_comes_with_the_end_of_the_one_that_lands() {
    let short = b"behind".as_slice();
    for (long, there) in
        [(true, 0), (true, 10), (true, 300), (true, LEN), (false, 0), (false, 10), (false, 22)]
    {
        for room in [LEN - HEAD, LEN - HEAD - 1] {
            let mut ends = Ends::new();
            let dst = Span::leak(room);
            let (op, rest) = ends.begin_landing(30_000, dst);
            let next = if long { frame() } else { short.to_vec() };
            let record = ends.record(&next);
            ends.stream.write_all(&[&rest, &record[..there]].concat()).unwrap();
            let peer = ends.link.peer(&Addr::new(([127, 0, 0, 1], 1).into()));
            let socket = TcpStream::from(ends.link.socket(peer).unwrap().try_clone_to_owned().unwrap());
            until("all with the kernel", || left(&socket) == rest.len() + there);
            let done = event(&mut ends.link, &mut ends.other);
            assert!(matches!(done, Event::Done(of, true) if of == op), "{done:?}");
            assert_eq!(bytes(dst), frame()[HEAD..HEAD + room]);
            // Behind bytes that belong nowhere it is left.
            let taken = if room == LEN - HEAD { there.min(16 + COVERED) } else { 0 };
            assert_eq!(left(&socket), there - taken, "{there} bytes were behind");
            ends.stream.write_all(&record[there..]).unwrap();
            let mut found = event(&mut ends.link, &mut ends.other);
            if let Event::Begun(begun) = found {
                assert!(long);
                ends.link.land(begun, None);
                found = event(&mut ends.link, &mut ends.other);
            }
            let Event::Frame(whole) = found else { panic!("{found:?}") };
            let mut out = vec![0; whole.len];
            assert_eq!(ends.link.read(&whole, 0, &mut out), next.len());
            ends.link.release(whole);
            assert!(out == next, "another frame behind");
            ends.goes_on();
        }
    }
}

#[test]
fn a_frame_of_some_kib_behind_a_long_one_takes_few_looks() {
    let mut ends = Ends::new();
    let (_, rest) = ends.begin_landing(30_000, Span::leak(LEN - HEAD));
    ends.stream.write_all(&rest).unwrap();
    assert!(matches!(event(&mut ends.link, &mut ends.other), Event::Done(_, true)));
    let (frame, mut looks) = (vec![7; 12_000], 0);
    let record = ends.record(&frame);
    ends.stream.write_all(&record).unwrap();
    until("a frame", || {
        looks += 1;
        match ends.link.poll() {
            None => false,
            Some(Event::Frame(found)) => {
                assert_eq!(found.len, frame.len());
                ends.link.release(found);
                true
            }
            Some(other) => panic!("{other:?}"),
        }
    });
    assert!(looks <= 8, "{looks} looks");
}

/// As a sender's next bytes may take longer than some looks. It is not left there for good, since the kernel
/// may have room for no more.
#[test]
fn a_frame_that_does_not_grow_stays_with_the_kernel_for_some_looks() {
    let mut ends = Ends::new();
    let (begun, rest) = ends.begin(100_000);
    let socket = ends.link.socket(begun.from).expect("a connection").try_clone_to_owned().unwrap();
    let stream = TcpStream::from(socket);
    let left = || stream.peek(&mut [0; 100_000]).unwrap_or(0);
    ends.link.land(begun, None);
    (0..32).for_each(|_| assert!(ends.link.poll().is_none()));
    assert!(left() >= 100_000 - 32_768, "{} bytes are left", left());
    ends.nothing_comes();
    assert_eq!(left(), 0);
    ends.stream.write_all(&rest).unwrap();
    let (_, whole) = take(&mut ends.link, &mut ends.other);
    assert_eq!(whole, frame());
}

/// What is with the kernel makes the descriptor readable.
#[test]
fn a_frame_that_is_left_wakes_a_sleeper_few_times() {
    let mut ends = Ends::new();
    let (begun, rest) = ends.begin(100_000);
    ends.link.land(begun, None);
    let (some, last) = rest.split_at(10);
    for part in some.chunks(1) {
        let mut wakes = 0;
        loop {
            assert!(ends.link.poll().is_none(), "it is not whole");
            if ends.link.arm() && !is_readable(ends.link.wait_fd(WaitFd::All).unwrap(), Duration::ZERO) {
                break;
            }
            wakes += 1;
        }
        assert!(wakes <= 8, "woken {wakes} times");
        ends.stream.write_all(part).unwrap();
        assert!(
            is_readable(ends.link.wait_fd(WaitFd::All).unwrap(), crate::pair::PATIENCE),
            "a byte causes no wake-up"
        );
    }
    ends.stream.write_all(last).unwrap();
    assert_eq!(take(&mut ends.link, &mut ends.other).1, frame());
}

#[test]
fn a_frame_that_is_left_comes_when_it_is_whole() {
    let mut ends = Ends::new();
    let (begun, rest) = ends.begin(1000);
    ends.link.land(begun, None);
    let (some, last) = rest.split_at(150_000);
    ends.stream.write_all(some).unwrap();
    ends.nothing_comes();
    ends.stream.write_all(last).unwrap();
    assert_eq!(take(&mut ends.link, &mut ends.other).1, frame());
    ends.goes_on();
}

#[test]
fn nothing_goes_where_it_belonged_once_that_is_cancelled() {
    let mut ends = Ends::new();
    let dst = Span::leak(LEN - HEAD);
    let (op, rest) = ends.begin_landing(30_000, dst);
    ends.link.cancel(op);
    let before = bytes(dst);
    ends.stream.write_all(&rest).unwrap();
    // It was given up, and its end is told to nothing.
    ends.goes_on();
    assert_eq!(bytes(dst), before, "something was put there");
}

#[test]
fn a_frame_whose_rest_never_comes_ends_before_the_peer() {
    for by_peer in [true, false] {
        let mut ends = Ends::new();
        let dst = Span::leak(LEN - HEAD);
        let (op, rest) = ends.begin_landing(30_000, dst);
        ends.stream.write_all(&rest[..1000]).unwrap();
        if by_peer {
            ends.stream.shutdown(std::net::Shutdown::Both).unwrap();
        } else {
            let peer = ends.link.peer(&Addr::new(([127, 0, 0, 1], 1).into()));
            ends.link.dismiss(peer, Parting::CutOff);
        }
        let done = event(&mut ends.link, &mut ends.other);
        assert!(matches!(done, Event::Done(of, false) if of == op), "{done:?}");
        let end = event(&mut ends.link, &mut ends.other);
        assert!(matches!(end, Event::Closed(_, Gone::Reset | Gone::Denied)), "{end:?}");
    }
}

#[test]
fn short_frames_and_those_of_links_that_were_not_asked_to_come_whole() {
    let mut ends = Ends::new();
    ends.goes_on();
    // A link that was not asked to tell of beginnings: whole, however long.
    let to_other = ends.link.peer(&ends.other.addr());
    say(&mut ends.link, to_other, &mut [&mut ends.other], &frame());
    assert_eq!(take(&mut ends.other, &mut ends.link).1, frame());
    let short = vec![5; 9000];
    let record = ends.record(&short);
    ends.stream.write_all(&record[..8000]).unwrap();
    ends.nothing_comes();
    ends.stream.write_all(&record[8000..]).unwrap();
    assert_eq!(take(&mut ends.link, &mut ends.other).1, short);
}

#[test]
fn memory_that_is_gone_ends_the_operation_and_not_the_connection() {
    const PAGE: usize = 4096;
    // SAFETY: a mapping of its own, at no given place.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 64 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: it is mapped until the end of the test, and the link leaves it to the kernel to see that its
    // rear may not be written.
    let dst = unsafe { Span::new(at as usize, LEN - HEAD, hmem::Kind::System) };
    let mut ends = Ends::new();
    let (op, rest) = ends.begin_landing(30_000, dst);
    // SAFETY: the mapping's own rear.
    assert_eq!(unsafe { libc::mprotect(at.byte_add(16 * PAGE), 48 * PAGE, libc::PROT_NONE) }, 0);
    ends.stream.write_all(&rest).unwrap();
    let done = event(&mut ends.link, &mut ends.other);
    assert!(matches!(done, Event::Done(of, false) if of == op), "{done:?}");
    ends.goes_on();
}
