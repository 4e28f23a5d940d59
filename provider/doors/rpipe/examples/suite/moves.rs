//! The backend itself, between ranks 0 and 1.

use std::sync::atomic::Ordering;

use strait_rpipe::{Error, Event, Get, Grant, Memory, Promise, Put, RegionId, RemoteId, Token};

use crate::Job;

/// Data, then a page with the words.
const DATA: usize = 1 << 20;
const FLAG: usize = DATA;
const COUNT: usize = DATA + 64;
/// Where flags are sent from.
const SOURCE: usize = DATA + 128;
const LEN: usize = DATA + 4096;
const LENGTHS: [usize; 9] = [8, 1, 40, 64, 200, 1000, 4096, 70_001, DATA];
const ROUNDS: u64 = 60;

fn pattern(round: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (round.wrapping_mul(31) + at.wrapping_mul(7) + (at >> 8)) as u8).collect()
}

/// Rank 0 greets first: rank 1 answers a peer that was not introduced to it.
pub fn hello(job: &mut Job, peer: u32, region: RegionId) -> Grant {
    let first = if job.rank == 1 { Some(greeted(job, peer)) } else { None };
    job.post(|backend| backend.send(peer, b"hello", &[region]));
    first.unwrap_or_else(|| greeted(job, peer))
}

/// The grant in a greeting.
fn greeted(job: &mut Job, peer: u32) -> Grant {
    job.until("greeting", |event| match event {
        Event::Control { from, bytes, grants } if *from == peer && bytes == b"hello" => {
            Some(grants[0].clone())
        }
        _ => None,
    })
}

pub fn all(job: &mut Job) {
    assert!(job.size == 2, "this stage takes two processes");
    let peer = 1 - job.rank;
    let region = job.backend.expose(LEN).unwrap();
    for at in (0..LEN).step_by(8) {
        assert_eq!(region.memory.word(at).load(Ordering::Relaxed), 0, "memory is zero at first");
    }
    let grant = hello(job, peer, region.id);
    assert_eq!(grant.len, LEN);
    let promise = job.backend.promise(peer);
    if job.rank == 0 {
        println!("{promise:?}");
    }
    assert!(promise.inject >= 64 && promise.most >= LEN, "{promise:?}");
    let way = Way { peer, region: region.id, memory: region.memory.clone(), remote: grant.remote, promise };
    for round in 1..=ROUNDS {
        let len = LENGTHS[round as usize % LENGTHS.len()];
        if job.rank == 0 {
            region.memory.copy_in(0, &pattern(round, len));
            way.write(job, round, len);
            // The answer comes as few bytes.
            job.while_not("answer", || region.memory.word(FLAG).load(Ordering::Acquire) == round);
        } else {
            job.while_not("flag", || region.memory.word(FLAG).load(Ordering::Acquire) == round);
            let mut bytes = vec![0; len];
            region.memory.copy_out(0, &mut bytes);
            assert!(bytes == pattern(round, len), "round {round}: {len} bytes, wrong behind the flag");
            job.post(|b| b.put_bytes(peer, (way.remote, FLAG), &round.to_ne_bytes(), None));
        }
    }
    way.read(job);
    way.notify(job);
    way.fetch(job);
    way.messages(job);
    way.wrong(job);
    way.leave(job);
}

struct Way {
    peer: u32,
    region: RegionId,
    memory: Memory,
    remote: RemoteId,
    promise: Promise,
}

impl Way {
    fn put(&self, from: usize, to: usize, len: usize, token: u64) -> Put {
        Put {
            to: self.peer,
            from: (self.region, from),
            remote: (self.remote, to),
            len,
            behind: false,
            notify: None,
            token: Token(token),
        }
    }

    fn done(&self, job: &mut Job, token: u64) {
        job.until("completion", |event| match event {
            Event::Done(Token(done)) if *done == token => Some(()),
            Event::Failed(Token(done), e) if *done == token => panic!("operation {token}: {e}"),
            _ => None,
        });
    }

    /// Data, and a flag that is visible after it by what the path promises.
    fn write(&self, job: &mut Job, round: u64, len: usize) {
        let data = self.put(0, 0, len, 2 * round);
        job.post(|backend| backend.put(&data));
        let ordered = self.promise.between;
        if !ordered {
            assert!(self.promise.delivered, "a path has to order writes, or to say when one is visible");
            self.done(job, 2 * round);
        }
        if round % 2 == 0 {
            job.post(|b| b.put_bytes(self.peer, (self.remote, FLAG), &round.to_ne_bytes(), None));
        } else {
            self.memory.copy_in(SOURCE, &round.to_ne_bytes());
            let flag = Put { behind: ordered, ..self.put(SOURCE, FLAG, 8, 2 * round + 1) };
            job.post(|backend| backend.put(&flag));
            self.done(job, 2 * round + 1);
        }
        if ordered {
            self.done(job, 2 * round);
        }
    }

    fn read(&self, job: &mut Job) {
        let memory = &self.memory;
        self.meet(job, b"read");
        if job.rank == 0 {
            for (n, len) in LENGTHS.into_iter().enumerate() {
                let (token, to) = (Token(1000 + n as u64), (self.region, 0));
                let last = LENGTHS[ROUNDS as usize % LENGTHS.len()];
                let len = len.min(last);
                let get = Get { from: self.peer, remote: (self.remote, 0), to, len, token };
                memory.copy_in(0, &vec![0xee; len]);
                job.post(|backend| backend.get(&get));
                self.done(job, token.0);
                let mut bytes = vec![0; len];
                memory.copy_out(0, &mut bytes);
                assert!(bytes == pattern(ROUNDS, len), "read of {len} bytes");
            }
        }
        self.meet(job, b"was read");
    }

    /// A message each way.
    fn meet(&self, job: &mut Job, word: &[u8]) {
        job.post(|backend| backend.send(self.peer, word, &[]));
        job.until("message", |event| match event {
            Event::Control { from, bytes, .. } if *from == self.peer && bytes == word => Some(()),
            _ => None,
        });
    }

    fn notify(&self, job: &mut Job) {
        if !self.promise.notify {
            return;
        }
        const COUNT: u32 = 100;
        for n in 0..COUNT {
            let data = 0xff00_0000 | n;
            if job.rank == 0 {
                let put = Put { notify: Some(data), ..self.put(0, 0, 4096, 2000 + u64::from(n)) };
                match n % 2 {
                    0 => job.post(|backend| backend.put(&put)),
                    _ => job.post(|b| b.put_bytes(self.peer, (self.remote, 0), b"bytes", Some(data))),
                }
                if n % 2 == 0 {
                    self.done(job, 2000 + u64::from(n));
                }
            } else {
                job.until("notification", |event| match event {
                    Event::Notified { from, data: got } if *from == self.peer && *got == data => Some(()),
                    _ => None,
                });
            }
        }
    }

    /// Both count in rank 1's memory.
    fn fetch(&self, job: &mut Job) {
        let memory = &self.memory;
        if !self.promise.fetch {
            return;
        }
        const EACH: u64 = 100;
        self.meet(job, b"count");
        if job.rank == 0 {
            let mut before = None;
            for n in 0..EACH {
                job.post(|b| b.fetch_add(self.peer, (self.remote, COUNT), 3, Token(3000 + n)));
                let old = job.until("fetch", |event| match event {
                    Event::Fetched(Token(token), old) if *token == 3000 + n => Some(*old),
                    Event::Failed(Token(token), e) if *token == 3000 + n => panic!("{e}"),
                    _ => None,
                });
                assert_eq!(old, before.map_or(0, |before| before + 3));
                before = Some(old);
            }
        }
        self.meet(job, b"counted");
        if job.rank == 1 {
            assert_eq!(memory.word(COUNT).load(Ordering::Acquire), 3 * EACH);
        }
    }

    /// Many messages, more than any queue holds, in order.
    fn messages(&self, job: &mut Job) {
        const COUNT: u32 = 2000;
        if job.rank == 0 {
            for n in 0..COUNT {
                let mut bytes = vec![n as u8; 4 + (n as usize * 13) % 500];
                bytes[..4].copy_from_slice(&n.to_le_bytes());
                job.post(|backend| backend.send(self.peer, &bytes, &[]));
                if n % 64 == 0 {
                    job.step();
                }
            }
        } else {
            for n in 0..COUNT {
                let bytes = job.until("message", |event| match event {
                    Event::Control { from, bytes, .. } if *from == self.peer => Some(bytes.clone()),
                    _ => None,
                });
                assert_eq!((&bytes[..4], bytes.len()), (&n.to_le_bytes()[..], 4 + (n as usize * 13) % 500));
            }
        }
        self.meet(job, b"all messages");
    }

    /// What is refused before anything is sent.
    fn wrong(&self, job: &mut Job) {
        for put in [
            self.put(0, LEN - 4, 8, 1),
            self.put(LEN - 4, 0, 8, 1),
            self.put(usize::MAX, 0, 8, 1),
            self.put(0, usize::MAX, 8, 1),
            Put { from: (RegionId(u32::MAX), 0), ..self.put(0, 0, 8, 1) },
            Put { remote: (RemoteId(u32::MAX), 0), ..self.put(0, 0, 8, 1) },
            Put { to: 99, ..self.put(0, 0, 8, 1) },
        ] {
            let error = job.backend.put(&put).unwrap_err();
            assert!(error != Error::Again, "{put:?}");
        }
        assert!(job.backend.expose(usize::MAX - 1).is_err(), "longer than memory");
        let gone = job.backend.expose(64).unwrap();
        job.backend.withdraw(gone.id).unwrap();
        job.backend.forget(self.remote);
        assert!(job.backend.put(&self.put(0, 0, 8, 1)).is_err(), "forgotten");
        self.meet(job, b"end");
    }

    /// Rank 1 leaves; what it has said before comes first.
    fn leave(&self, job: &mut Job) {
        if job.rank == 1 {
            return job.post(|backend| backend.send(self.peer, b"last", &[]));
        }
        let first = job.until("last message or end", |event| match event {
            Event::Control { bytes, .. } if bytes == b"last" => Some(true),
            Event::Gone { peer: 1, .. } => Some(false),
            _ => None,
        });
        assert!(first, "the end came before the last message");
        self.end(job);
    }

    fn end(&self, job: &mut Job) {
        job.until("end of rank 1", |event| match event {
            Event::Gone { peer: 1, why } if !why.is_empty() => Some(()),
            _ => None,
        });
        let error = job.backend.send(self.peer, b"late", &[]).unwrap_err();
        assert!(matches!(error, Error::Gone(_)), "{error}");
    }
}

/// Rank 1 is killed while rank 0 writes to it; each operation ends, and then the peer.
pub fn death(job: &mut Job) {
    assert!(job.size == 2, "this stage takes two processes");
    let peer = 1 - job.rank;
    let region = job.backend.expose(LEN).unwrap();
    let grant = hello(job, peer, region.id);
    let promise = job.backend.promise(peer);
    let way = Way { peer, region: region.id, memory: region.memory.clone(), remote: grant.remote, promise };
    if job.rank == 1 {
        job.while_not("first bytes", || region.memory.word(0).load(Ordering::Acquire) != 0);
        // SAFETY: raise(3) takes a number.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    region.memory.copy_in(0, &[1; 64]);
    let (mut token, mut under_way, mut gone) = (0, std::collections::HashSet::new(), false);
    let deadline = std::time::Instant::now() + crate::LIMIT;
    while !gone {
        assert!(std::time::Instant::now() < deadline, "the end of rank 1 was not reported");
        if under_way.len() < 64 {
            match job.backend.put(&way.put(0, 0, 4096, token)) {
                Ok(()) => {
                    under_way.insert(token);
                    token += 1;
                }
                Err(Error::Again | Error::Gone(_) | Error::System(_)) => {}
                Err(e) => panic!("{e}"),
            }
        }
        job.step();
        for event in std::mem::take(&mut job.events) {
            match event {
                Event::Done(Token(t)) | Event::Failed(Token(t), _) => {
                    assert!(under_way.remove(&t), "{t} twice")
                }
                Event::Gone { peer: 1, .. } => gone = true,
                _ => {}
            }
        }
    }
    assert!(under_way.is_empty(), "left under way: {under_way:?}");
    assert!(matches!(job.backend.send(1, b"late", &[]), Err(Error::Gone(_))));
    println!("rank 0: the end of rank 1 was reported, after {token} writes");
}
