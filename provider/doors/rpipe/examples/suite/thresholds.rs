//! Which ways of moving a message of each length a path has, and how long each takes, in turns: what speaks
//! for a threshold between two of them, and where. Between ranks 0 and 1.

use std::sync::atomic::Ordering;
use std::time::Instant;

use strait_rpipe::{Event, Get, Put, Token};

use crate::{Job, moves::hello};

const DATA: usize = 64 << 10;
const FLAG: usize = DATA;
const SOURCE: usize = DATA + 64;
const LEN: usize = DATA + 4096;
const TURNS: usize = 25;
const ROUNDS: usize = 20;
const END: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// From the block, and the flag behind it.
    Put,
    /// The bytes are copied, and the block is free at once.
    Inject,
    /// The block's bytes are fetched, or got.
    Fetch,
    Get,
}

pub fn all(job: &mut Job) {
    assert!(job.size == 2, "this stage takes two processes");
    let peer = 1 - job.rank;
    let region = job.backend.expose(LEN).unwrap();
    let grant = hello(job, peer, region.id);
    let promise = job.backend.promise(peer);
    let flag = |region: &strait_rpipe::Region| region.memory.word(FLAG).load(Ordering::Acquire);
    if job.rank == 1 {
        let mut seen = 0;
        while seen != END {
            let now = flag(&region);
            if now == seen {
                job.backend.progress(&mut job.events).unwrap();
                job.events.clear();
                continue;
            }
            seen = now;
            job.post(|b| b.put_bytes(peer, (grant.remote, FLAG), &seen.to_ne_bytes(), None));
        }
        job.backend.send(peer, b"end", &[]).unwrap();
        return job.until("end", |event| matches!(event, Event::Control { .. }).then_some(()));
    }
    println!("{}: {}; ordered {}, inject {}", promise.path, promise.why, promise.between, promise.inject);
    let mut number = 0;
    let mut once = |job: &mut Job, way: Way, len: usize| {
        number += 1;
        let begun = Instant::now();
        let ended = |job: &mut Job| {
            job.until("end of an operation", |event| match event {
                Event::Done(Token(of)) | Event::Fetched(Token(of), _) if *of == number => Some(()),
                _ => None,
            });
        };
        let token = Token(number);
        match way {
            Way::Put => {
                let put = Put {
                    to: peer,
                    from: (region.id, 0),
                    remote: (grant.remote, 0),
                    len,
                    behind: false,
                    notify: None,
                    token,
                };
                job.post(|b| b.put(&put));
                if !promise.between {
                    ended(job);
                }
            }
            Way::Inject => {
                let mut bytes = vec![0; len];
                region.memory.copy_out(0, &mut bytes);
                job.post(|b| b.put_bytes(peer, (grant.remote, 0), &bytes, None));
            }
            Way::Fetch => {
                job.post(|b| b.fetch_add(peer, (grant.remote, SOURCE), 0, token));
                ended(job);
            }
            Way::Get => {
                let get =
                    Get { from: peer, remote: (grant.remote, SOURCE), to: (region.id, SOURCE), len, token };
                job.post(|b| b.get(&get));
                ended(job);
            }
        }
        if matches!(way, Way::Put | Way::Inject) {
            job.post(|b| b.put_bytes(peer, (grant.remote, FLAG), &number.to_ne_bytes(), None));
            job.while_not("answer", || flag(&region) == number);
            if way == Way::Put && promise.between {
                ended(job);
            }
        }
        begun.elapsed().as_secs_f64() * 1e6
    };
    let mut compare = |job: &mut Job, len: usize, ways: [Way; 2]| {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (way, times) in ways.into_iter().zip(&mut times) {
                times.extend((0..TURNS).map(|_| once(job, way, len)));
            }
        }
        times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
        let [one, other] = times.map(|times| times[times.len() / 2]);
        println!(
            "{len:6} bytes: {:?} {one:8.2} us, {:?} {other:8.2} us, {:.2}",
            ways[0],
            ways[1],
            other / one
        );
    };
    if promise.fetch {
        compare(job, 8, [Way::Get, Way::Fetch]);
    }
    let mut len = 64;
    while promise.between && len <= promise.inject.min(DATA) {
        compare(job, len, [Way::Put, Way::Inject]);
        len *= 2;
    }
    job.post(|b| b.put_bytes(peer, (grant.remote, FLAG), &END.to_ne_bytes(), None));
    job.until("end", |event| matches!(event, Event::Control { .. }).then_some(()));
    job.backend.send(peer, b"end", &[]).unwrap();
}
