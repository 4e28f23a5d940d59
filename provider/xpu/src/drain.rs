//! The drain: takes commands from rings, checks them, has the engine do them, and writes back how they ended.
//!
//! Each call of [`Drain::poll`] is short and waits for nothing. The order of what it does for a command: the slot's words
//! are taken (`ring`), checked (`command`), and the slot is the device's again (`consumed`); the engine gets the operation,
//! when its peer's turn has come (`window`); when it has completed at the target, `done` moves on. A refused command ends
//! like one that failed: the ring's error word has the first, `failed` their number, the queue an entry of each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use engine::Domain;
use hmem::{Kind, Span};
use link_api::RmaLink;

use crate::command::{Command, Limits, Op, Raw, Work};
use crate::error::{code, ended, errno, is_loss, word};
use crate::layout::{self, Completion, flag, word_of};
use crate::port::{BEAT, Peers, Port, Regions};
use crate::post::{self, Posted, RING_SHIFT, ctx};
use crate::queue::{CounterSide, Place, QueueSide};
use crate::ring;
use crate::window::{Stage, Window, waits};

/// Most commands taken from a ring in one call.
const BATCH: usize = 64;
/// Most receives that are posted at a time.
const RECEIVES: usize = 65_536;
/// In the place of the number of a ring: of a receive.
const RECEIVE: u64 = 0xffff;

/// Where the parts of a ring are.
#[derive(Clone, Debug)]
pub struct RingPlaces {
    /// 2^log2 slots.
    pub slots: Place,
    /// [`layout::Produced`].
    pub produced: Place,
    /// [`layout::Status`].
    pub status: Place,
}

/// How a ring is made.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// It has 2^log2 slots.
    pub log2_slots: u32,
    /// Commands are taken up to its bell.
    pub bell: bool,
    /// The queue of the drain that its completions go into.
    pub queue: Option<usize>,
    /// That for what is received.
    pub receive_queue: Option<usize>,
}

#[derive(Debug)]
struct RingSide {
    places: RingPlaces,
    options: RingOptions,
    window: Window,
    /// Two words for each slot: bytes that a command has in itself, while the engine works on them.
    cells: Option<Box<[AtomicU64]>>,
    ended: bool,
}

impl RingSide {
    fn status(&self, n: usize) -> &AtomicU64 {
        self.places.status.word(n)
    }

    /// A cell of a slot, with this value in it, as memory for an operation.
    fn cell(&self, ticket: u64, which: usize, value: u64, len: usize) -> Span {
        let at = ring::slot(ticket, self.options.log2_slots) * 2 + which;
        let Some(cell) = self.cells.as_ref().map(|c| &c[at]) else { return Span::EMPTY };
        cell.store(value, Relaxed);
        debug_assert!(len <= 8);
        // SAFETY: the cells are on the heap, and stay there until no command is under way: `Drop` leaks them otherwise.
        // A slot's command is the only one that uses them until it is over.
        unsafe { Span::new(cell.as_ptr().expose_provenance(), len.min(8), Kind::System) }
    }

    fn end(&mut self, errno: i32) {
        self.ended = true;
        self.fail(ended(errno));
    }

    /// The first error stays.
    fn fail(&self, error: u64) {
        let at = self.status(word_of!(Status.error));
        let now = at.load(Relaxed);
        if now == 0 {
            at.store(error, Release);
        } else if error & layout::ERROR_ENDED != 0 {
            at.store(now | layout::ERROR_ENDED, Release);
        }
    }
}

impl Drop for RingSide {
    fn drop(&mut self) {
        // The engine, or a peer, may still be inside of them.
        if !self.window.is_empty() {
            std::mem::forget(self.cells.take());
        }
    }
}

/// What takes the commands of some rings.
#[derive(Debug)]
pub struct Drain {
    port: Port,
    peers: Peers,
    regions: Arc<Regions>,
    rings: Vec<RingSide>,
    queues: Vec<QueueSide>,
    counters: Vec<CounterSide>,
    /// Error words of peers.
    losses: Option<Place>,
    /// Receives under way: their context, ticket, ring, and whether a completion is wanted.
    receives: Vec<Option<(u64, u64, usize, bool)>>,
    free: Vec<usize>,
    /// What the engine had no room for.
    backlog: VecDeque<(usize, u64)>,
    /// Most bytes of a message.
    message: u64,
    /// The queue for what peers write with data.
    notices: Option<usize>,
    ended: bool,
}

impl Drain {
    /// A drain without rings.
    pub fn new(port: Port, peers: Peers, regions: Arc<Regions>, message: u64) -> Drain {
        Drain {
            port,
            peers,
            regions,
            rings: Vec::new(),
            queues: Vec::new(),
            counters: Vec::new(),
            losses: None,
            receives: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
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
    pub fn add_counter(&mut self, counter: CounterSide) {
        self.counters.push(counter);
    }

    /// One more ring, all of whose words are 0; its number, and what a device has to know of it.
    pub fn add_ring(&mut self, places: RingPlaces, options: RingOptions, timeout_ns: u64) -> layout::Ring {
        let id = self.rings.len() as u32;
        let view = layout::Ring {
            version: layout::VERSION,
            log2_slots: options.log2_slots,
            flags: if options.bell { layout::RING_BELL } else { 0 },
            id,
            slots: places.slots.device(),
            produced: places.produced.device(),
            status: places.status.device(),
            queue: options.queue.and_then(|q| self.queues.get(q)).map_or(0, QueueSide::view),
            timeout_ns,
            beat_ns: BEAT.as_nanos() as u64,
        };
        let cells = (0..2usize << options.log2_slots).map(|_| AtomicU64::new(0)).collect();
        let window = Window::new(options.log2_slots);
        self.rings.push(RingSide { places, options, window, cells: Some(cells), ended: false });
        view
    }

    /// Takes commands, makes progress, and tells what has ended. Returns how much there was to do.
    pub fn poll<L: RmaLink>(&mut self, engine: &mut Domain<L>) -> usize {
        let mut n = 0;
        for (ring, ticket) in std::mem::take(&mut self.backlog) {
            n += usize::from(self.start(engine, ring, ticket));
        }
        for ring in 0..self.rings.len() {
            n += self.take(engine, ring);
        }
        n += engine.progress();
        n += self.reap(engine);
        for ring in 0..self.rings.len() {
            n += self.settle(engine, ring);
        }
        n += self.queues.iter_mut().map(QueueSide::flush).sum::<usize>();
        self.counters.iter().for_each(|c| c.show(engine));
        n
    }

    /// Tells the device that the drain runs.
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

    /// Takes nothing more, and tells the device so.
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

    fn take<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize) -> usize {
        let mut n = 0;
        while n < BATCH && self.backlog.is_empty() {
            let r = &self.rings[at];
            let queues = [r.options.queue, r.options.receive_queue].into_iter().flatten();
            if !r.ended && queues.clone().any(|q| self.queues[q].is_ended()) {
                self.rings[at].end(code::CANCELED);
                break;
            }
            let behind = { queues }.any(|q| self.queues[q].is_behind());
            if r.ended || behind || r.window.is_full() {
                break;
            }
            let (ticket, log2) = (r.window.next, r.options.log2_slots);
            if r.options.bell && r.places.produced.word(word_of!(Produced.bell)).load(Acquire) <= ticket {
                break;
            }
            let first = ring::slot(ticket, log2) * layout::SLOT_WORDS;
            let slots = &r.places.slots;
            let Some(words) = ring::take(|i| slots.word(first + i), ring::lap(ticket, log2)) else { break };
            n += 1;
            self.accept(engine, at, &Raw::of(&words));
            self.rings[at].status(word_of!(Status.consumed)).store(ticket + 1, Release);
        }
        n
    }

    fn accept<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize, raw: &Raw) {
        let checked = {
            let regions = self.regions.all();
            raw.check(&Limits { peers: self.peers.count(), regions: &regions, message: self.message })
        };
        match checked {
            Ok(command) => {
                let ticket = self.rings[at].window.admit(command);
                self.start(engine, at, ticket);
            }
            Err(why) => {
                let ticket = self.rings[at].window.skip();
                let entry = Completion { context: raw.context, what: raw.op.into(), ..Completion::default() };
                self.refused(at, ticket, why);
                self.tell(self.rings[at].options.queue, at, ticket, entry, why);
            }
        }
    }

    /// Counts a failure.
    fn refused(&mut self, at: usize, ticket: u64, why: i32) {
        let r = &self.rings[at];
        r.fail(word(why, ticket));
        let failed = r.status(word_of!(Status.failed));
        failed.store(failed.load(Relaxed) + 1, Release);
    }

    /// Writes an entry of the ring's queue.
    fn tell(&mut self, queue: Option<usize>, at: usize, ticket: u64, entry: Completion, why: i32) {
        let Some(queue) = queue else { return };
        let what = entry.what | (why as u32 as u64) << 32;
        let ticket = ticket & ((1 << RING_SHIFT) - 1) | (at as u64) << RING_SHIFT;
        self.queues[queue].push(Completion { what, ticket, ..entry });
    }

    /// Begins with a command, or goes on with its signal. Whether the engine took it.
    fn start<L: RmaLink>(&mut self, engine: &mut Domain<L>, at: usize, ticket: u64) -> bool {
        let r = &mut self.rings[at];
        let Some((command, stage)) = r.window.get(ticket) else { return false };
        // It may have been started by another way while it stood in the backlog.
        if !matches!(stage, Stage::New | Stage::Waiting | Stage::Held) {
            return false;
        }
        let first = r.window.is_first(ticket, command.peer);
        if stage == Stage::New && waits(&command) && !first {
            r.window.set(ticket, Stage::Waiting);
            return false;
        }
        let signal = match command.work {
            Work::Nop => return false,
            Work::Signal(signal) => Some(signal),
            Work::Put { signal, .. } if stage == Stage::Held => signal,
            _ => None,
        };
        if signal.is_some_and(|s| !s.weak) && r.window.is_broken(ticket, command.peer) {
            self.finish(at, ticket, Err(code::CANCELED));
            return true;
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
            Posted::Again => {
                self.backlog.push_back((at, ticket));
                return false;
            }
            Posted::No(e) => self.failed(at, ticket, command.peer, e),
        }
        true
    }

    /// Posts a receive: the command is over with that, and what it receives is told of later.
    fn receive<L: RmaLink>(
        &mut self,
        engine: &mut Domain<L>,
        at: usize,
        ticket: u64,
        command: &Command,
    ) -> bool {
        let name = match self.free.pop() {
            Some(name) => name,
            None if self.receives.len() < RECEIVES => {
                self.receives.push(None);
                self.receives.len() - 1
            }
            None => {
                self.backlog.push_back((at, ticket));
                return false;
            }
        };
        let context = engine::Ctx((RECEIVE << RING_SHIFT | name as u64) as usize);
        match post::receive(engine, &self.port, &self.peers, command, context) {
            Posted::Yes => {
                self.receives[name] = Some((command.context, ticket, at, command.has(flag::COMPLETION)));
                self.rings[at].window.finish(ticket, true);
                return true;
            }
            Posted::Again => self.backlog.push_back((at, ticket)),
            Posted::No(e) => self.failed(at, ticket, command.peer, e),
        }
        self.free.push(name);
        false
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
            self.tell(self.rings[at].options.queue, at, ticket, entry, how.err().unwrap_or(0));
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
                self.start(engine, at, ticket);
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
            self.tell(self.rings[at].options.receive_queue, at, ticket, entry, why);
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
            n += usize::from(self.start(engine, at, ticket));
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
