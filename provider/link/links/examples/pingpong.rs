//! Ping-pong of small frames between two processes on two cores, against the same with one bare
//! cache line each way, in the same run.
//!
//! `cargo run --release -p strait-link --example pingpong [core] [core] [rounds]`

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hmem::Span;
use link::{OpenOptions, ShmLink};
use link_api::{Event, FrameLink, Link, PeerId};

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let cores = [args.next().unwrap_or(0), args.next().unwrap_or(1)];
    let rounds = args.next().unwrap_or(20_000);
    let lines = Lines::map();
    let mut here = ShmLink::open(local()).unwrap();
    let mine = here.addr();
    // SAFETY: no other thread runs yet, so the child may go on as if it had been started.
    let child = unsafe { libc::fork() };
    if child == 0 {
        pin(cores[1]);
        drop(here);
        let mut link = ShmLink::open(local()).unwrap();
        let to = link.peer(&mine);
        send(&mut link, to);
        for _ in 0..TRIES {
            for i in 1..=rounds {
                lines.wait(0, i as u64);
                lines.set(1, i as u64);
            }
            lines.set(0, 0);
            for _ in 0..rounds {
                receive(&mut link);
                send(&mut link, to);
            }
        }
        std::process::exit(0);
    }
    pin(cores[0]);
    let to = receive(&mut here);
    let (mut ratios, mut raws, mut frames) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TRIES {
        let raw = time(rounds, |i| {
            lines.set(0, i);
            lines.wait(1, i);
        });
        lines.wait(0, 0);
        lines.set(1, 0);
        let ours = time(rounds, |_| {
            send(&mut here, to);
            receive(&mut here);
        });
        ratios.push(ours / raw);
        raws.push(raw);
        frames.push(ours);
    }
    for (what, v) in
        [("cache line, ns", &mut raws), ("frame of 28 B, ns", &mut frames), ("ratio", &mut ratios)]
    {
        v.sort_by(f64::total_cmp);
        println!("one way {what:18} least {:7.2}  median {:7.2}", v[0], v[TRIES / 2]);
    }
    busy_work(&mut ShmLink::open(local()).unwrap());
}

const TRIES: usize = 51;

/// What one side's work costs with no other core involved: a link that talks to itself.
fn busy_work(link: &mut ShmLink) {
    let addr = link.addr();
    let own = link.peer(&addr);
    let n = 1_000_000;
    let pair = time(n, |_| {
        send(link, own);
        receive(link);
    });
    let start = Instant::now();
    let empty = 10_000_000;
    for _ in 0..empty {
        assert!(link.poll().is_none());
    }
    let poll = start.elapsed().as_nanos() as f64 / f64::from(empty);
    let body = [Span::leak(8)];
    let (mut sent, mut spent) = (0u32, 0);
    for _ in 0..10_000 {
        let start = Instant::now();
        for _ in 0..100 {
            link.send(own, &[0; 20], &body, 0, 8).unwrap();
        }
        spent += start.elapsed().as_nanos();
        for _ in 0..100 {
            receive(link);
        }
        sent += 100;
    }
    let send = spent as f64 / f64::from(sent);
    println!("one core: send+receive {:.1} ns, send alone {send:.1} ns, empty poll {poll:.1} ns", pair * 2.0);
}

fn local() -> OpenOptions {
    OpenOptions { bind: Some("127.0.0.1:0".parse().unwrap()), ..OpenOptions::default() }
}

thread_local!(static BODY: Span = Span::leak(8));

fn send(link: &mut ShmLink, to: PeerId) {
    let body = [BODY.with(|b| *b)];
    while link.send(to, &[7; 20], &body, 0, 8).is_err() {}
}

fn receive(link: &mut ShmLink) -> PeerId {
    loop {
        match link.poll() {
            Some(Event::Frame(frame)) => {
                let mut bytes = [0; 28];
                assert_eq!(link.read(&frame, 0, &mut bytes), 28);
                let from = frame.from;
                link.release(frame);
                return from;
            }
            Some(Event::Closed(..)) => panic!("closed"),
            Some(Event::PathChanged(_)) => {}
            Some(Event::Done(..) | Event::Cut(_) | Event::Written(..) | Event::Begun(_)) => {
                panic!("no copy was started, and no frame asked for early")
            }
            None => spin_loop(),
        }
    }
}

/// Nanoseconds one way.
fn time(rounds: i64, mut round: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    for i in 1..=rounds {
        round(i as u64);
    }
    start.elapsed().as_nanos() as f64 / rounds as f64 / 2.0
}

fn pin(core: i64) {
    // SAFETY: a `cpu_set_t` is plain data, for which zeros are a value; the call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Two shared words, far apart.
#[derive(Clone, Copy)]
struct Lines(&'static [AtomicU64; 512]);

impl Lines {
    fn map() -> Lines {
        // SAFETY: a new shared page, zeroed, never unmapped; any bytes are atomic numbers.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let page = libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            Lines(&*page.cast())
        }
    }

    fn set(self, which: usize, v: u64) {
        self.0[which * 64].store(v, Ordering::Release);
    }

    fn wait(self, which: usize, v: u64) {
        while self.0[which * 64].load(Ordering::Acquire) != v {
            spin_loop();
        }
    }
}
