//! One test over one endpoint, as either of the two workers.

use std::time::{Duration, Instant};

use super::test::{Shape, Test};
use super::wire::{About, Aside, Channel, Run};
use crate::fabric::{Endpoint, Error, Info, Kind, Library, Operands, Part, Region, Remote, Slot, Want};
use std::sync::Arc;

/// Tags of messages, and of the short answers to windows of them.
const DATA: Kind = Kind::Tagged(0x5);
const ANSWER: Kind = Kind::Tagged(0x6);

/// Least memory for each direction, so that a window of small messages can be spread out.
const ROOM: usize = 1 << 20;

/// Slots: a window, and one for what goes the other way.
const SLOTS: usize = 65;
const LAST: Slot = SLOTS - 1;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Starts, and measures.
    First,
    /// Answers.
    Second,
}

/// The limits and places a worker was started with.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub role: Role,
    pub timeout: Duration,
    /// The two workers have just one core.
    pub shares_core: bool,
}

/// An endpoint that knows its peer, and the test it was made for.
#[derive(Debug)]
pub struct Session {
    pub(super) ep: Endpoint,
    pub(super) test: Test,
    setting: Setting,
    room: usize,
    depth: usize,
    seed: u64,
    /// Since the endpoint was opened, what was posted that will complete.
    sent: u64,
    received: u64,
    remote: u64,
}

impl Session {
    /// Makes the endpoint, without the peer.
    pub fn open(
        library: &Arc<Library>,
        provider: &str,
        test: Test,
        most: usize,
        setting: Setting,
    ) -> Result<(Session, About), Error> {
        let info: Info = library.getinfo(Want { provider, caps: test.caps() })?;
        if most > info.max_msg_size() {
            return Err(Error::Unsupported(format!(
                "messages of {most} bytes (at most {})",
                info.max_msg_size()
            )));
        }
        let room = Region::pages(most.max(ROOM));
        let region = Region::new(3 * room + 4096)?;
        let ep = Endpoint::open(&info, region, SLOTS, setting.timeout, setting.shares_core)?;
        if let Some(kind) = test.atomic() {
            ep.atomic_valid(kind)?;
        }
        let about = About::of(&info);
        let session = Session {
            ep,
            test,
            setting,
            room,
            depth: info.depth().max(2),
            seed: u64::from(std::process::id()),
            sent: 0,
            received: 0,
            remote: 0,
        };
        Ok((session, about))
    }

    /// Exchanges names with the peer.
    pub fn meet(&mut self, aside: &mut Channel) -> Result<(), Error> {
        aside.send(&Aside::Hello(self.ep.name()?))?;
        let remote: Remote = match self.hear(aside, "the peer's name")? {
            Aside::Hello(remote) => remote,
            other => return Err(Error::Failed(format!("{other:?} instead of a name"))),
        };
        self.ep.connect(remote)
    }

    /// Waits for a message aside and lets the provider work meanwhile.
    fn hear(&mut self, aside: &mut Channel, what: &str) -> Result<Aside, Error> {
        let mut since = None;
        loop {
            if let Some(message) = aside.try_recv()? {
                return Ok(message);
            }
            for _ in 0..64 {
                self.ep.poll()?;
            }
            self.ep.patience(&mut since, what, "did not come")?;
        }
    }

    /// Measures one size, as the first worker: operations, and the seconds they took.
    pub fn measure(&mut self, aside: &mut Channel, size: usize, seconds: f64) -> Result<(u64, f64), Error> {
        let windowed = matches!(self.test.shape(), Shape::Stream | Shape::Window);
        // One slot of each queue is for what goes the other way.
        let window = self.test.window(size).min(self.depth - 1).min(SLOTS - 1);
        let run = |count, spread| Run { size, count, window, seed: 0, spread };
        // The first finds connections made and pages mapped, or makes and maps them. Every message
        // of a window is checked in it.
        let fits = (self.room / size.max(1)).max(1);
        let checked = Run { window: window.min(fits), ..run(2, true) };
        self.run(aside, checked)?;
        let (mut count, mut took) = (if windowed { 1 } else { 8 }, 0.0);
        // Enough of them for a guess at how many take the time there is.
        for _ in 0..4 {
            took = self.run(aside, run(count, false))?;
            if took > seconds / 8.0 {
                break;
            }
            let factor = (seconds / 4.0 / took.max(1e-7)).clamp(1.0, 1000.0);
            count = ((count as f64 * factor) as u64).max(count + 1);
        }
        let factor = seconds / took.max(1e-7);
        let least = if windowed { 2 } else { 8 };
        let count = ((count as f64 * factor) as u64).clamp(least, 20_000_000);
        let took = self.run(aside, run(count, false))?;
        aside.send(&Aside::End)?;
        let ops = match self.test.shape() {
            Shape::PingPong => 2 * count,
            Shape::Stream | Shape::Window => count * window as u64,
            Shape::Single | Shape::Crowd | Shape::Floor => count,
        };
        Ok((ops, took))
    }

    fn run(&mut self, aside: &mut Channel, run: Run) -> Result<f64, Error> {
        self.seed += 2;
        let run = Run { seed: self.seed, ..run };
        aside.send(&Aside::Run(run))?;
        self.prepare(run)?;
        self.expect(aside, Aside::Ready)?;
        let start = Instant::now();
        let late = self.first(run)?;
        let mut took = start.elapsed();
        if let Some(late) = late {
            took = late;
        }
        self.check(run)?;
        self.expect(aside, Aside::Checked)?;
        Ok(took.as_secs_f64())
    }

    fn expect(&mut self, aside: &mut Channel, want: Aside) -> Result<(), Error> {
        match self.hear(aside, &format!("the peer's word {want:?}"))? {
            got if got == want => Ok(()),
            other => Err(Error::Failed(format!("{other:?} instead of {want:?}"))),
        }
    }

    /// Does its part of the measuring of one size, as the second worker.
    pub fn serve(&mut self, aside: &mut Channel) -> Result<(), Error> {
        loop {
            match self.hear(aside, "the next run")? {
                Aside::Run(run) => {
                    self.prepare(run)?;
                    aside.send(&Aside::Ready)?;
                    self.second(run)?;
                    self.check(run)?;
                    aside.send(&Aside::Checked)?;
                }
                Aside::End => return Ok(()),
                other => return Err(Error::Failed(format!("{other:?} instead of a run"))),
            }
        }
    }

    // Places: what is sent or read from, what is received or read into, what the peer reaches.

    fn part(&self, area: usize, run: Run, k: usize) -> Part {
        let step = if run.spread { k * run.size } else { 0 };
        Part { offset: area * self.room + step, len: run.size }
    }

    fn out(&self, run: Run, k: usize) -> Part {
        self.part(0, run, k)
    }

    fn inn(&self, run: Run, k: usize) -> Part {
        self.part(1, run, k)
    }

    fn target(&self, run: Run, k: usize) -> Part {
        self.part(2, run, k)
    }

    /// An 8-byte cell, each on its own cache lines.
    fn cell(&self, k: usize) -> Part {
        Part { offset: 3 * self.room + 128 * k, len: 8 }
    }

    /// All of what the operations of a run use of an area.
    fn whole(&self, area: usize, run: Run) -> Part {
        let times = if run.spread { run.window } else { 1 };
        Part { offset: area * self.room, len: times * run.size }
    }

    fn operands(&self) -> Operands {
        Operands { operand: self.cell(2), compare: self.cell(3), result: self.cell(4) }
    }

    /// Fills memory and posts the first receives.
    fn prepare(&mut self, run: Run) -> Result<(), Error> {
        let first = self.setting.role == Role::First;
        let (own, peers) = if first { (run.seed, run.seed + 1) } else { (run.seed + 1, run.seed) };
        let region = self.ep.region();
        region.put_pattern(self.whole(0, run), own);
        // Whatever comes here has to come: no byte is right beforehand by chance for long.
        region.fill(self.whole(1, run), !(peers as u8));
        match self.test {
            Test::RmaRead | Test::RmaReadLat => region.put_pattern(self.whole(2, run), own),
            _ => region.fill(self.whole(2, run), !(peers as u8)),
        }
        region.put_u64(self.cell(2), 1);
        region.put_u64(self.cell(4), u64::MAX);
        region.put_u64(self.cell(5), 0);
        match (self.test.shape(), first) {
            (Shape::PingPong, false) if self.test != Test::RmaWriteLat => self.receive_one(run, 0)?,
            (Shape::PingPong, _) => {}
            (Shape::Stream, true) => self.receive(ANSWER, self.cell(0), LAST)?,
            (Shape::Stream, false) => self.receive_window(run)?,
            (Shape::Single | Shape::Window, _) => self.receive(Kind::Plain, self.cell(0), LAST)?,
            (Shape::Crowd | Shape::Floor, _) => {}
        }
        Ok(())
    }

    fn kind(&self) -> Kind {
        if self.test == Test::MsgLat { Kind::Plain } else { DATA }
    }

    #[inline]
    fn receive(&mut self, kind: Kind, part: Part, slot: Slot) -> Result<(), Error> {
        self.ep.recv(kind, part, slot)?;
        self.received += 1;
        Ok(())
    }

    #[inline]
    fn receive_one(&mut self, run: Run, slot: Slot) -> Result<(), Error> {
        self.receive(self.kind(), self.inn(run, 0), slot)
    }

    fn receive_window(&mut self, run: Run) -> Result<(), Error> {
        for k in 0..run.window {
            self.receive(DATA, self.inn(run, k), k)?;
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, kind: Kind, part: Part, slot: Slot) -> Result<(), Error> {
        self.sent += self.ep.send(kind, part, slot)?;
        Ok(())
    }

    /// Waits until everything that was posted is complete.
    #[inline]
    fn settle(&mut self, what: &str) -> Result<(), Error> {
        let (sent, received, remote) = (self.sent, self.received, self.remote);
        self.ep.wait(what, |c| c.tx >= sent && c.rx >= received && c.remote >= remote)
    }

    #[inline]
    fn settle_sent(&mut self, what: &str) -> Result<(), Error> {
        let sent = self.sent;
        self.ep.wait(what, |c| c.tx >= sent)
    }

    /// The timed part of the first worker. Gives the time if that ended earlier than the call.
    fn first(&mut self, run: Run) -> Result<Option<Duration>, Error> {
        let start = Instant::now();
        match self.test.shape() {
            Shape::PingPong => self.ping_pong(run)?,
            Shape::Stream => {
                for left in (0..run.count).rev() {
                    for k in 0..run.window {
                        self.send(DATA, self.out(run, k), k)?;
                    }
                    self.settle("the answer to a window of messages")?;
                    if left > 0 {
                        self.receive(ANSWER, self.cell(0), LAST)?;
                    }
                }
            }
            Shape::Single => {
                for i in 0..run.count {
                    self.operate(run, 0, i)?;
                    self.settle_sent("the completion of an operation")?;
                }
                let took = start.elapsed();
                self.finish()?;
                return Ok(Some(took));
            }
            Shape::Window => {
                for i in 0..run.count {
                    for k in 0..run.window {
                        self.operate(run, k, i)?;
                    }
                    self.settle_sent("the completion of a window of operations")?;
                }
                // Until the peer knows of it: a write may be complete before it has arrived.
                self.finish()?;
            }
            Shape::Crowd | Shape::Floor => {}
        }
        Ok(None)
    }

    /// Posts one operation on the peer's memory.
    #[inline]
    fn operate(&mut self, run: Run, k: usize, i: u64) -> Result<(), Error> {
        let to = self.target(run, k).offset;
        match self.test {
            Test::RmaWrite => self.sent += self.ep.write(self.out(run, k), to, k, true)?,
            Test::PutLat => self.sent += self.ep.write(self.out(run, k), to, k, false)?,
            Test::RmaRead | Test::RmaReadLat => {
                self.ep.read(self.inn(run, k), to, k)?;
                self.sent += 1;
            }
            _ => {
                let Some(kind) = self.test.atomic() else {
                    return Ok(());
                };
                if self.test == Test::CompareAtomic {
                    self.ep.region().put_u64(self.cell(3), i);
                    self.ep.region().put_u64(self.cell(2), i + 1);
                }
                self.ep.atomic(kind, self.operands(), self.cell(5).offset, k)?;
                self.sent += 1;
            }
        }
        Ok(())
    }

    /// Sends the second worker that all operations are done, and waits for its answer.
    fn finish(&mut self) -> Result<(), Error> {
        self.send(Kind::Plain, self.cell(1), LAST)?;
        self.settle("the peer's answer to the end")
    }

    fn ping_pong(&mut self, run: Run) -> Result<(), Error> {
        let writes = self.test == Test::RmaWriteLat;
        let first = self.setting.role == Role::First;
        let (kind, to) = (self.kind(), self.target(run, 0).offset);
        for i in 0..run.count {
            let slot = (i % 2) as usize;
            if writes {
                self.remote += 1;
            }
            if !first {
                self.settle("the peer's next message")?;
            }
            if writes {
                self.sent += self.ep.write_data(self.out(run, 0), to, i, slot)?;
            } else {
                self.send(kind, self.out(run, 0), slot)?;
                // As MPI programs do, and the clients of other libraries that this is compared with: the
                // receive is posted while the message is under way.
                if first || i + 1 < run.count {
                    self.receive_one(run, 1 - slot)?;
                }
            }
            if first {
                self.settle("the peer's answer")?;
            }
        }
        self.settle_sent("the completion of the last message")
    }

    /// The second worker's part.
    fn second(&mut self, run: Run) -> Result<(), Error> {
        match self.test.shape() {
            Shape::PingPong => self.ping_pong(run),
            Shape::Stream => {
                for left in (0..run.count).rev() {
                    self.settle("the peer's window of messages")?;
                    self.send(ANSWER, self.cell(1), LAST)?;
                    // As in OSU's benchmarks, the next window's receives are posted while its first messages
                    // are under way.
                    if left > 0 {
                        self.receive_window(run)?;
                    }
                }
                self.settle_sent("the completion of the last answer")
            }
            Shape::Single | Shape::Window => {
                self.settle("the peer's word that all is done")?;
                self.arrived(run)?;
                self.send(Kind::Plain, self.cell(1), LAST)?;
                self.settle_sent("the completion of the answer")
            }
            Shape::Crowd | Shape::Floor => Ok(()),
        }
    }

    /// Waits until what was written by the peer is there; without order it may be late.
    fn arrived(&mut self, run: Run) -> Result<(), Error> {
        if matches!(self.test, Test::RmaRead | Test::RmaReadLat) {
            return Ok(());
        }
        let start = Instant::now();
        while let Err(error) = self.check_target(run) {
            if start.elapsed() > self.setting.timeout / 2 {
                return Err(error);
            }
            self.ep.poll()?;
        }
        Ok(())
    }

    fn check_target(&self, run: Run) -> Result<(), Error> {
        if self.test.atomic().is_none() {
            return self.ep.region().check_pattern(self.whole(2, run), run.seed);
        }
        match self.ep.region().get_u64(self.cell(5)) {
            n if n == run.count => Ok(()),
            n => Err(Error::Failed(format!(
                "WRONG DATA: after {} atomic operations the number is {n}",
                run.count
            ))),
        }
    }

    /// Checks what came.
    fn check(&self, run: Run) -> Result<(), Error> {
        let first = self.setting.role == Role::First;
        let seed = if first { run.seed + 1 } else { run.seed };
        let region = self.ep.region();
        match (self.test, first) {
            (Test::Lat | Test::MsgLat, _)
            | (Test::Bw | Test::Rate, false)
            | (Test::RmaRead | Test::RmaReadLat, true) => region.check_pattern(self.whole(1, run), seed),
            (Test::RmaWriteLat, _) => region.check_pattern(self.whole(2, run), seed),
            (Test::FetchAtomic | Test::CompareAtomic, true) => match region.get_u64(self.cell(4)) {
                n if n == run.count - 1 => Ok(()),
                n => Err(Error::Failed(format!("WRONG DATA: fetched {n} instead of {}", run.count - 1))),
            },
            _ => Ok(()),
        }
    }
}
