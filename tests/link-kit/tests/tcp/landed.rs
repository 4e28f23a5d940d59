//! Frames of many lengths that come in parts of any length, land in parts of memory, are left, or are
//! cancelled; and an end at any byte.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::caller::call;
use crate::pair::{open, options};
use hmem::{Kind, Span};
use link_api::{
    Event, FrameLink as _, FrameSource, Gone, LandAt, Landing, Link as _, OpId, PollFrame, RmaLink as _,
    Setting, SleepLink as _, WaitFd,
};
use link_kit::is_readable;
use wire::Addr;
use wire::session::{COVERED, Next};

const LONGEST: usize = 256 << 10;
const PAGE: usize = 4096;

/// Numbers that are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most.max(1)
    }
}

fn frame(len: usize, number: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + number * 31) as u8).collect()
}

/// A mapping of its own, of which the pages from one on are not to be accessed any more when a frame lands
/// there.
fn mapping(len: usize) -> usize {
    // SAFETY: a mapping of its own, at no given place.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

/// Where a frame goes.
struct Goes {
    op: OpId,
    spans: Vec<Span>,
    bytes: Vec<u8>,
    broken: bool,
}

fn check(goes: &Goes, good: bool) {
    if goes.broken {
        return;
    }
    assert!(good);
    let mut out = vec![0; goes.bytes.len()];
    assert_eq!(hmem::read(&goes.spans, 0, &mut out), out.len());
    assert!(out == goes.bytes, "other bytes");
}

fn run(seed: u64) {
    let mut random = Random(seed);
    let mut link = open(options("key"));
    link.set(Setting::Early);
    let (name, called) = (Addr::new(([127, 0, 0, 1], 1).into()), link.addr());
    let mut stream = TcpStream::connect(called.sock()).unwrap();
    stream.set_nodelay(true).unwrap();
    let Ok(Next::Connected(_, mut keys)) = call(&mut stream, &mut link, name, called, "key") else {
        panic!("not connected")
    };
    let peer = link.peer(&name);
    let frames: Vec<Vec<u8>> = (0..24)
        .map(|number| {
            let len = match random.below(6) {
                0 => random.below(30),
                1 => random.below(2000),
                2 => (16 << 10) - 2 + random.below(4),
                3 => (16 << 10) + random.below(20_000),
                4 => LONGEST - random.below(3),
                _ => random.below(LONGEST),
            };
            frame(len, number)
        })
        .collect();
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for frame in &frames {
        all.extend(keys.sealer.seal(frame.len() as u32, &frame[..frame.len().min(COVERED)]));
        all.extend(frame);
        ends.push(all.len());
    }
    let cut = if random.below(2) == 0 { all.len() } else { random.below(all.len()) };
    all.truncate(cut);
    let whole = ends.iter().filter(|end| **end <= cut).count();
    let mut lengths = Random(seed ^ 77);
    let writer = thread::spawn(move || {
        let mut rest = &all[..];
        while !rest.is_empty() {
            let n = match lengths.below(5) {
                0 => 1 + lengths.below(20),
                1 => 1 + lengths.below(600),
                _ => 1 + lengths.below(200_000),
            };
            let (part, more) = rest.split_at(n.min(rest.len()));
            if stream.write_all(part).is_err() {
                return;
            }
            rest = more;
            if lengths.below(3) == 0 {
                thread::sleep(Duration::from_micros(lengths.below(300) as u64));
            }
        }
    });
    let (mut came, mut goes): (usize, Option<Goes>) = (0, None);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(60), "{came} of {whole} came, of {}", frames.len());
        if random.below(4) == 0 && link.arm() {
            assert!(
                is_readable(link.wait_fd(WaitFd::All).unwrap(), Duration::from_secs(5)),
                "asleep: {came} of {whole}"
            );
        }
        if random.below(6) == 0 {
            link.progress();
        }
        if random.below(8) == 0 && goes.is_some() {
            let gone = goes.take().unwrap();
            link.cancel(gone.op);
            came += 1;
        }
        let found = match random.below(3) {
            0 => match link.poll_frame(FrameSource::Next(peer)) {
                PollFrame::Frame(frame) => Some(Event::Frame(frame)),
                _ => None,
            },
            _ => None,
        };
        let Some(found) = found.or_else(|| link.poll()) else { continue };
        match found {
            Event::Begun(begun) => {
                assert!(goes.is_none());
                let (size, off) = (begun.len, random.below(60));
                assert_eq!(size, frames[came].len());
                if random.below(5) == 0 {
                    link.land(begun, None);
                    continue;
                }
                let len = match random.below(3) {
                    0 => random.below(size - off),
                    _ => size - off,
                };
                let broken = random.below(5) == 0;
                let at = mapping(LONGEST + 40 * PAGE);
                let parts = [1, 2, 14, 15, 16, 17, 30][random.below(7)];
                let each = len.div_ceil(parts);
                let spans: Vec<Span> = (0..parts)
                    .map(|i| {
                        let here = each.min(len.saturating_sub(i * each));
                        // SAFETY: in the mapping, which is never unmapped.
                        unsafe { Span::new(at + i * (each + 16), here, Kind::System) }
                    })
                    .collect();
                let bytes = frames[came][off..off + len].to_vec();
                match link.land(begun, Some(LandAt { off, dst: &spans, doff: 0, len })) {
                    Landing::Over(good) => {
                        check(&Goes { op: OpId(0), spans, bytes, broken: false }, good);
                        came += 1;
                    }
                    Landing::Left => panic!("a frame that was to land was left"),
                    Landing::InFlight(op) => {
                        // Beyond 16 parts the bytes go there by this process's own hand.
                        let broken = broken && parts <= 16;
                        if broken {
                            let from = random.below(len / PAGE + 1) * PAGE;
                            let pages = (1 + random.below(3)) * PAGE;
                            // SAFETY: a part of the mapping, which nothing here accesses but by the kernel.
                            let done =
                                unsafe { libc::mprotect((at + from) as *mut _, pages, libc::PROT_NONE) };
                            assert_eq!(done, 0);
                        }
                        goes = Some(Goes { op, spans, bytes, broken });
                    }
                }
            }
            Event::Done(op, good) => {
                let done = goes.take().expect("one lands");
                assert_eq!(done.op, op);
                if came < whole {
                    check(&done, good);
                    came += 1;
                } else {
                    assert!(!good);
                    came = usize::MAX;
                }
            }
            Event::Frame(frame) => {
                assert!(goes.is_none());
                let mut out = vec![0; frame.len];
                assert_eq!(link.read(&frame, 0, &mut out), frame.len);
                assert!(out == frames[came], "frame {came}");
                link.release(frame);
                came += 1;
            }
            Event::Closed(of, why) => {
                assert_eq!((of, why), (peer, Gone::Reset));
                assert!(goes.is_none(), "nothing was told");
                assert!(came >= whole, "{came} of {whole} came");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    writer.join().unwrap();
}

#[test]
fn frames_of_any_length_come_in_any_parts() {
    let most = std::env::var("SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let first = std::env::var("SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    for seed in first..first + most {
        println!("seed {seed}");
        run(seed);
    }
}
