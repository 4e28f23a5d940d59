//! The drain: takes commands from rings, checks them, has the engine do them, and writes back how they ended.
//!
//! Each call of [`Drain::poll`] is short and waits for nothing. The order of what it does for a command: the
//! slot's words are taken (`ring`), checked (`command`), and the slot is the device's again (`consumed`); the
//! engine gets the operation, when its peer's turn has come (`window`); when it has completed at the target,
//! `done` moves on. A refused command ends like one that failed: the ring's error word has the first,
//! `failed` their number, the queue an entry of each.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use engine::Domain;
use link_api::RmaLink;

use crate::backlog::{Backlog, lane};
use crate::command::{Command, Op, Work};
use crate::counter::CounterSide;
use crate::error::{code, ended, errno, is_loss, word};
use crate::layout::{self, Completion, flag, word_of};
use crate::port::{BEAT, Known, Peers, Port, Regions};
use crate::post::{self, Posted, RING_SHIFT, ctx};
use crate::queue::{Place, QueueSide};
use crate::side::{RingOptions, RingPlaces, RingSide};
use crate::window::{Stage, waits};

mod taking;

/// Most receives that are posted at a time.
const RECEIVES: usize = 65_536;
/// In the place of the number of a ring: of a receive.
const RECEIVE: u64 = 0xffff;

/// What became of a command that was to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// The engine has it, or it is over.
    Begun,
    /// It waits for commands before it, or there is nothing to begin.
    NotNow,
    /// It is to be tried again.
    NoRoom,
}

/// What takes the commands of some rings.
#[derive(Debug)]
pub struct Drain {
    port: Port,
    peers: Peers,
    regions: Arc<Regions>,
    known: Known,
    rings: Vec<RingSide>,
    queues: Vec<QueueSide>,
    counters: Vec<Arc<CounterSide>>,
    /// Error words of peers.
    losses: Option<Place>,
    /// Receives under way: their context, ticket, ring, and whether a completion is wanted.
    receives: Vec<Option<(u64, u64, usize, bool)>>,
    free: Vec<usize>,
    /// What the engine had no room for.
    backlog: Backlog,
    /// Most bytes of a message; `None`: there are no messages.
    message: Option<u64>,
    /// The queue for what peers write with data.
    notices: Option<usize>,
    ended: bool,
}

impl Drain {
    /// A drain without rings.
    pub fn new(port: Port, peers: Peers, regions: Arc<Regions>, message: Option<u64>) -> Drain {
        Drain {
            port,
            peers,
            regions,
            known: Known::default(),
            rings: Vec::new(),
            queues: Vec::new(),
            counters: Vec::new(),
            losses: None,
            receives: Vec::new(),
            free: Vec::new(),
            backlog: Backlog::default(),
            message,
            notices: None,
            ended: false,
        }
    }

    /// Has error words of peers written here when one is lost: as many as the list has peers.
    pub fn set_losses(&mut self, at: Place) {
        self.losses = Some(at);
    }

    /// One more queue; its number. The last gets what peers write with data.
    pub fn add_queue(&mut self, queue: QueueSide) -> usize {
        self.queues.push(queue);
        self.notices = Some(self.queues.len() - 1);
        self.queues.len() - 1
    }

    /// One more counter.
    pub fn add_counter(&mut self, counter: Arc<CounterSide>) {
        self.counters.push(counter);
    }

    /// One more ring, all of whose words are 0; its number, and what a device has to know of it.
    pub fn add_ring(&mut self, places: RingPlaces, options: RingOptions, timeout_ns: u64) -> layout::Ring {
        let view = layout::Ring {
            version: layout::VERSION,
            log2_slots: options.log2_slots,
            flags: if options.bell { layout::RING_BELL } else { 0 },
            id: options.id,
            slots: places.slots.device(),
            produced: match &places.near {
                // The host reads the bell.
                Some(near) if !options.bell => near.produced(),
                _ => places.produced.device(),
            },
            status: places.status.device(),
            queue: options.queue.and_then(|q| self.queues.get(q)).map_or(0, QueueSide::view),
            timeout_ns,
            beat_ns: BEAT.as_nanos() as u64,
        };
        self.rings.push(RingSide::new(places, options));
        view
    }

    /// Takes commands, makes progress, and reports completions. Returns the number of commands and
    /// completions.
    pub fn poll<L: RmaLink>(&mut self, engine: &mut Domain<L>) -> usize {
        let mut n = 0;
        for lane in self.backlog.lanes() {
            while let Some(ticket) = self.backlog.first(lane) {
                match self.start(engine, lane.0, ticket) {
                    Start::NoRoom => break,
                    how => n += usize::from(how == Start::Begun),
                }
                self.backlog.pop(lane);
            }
        }
        let mut taken = 0;
        for ring in 0..self.rings.len() {
            taken += self.take(engine, ring);
        }
        if taken > 0 {
            // What completes when it is posted is reported before the links are polled.
            n += taken + self.show(engine);
        }
        n += engine.progress();
        n += self.show(engine);
        n
    }

    /// Reports completions to the device.
    fn show<L: RmaLink>(&mut self, engine: &mut Domain<L>) -> usize {
        let mut n = self.reap(engine);
        for ring in 0..self.rings.len() {
            n += self.settle(engine, ring);
        }
        n += self.queues.iter_mut().map(QueueSide::flush).sum::<usize>();
        self.counters.iter().for_each(|c| c.show(engine));
        n
    }

    /// Shows the device that the drain runs.
    pub fn beat(&mut self) {
        for r in self.rings.iter().filter(|r| !r.ended) {
            let beat = r.status(word_of!(Status.beat));
            beat.store(beat.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }

    /// That peer is lost, whatever is under way to it.
    pub fn lose(&mut self, peer: u32, errno: i32) {
        if let (Some(at), true) = (&self.losses, peer < self.peers.count()) {
            at.word(peer as usize).store(ended(errno), Release);
        }
    }

    /// Takes no more commands; the device sees `errno` as the reason.
    pub fn end(&mut self, errno: i32) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        for r in &mut self.rings {
            r.end(errno);
        }
        self.queues.iter_mut().for_each(|q| q.end(errno));
        self.counters.iter().for_each(|c| c.end(errno));
    }

    /// Counts a failure.
    fn refused(&mut self, at: usize, ticket: u64, why: i32) {
        let r = &self.rings[at];
        r.fail(word(why, ticket));
        let failed = r.status(word_of!(Status.failed));
        failed.store(failed.load(Relaxed) + 1, Release);
    }

    /// Writes an entry of the ring's queue.
    fn complete(&mut self, queue: Option<usize>, at: usize, ticket: u64, entry: Completion, why: i32) {
        let Some(queue) = queue else { return };
        let what = entry.what | (why as u32 as u64) << 32;
        let ring = u64::from(self.rings[at].options.id);
        let ticket = ticket & ((1 << RING_SHIFT) - 1) | ring << RING_SHIFT;
        self.queues[queue].push(Completion { what, ticket, ..entry });
    }

    /// Begins with a command, or goes on with its signal; it stands in the backlog if there is no room.
    /// Whether the engine took it.
    fn go<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize, ticket: u64) -> bool {
        let how = self.start(engine, at, ticket);
        if let (Start::NoRoom, Some((command, _))) = (how, self.rings[at].window.get(ticket)) {
            self.backlog.push(lane(at, &command), ticket);
        }
        how == Start::Begun
    }

    fn start<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize, ticket: u64) -> Start {
        let r = &mut self.rings[at];
        let Some((command, stage)) = r.window.get(ticket) else { return Start::NotNow };
        // It may have been started by another way while it stood in the backlog.
        if !matches!(stage, Stage::New | Stage::Waiting | Stage::Held) {
            return Start::NotNow;
        }
        let first = r.window.is_first(ticket, command.peer);
        if stage == Stage::New && waits(&command) && !first {
            r.window.set(ticket, Stage::Waiting);
            return Start::NotNow;
        }
        let signal = match command.work {
            Work::Nop => return Start::NotNow,
            Work::Signal(signal) => Some(signal),
            Work::Put { signal, .. } if stage == Stage::Held => signal,
            _ => None,
        };
        if signal.is_some_and(|s| !s.weak) && r.window.is_broken(ticket, command.peer) {
            self.finish(at, ticket, Err(code::CANCELED));
            return Start::Begun;
        }
        let posted = match (command.work, signal) {
            (Work::Recv { .. }, _) => return self.receive(engine, at, ticket, &command),
            (_, Some(signal)) => {
                let operand = r.cell(ticket, 0, signal.value, signal.datatype.size());
                post::signal(engine, &self.port, &self.peers, &command, &signal, operand, ctx(at, ticket))
            }
            _ => {
                let mut cell = |which, value, len| r.cell(ticket, which, value, len);
                post::command(engine, &self.port, &self.peers, &command, &mut cell, ctx(at, ticket))
            }
        };
        match posted {
            Posted::Yes => {
                let stage = if signal.is_some() { Stage::Signalled } else { Stage::Posted };
                self.rings[at].window.set(ticket, stage);
            }
            Posted::Again => return Start::NoRoom,
            Posted::No(e) => self.failed(at, ticket, command.peer, e),
        }
        Start::Begun
    }

    /// Posts a receive: the command is over with that, and the message completes later.
    fn receive<L: RmaLink>(
        &mut self,
        engine: &mut Domain<L>,
        at: usize,
        ticket: u64,
        command: &Command,
    ) -> Start {
        let name = match self.free.pop() {
            Some(name) => name,
            None if self.receives.len() < RECEIVES => {
                self.receives.push(None);
                self.receives.len() - 1
            }
            None => return Start::NoRoom,
        };
        let context = engine::Ctx((RECEIVE << RING_SHIFT | name as u64) as usize);
        let how = match post::receive(engine, &self.port, &self.peers, command, context) {
            Posted::Yes => {
                self.receives[name] = Some((command.context, ticket, at, command.has(flag::COMPLETION)));
                self.rings[at].window.finish(ticket, true);
                return Start::Begun;
            }
            Posted::Again => Start::NoRoom,
            Posted::No(e) => {
                self.failed(at, ticket, command.peer, e);
                Start::Begun
            }
        };
        self.free.push(name);
        how
    }

    fn failed(&mut self, at: usize, ticket: u64, peer: u32, e: engine::Error) {
        if is_loss(e) {
            self.lose(peer, errno(e));
        }
        self.finish(at, ticket, Err(errno(e)));
    }

    /// A command is over.
    fn finish(&mut self, at: usize, ticket: u64, how: Result<(), i32>) {
        let Some((command, _)) = self.rings[at].window.get(ticket) else { return };
        self.rings[at].window.finish(ticket, how.is_ok());
        if let Err(why) = how {
            self.refused(at, ticket, why);
        }
        if how.is_err() || command.has(flag::COMPLETION) {
            let entry = Completion {
                context: command.context,
                what: command.op as u64,
                length: post::length(&command.work) as u64,
                source: command.peer.into(),
                ..Completion::default()
            };
            self.complete(self.rings[at].options.queue, at, ticket, entry, how.err().unwrap_or(0));
        }
    }

    /// What the engine has completed.
    fn reap<L: RmaLink>(&mut self, engine: &mut Domain<L>) -> usize {
        let mut n = 0;
        loop {
            let mut one = None;
            if engine.cq_take(self.port.cq, 1, |_, c| one = Some(*c)) == 0 {
                one = engine.cq_error(self.port.cq);
            }
            let Some(c) = one else { return n };
            n += 1;
            let name = c.ctx.0 as u64;
            let (ring, low) = (name >> RING_SHIFT, name & ((1 << RING_SHIFT) - 1));
            match ring {
                0 => self.noticed(&c),
                RECEIVE => self.received(low as usize, &c),
                _ => self.completed(engine, ring as usize - 1, low, &c),
            }
        }
    }

    fn completed<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize, low: u64, c: &engine::Completion) {
        let Some(r) = self.rings.get_mut(at) else { return };
        // The rest of the ticket is that of those under way.
        let high = r.window.done & !((1 << RING_SHIFT) - 1);
        let ticket = if high | low < r.window.done { (high | low) + (1 << RING_SHIFT) } else { high | low };
        let Some((command, stage)) = r.window.get(ticket) else { return };
        if let Some(e) = c.err {
            return self.failed(at, ticket, command.peer, e);
        }
        if let (Work::Put { signal: Some(signal), .. }, Stage::Posted) = (command.work, stage) {
            r.window.set(ticket, Stage::Held);
            if signal.weak || r.window.is_first(ticket, command.peer) {
                self.go(engine, at, ticket);
            }
            return;
        }
        self.finish(at, ticket, Ok(()));
    }

    fn received(&mut self, name: usize, c: &engine::Completion) {
        let Some((context, ticket, at, wanted)) = self.receives.get_mut(name).and_then(Option::take) else {
            return;
        };
        self.free.push(name);
        let why = c.err.map_or(0, errno);
        if why != 0 {
            self.refused(at, ticket, why);
        }
        if wanted || why != 0 {
            let tagged = c.what.contains(engine::What::TAGGED);
            let op = if tagged { Op::Trecv } else { Op::Recv };
            let entry = Completion { context, what: op as u64, ..self.described(c) };
            self.complete(self.rings[at].options.receive_queue, at, ticket, entry, why);
        }
    }

    /// What a peer wrote, with data.
    fn noticed(&mut self, c: &engine::Completion) {
        if let (Some(queue), true) = (self.notices, c.what.contains(engine::What::REMOTE_CQ_DATA)) {
            let entry = self.described(c);
            self.queues[queue].notice(entry);
        }
    }

    fn described(&self, c: &engine::Completion) -> Completion {
        let data = u64::from(c.what.contains(engine::What::REMOTE_CQ_DATA)) << 8;
        let source = self.peers.number(c.src).into();
        Completion {
            what: data,
            length: c.len as u64,
            data: c.data,
            tag: c.tag,
            source,
            ..Completion::default()
        }
    }

    /// Goes on with what has become the first of its peer, and shows how far all is.
    fn settle<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize) -> usize {
        let mut n = 0;
        while let Some(ticket) = self.rings[at].window.ready() {
            n += usize::from(self.go(engine, at, ticket));
        }
        while let Some(ticket) = self.rings[at].window.idle() {
            self.finish(at, ticket, Ok(()));
            n += 1;
        }
        let r = &self.rings[at];
        for mark in [word_of!(Status.local), word_of!(Status.done)] {
            if r.status(mark).load(Relaxed) != r.window.done {
                r.status(mark).store(r.window.done, Release);
            }
        }
        n
    }
}
