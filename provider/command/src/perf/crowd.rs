//! A pattern among any number of processes, as one of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::test::{Test, WINDOW};
use super::wire::About;
use crate::fabric::{Endpoint, Error, Info, Kind, Library, Part, Region, Remote, Want};

/// Tags: of the barrier's rounds, of messages, and of those of steps that must not mix, from this on.
const BARRIER: u64 = 0x100;
const DATA: u64 = 0x5;
const STEPS: u64 = 0x10000;
/// Steps after which tags come again.
const LAP: u64 = 1 << 15;

/// Of the contents, which are the same everywhere.
const SEED: u64 = 0x5741;

/// An endpoint that knows all others.
#[derive(Debug)]
pub struct Member {
    ep: Endpoint,
    test: Test,
    rank: usize,
    ranks: usize,
    room: usize,
    step: u64,
    /// Since the endpoint was opened, what was posted that will complete.
    sent: u64,
    received: u64,
}

impl Member {
    /// Makes the endpoint, without the others.
    pub fn open(
        library: &Arc<Library>,
        (provider, test, most): (&str, Test, usize),
        (rank, ranks): (usize, usize),
        timeout: Duration,
        shares_core: bool,
    ) -> Result<(Member, About, Remote), Error> {
        let info: Info = library.getinfo(Want { provider, caps: test.caps() })?;
        if most > info.max_msg_size() {
            let text = format!("messages of {most} bytes (at most {})", info.max_msg_size());
            return Err(Error::Unsupported(text));
        }
        // One to send from, two to receive into, and a line for the barrier.
        let room = Region::pages(most.max(1));
        let slots = WINDOW.max(2 * ranks) + 2;
        let ep = Endpoint::open(&info, Region::new(3 * room + 4096)?, slots, timeout, shares_core)?;
        let about = About::of(&info);
        let name = ep.name()?;
        let member = Member { ep, test, rank, ranks, room, step: 0, sent: 0, received: 0 };
        Ok((member, about, name))
    }

    /// Learns the names of all, this one among them.
    pub fn meet(&mut self, all: Vec<Remote>) -> Result<(), Error> {
        self.ep.connect_all(all)
    }

    /// Runs `count` steps; the seconds they took from a barrier to the next.
    pub fn repeat(&mut self, size: usize, count: u64) -> Result<f64, Error> {
        let all = |area: usize| Part { offset: area * self.room, len: size };
        let region = self.ep.region();
        region.put_pattern(all(0), SEED);
        (1..3).for_each(|area| region.fill(all(area), !(SEED as u8)));
        self.barrier()?;
        let begin = Instant::now();
        for _ in 0..count {
            self.step(size)?;
        }
        self.barrier()?;
        let took = begin.elapsed();
        let region = self.ep.region();
        for area in 1..=self.areas() {
            region.check_pattern(Part { offset: area * self.room, len: size }, SEED)?;
        }
        Ok(took.as_secs_f64())
    }

    /// How many places messages come to.
    fn areas(&self) -> usize {
        match (self.test, self.rank) {
            (Test::Stream | Test::Window | Test::Incast, 0) | (Test::Ring | Test::Storm, _) => 1,
            (Test::Exchange, _) => 2,
            _ => 0,
        }
    }

    fn part(&self, area: usize, size: usize) -> Part {
        Part { offset: area * self.room, len: size }
    }

    fn send(&mut self, to: usize, tag: u64, part: Part, slot: usize) -> Result<(), Error> {
        self.sent += self.ep.send_to(to, Kind::Tagged(tag), part, slot)?;
        Ok(())
    }

    fn receive(&mut self, from: Option<usize>, tag: u64, part: Part, slot: usize) -> Result<(), Error> {
        self.ep.recv_from(from, Kind::Tagged(tag), part, slot)?;
        self.received += 1;
        Ok(())
    }

    /// Waits until everything that was posted is complete.
    fn settle(&mut self) -> Result<(), Error> {
        let (sent, received) = (self.sent, self.received);
        self.ep.wait("the next step", |c| c.tx >= sent && c.rx >= received)
    }

    fn settle_received(&mut self) -> Result<(), Error> {
        let received = self.received;
        self.ep.wait("the next message", |c| c.rx >= received)
    }

    /// Returns once all have come here.
    fn barrier(&mut self) -> Result<(), Error> {
        let cell = Part { offset: 3 * self.room, len: 8 };
        let mut distance = 1;
        while distance < self.ranks {
            let tag = BARRIER + distance.trailing_zeros() as u64;
            let (to, from) = (self.rank + distance, self.rank + self.ranks - distance);
            self.receive(Some(from % self.ranks), tag, cell, 0)?;
            self.send(to % self.ranks, tag, cell, 0)?;
            self.settle()?;
            distance *= 2;
        }
        Ok(())
    }

    fn step(&mut self, size: usize) -> Result<(), Error> {
        let (out, inn) = (self.part(0, size), self.part(1, size));
        let (left, right) = ((self.rank + self.ranks - 1) % self.ranks, (self.rank + 1) % self.ranks);
        match (self.test, self.rank) {
            (Test::Stream | Test::Window, 2..) => Ok(()),
            (Test::Stream, 0) => {
                self.receive(Some(1), DATA, inn, 0)?;
                self.settle_received()
            }
            (Test::Stream, _) | (Test::Incast, 1..) => {
                self.send(0, DATA, out, 0)?;
                self.settle()
            }
            (Test::Window, 0) => {
                for slot in 0..WINDOW {
                    self.receive(Some(1), DATA, inn, slot)?;
                }
                self.settle()
            }
            (Test::Window, _) => {
                for slot in 0..WINDOW {
                    self.send(0, DATA, out, slot)?;
                }
                self.settle()
            }
            (Test::Incast, 0) => {
                for _ in 1..self.ranks {
                    self.receive(None, DATA, inn, 0)?;
                    self.settle_received()?;
                }
                Ok(())
            }
            (Test::Ring, _) => {
                self.receive(Some(left), DATA, inn, 0)?;
                self.send(right, DATA, out, 0)?;
                self.settle()
            }
            (Test::Exchange, _) => {
                // Two processes are each other's neighbour on both sides.
                let inn = [(left, DATA, inn), (right, DATA + 1, self.part(2, size))];
                for (slot, (from, tag, part)) in inn.into_iter().enumerate() {
                    self.receive(Some(from), tag, part, slot)?;
                }
                self.send(right, DATA, out, 0)?;
                self.send(left, DATA + 1, out, 1)?;
                self.settle()
            }
            _ => self.storm(out, inn),
        }
    }

    /// To all, and only then from all, in whatever order they come. A tag for each step: a message of the
    /// next one taken in this one could leave two processes waiting for each other.
    fn storm(&mut self, out: Part, inn: Part) -> Result<(), Error> {
        let tag = STEPS + self.step % LAP;
        self.step += 1;
        for k in 1..self.ranks {
            self.send((self.rank + k) % self.ranks, tag, out, k)?;
        }
        for _ in 1..self.ranks {
            self.receive(None, tag, inn, 0)?;
            self.settle_received()?;
        }
        self.settle()
    }
}
