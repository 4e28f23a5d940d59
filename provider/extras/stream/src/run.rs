//! What executes lists: a stream, a graph, the CPU.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use hmem::cuda::graph::{Graph, Node};
use hmem::cuda::{self, Stream};
use hmem::{Kind as MemoryKind, Span, registry};
use peerop::cuda::{CudaGraph, CudaStream};
use peerop::{Cpu, Executor, Fence, Op};

use crate::error::Error;
use crate::failure::Kind;
use crate::kernel::{self, Kernels, Launch, Move};
use crate::layout::{AT, BEGUN, ENDED, ERROR, LANES, LENGTH, LINE, WORD_AT, code};
use crate::list::{Item, List, raise};
use crate::pass::{self, Pass, Passes};
use crate::shared::{Core, RECEIVES, SENDS, Shared, StreamKey, place};

/// Executors that are kept, of streams that were used.
const EXECUTORS: usize = 32;

/// What is done where a graph gets a list, if the driver says which one and when it is gone.
const HOLDS: &str = "having the graph hold the list";

/// A list that was executed in part, or not at all.
pub(crate) struct Cut {
    /// Something was queued or done.
    pub(crate) begun: bool,
    pub(crate) error: Error,
}

/// The kernels of a stream's context that an endpoint uses.
struct Loaded {
    moves: Kernels,
    passes: Option<Passes>,
}

impl Loaded {
    fn of(core: &Core, stream: Stream, id: u64) -> Result<Loaded, Error> {
        let passes = match core.shared.direct() {
            None => None,
            Some(direct) => {
                let passes = pass::load(stream, id)?;
                if passes.device != direct.device {
                    return Err(Error::Invalid(
                        "the stream is of another device than the endpoint: open the endpoint in a thread whose \
                         context is of the stream's device",
                    ));
                }
                Some(passes)
            }
        };
        Ok(Loaded { moves: kernel::load(stream, id)?, passes })
    }
}

impl Cut {
    fn at_once(error: impl Into<Error>) -> Cut {
        Cut { begun: false, error: error.into() }
    }
}

fn driver(what: &'static str) -> impl FnOnce(cuda::Error) -> Error {
    move |e| Error::Memory(what, e.into())
}

impl List {
    /// Queues the list in a stream (a `CUstream`). Where that is being captured the list becomes part of the
    /// graph.
    ///
    /// # Safety
    /// It is a stream, and stays one until the list is done. Of a list that is captured, the graph and its
    /// instances are gone before the list is dropped.
    pub unsafe fn run(&mut self, stream: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream) }.map_err(|cut| self.cut_short(cut))
    }

    /// # Safety
    /// As of [`List::run`].
    pub(crate) unsafe fn queue(&mut self, stream: usize) -> Result<(), Cut> {
        let core = self.core.clone();
        core.shared.peer().map_err(Cut::at_once)?;
        self.is_for_device().map_err(Cut::at_once)?;
        let what = "naming the stream";
        // SAFETY: the caller's promise.
        let (stream, captured) = match unsafe { Stream::new(stream) } {
            Ok(s) => (s, false),
            Err(e) if e.is_capture() => {
                // SAFETY: the same.
                let s =
                    unsafe { Stream::captured_too(stream) }.map_err(driver(what)).map_err(Cut::at_once)?;
                if [SENDS, RECEIVES].contains(&self.lane) {
                    return Err(Cut::at_once(Error::State(
                        "the stream is being captured: make a list, which lives as long as the graph, and run \
                         that",
                    )));
                }
                (s, true)
            }
            Err(e) => return Err(Cut::at_once(driver(what)(e))),
        };
        let id = kernel::context_id(stream).map_err(Cut::at_once)?;
        let key = (stream.handle(), stream.context(), id);
        if self.is_behind_waits {
            core.take_lane(RECEIVES, key).map_err(Cut::at_once)?;
        }
        let kernels = Loaded::of(&core, stream, id).map_err(Cut::at_once)?;
        if captured {
            let hold = |graph: Option<Graph>| graph.map(|mut g| g.hold(core.hold(self.lane))).transpose();
            let held = Graph::of_capture(stream).and_then(hold).map_err(driver(HOLDS));
            held.map_err(Cut::at_once)?;
        } else {
            core.take_lane(self.lane, key).map_err(Cut::at_once)?;
        }
        let mut executor = executor(&core, stream, key).map_err(Cut::at_once)?;
        let count = core.state().queued[self.lane as usize] + 1;
        // Words have the low half.
        let number = count as u32;
        let done = self.queue_items(stream, &kernels, &mut executor, (!captured).then_some(number));
        let begun = done.as_ref().map_or_else(|cut| cut.begun, |()| !self.items.is_empty());
        if begun && !captured {
            core.state().queued[self.lane as usize] = count;
            if done.is_err() {
                // The stream still has what was queued: its end is behind that.
                let end = [&self.at_nothing()[..], &self.ended(Some(number))[..]].concat();
                core.state().cut[self.lane as usize] = executor.execute(&end).is_err();
            }
        }
        if done.is_ok() {
            keep(&core, key, executor);
        }
        done
    }

    /// `number`: of the execution, which ends behind the last item.
    fn queue_items(
        &self,
        stream: Stream,
        kernels: &Loaded,
        executor: &mut CudaStream,
        number: Option<u32>,
    ) -> Result<(), Cut> {
        let last = self.items.len().wrapping_sub(1);
        let mut begun = false;
        for (i, item) in self.items.iter().enumerate() {
            let ended = number.filter(|_| i == last);
            let ops = match item {
                Item::Ops(ops) => [ops, &self.ended(ended)[..]].concat(),
                Item::Move(m) => {
                    let raises =
                        self.launch(stream, kernels, m, ended).map_err(|error| Cut { begun, error })?;
                    begun = true;
                    if raises { Vec::new() } else { self.behind(m, ended) }
                }
                Item::Pass(p) => {
                    self.pass(stream, kernels, p, ended).map_err(|error| Cut { begun, error })?;
                    begun = true;
                    Vec::new()
                }
            };
            executor.execute(&ops).map_err(|f| Cut { begun: begun || f.done > 0, error: f.error.into() })?;
            begun = true;
        }
        Ok(())
    }

    /// What says that the lane waits for nothing.
    fn at_nothing(&self) -> Vec<Op> {
        let peer = self.core.shared.peer.get();
        peer.map(|p| Op::Store32 { to: place(p.places.lanes, self.lane, AT), value: 0 }).into_iter().collect()
    }

    /// Whether the kernel raises what the move raises.
    fn launch(&self, stream: Stream, kernels: &Loaded, m: &Move, ended: Option<u32>) -> Result<bool, Error> {
        let l = kernels.moves.launch(m, &self.core.shared.lines(self.lane), ended);
        // SAFETY: fifteen parameters; the promises of the calls that added memory, and the endpoint's own.
        unsafe { stream.launch(l.function, l.blocks, l.threads, &l.arguments) }
            .map_err(driver("launching the kernel that moves data"))?;
        Ok(l.raises)
    }

    fn pass(&self, stream: Stream, kernels: &Loaded, p: &Pass, ended: Option<u32>) -> Result<(), Error> {
        let l = self.launch_of(kernels, p, ended)?;
        // SAFETY: the kernel's parameters; the promises of the calls that added memory, and the endpoint's.
        unsafe { stream.launch(l.function, l.blocks, l.threads, &l.arguments) }
            .map_err(driver("launching the kernel of a message"))
    }

    fn launch_of(&self, kernels: &Loaded, p: &Pass, ended: Option<u32>) -> Result<Launch, Error> {
        let (shared, lane) = (&self.core.shared, self.lane);
        let both = kernels.passes.as_ref().zip(shared.direct());
        let (passes, direct) = both.ok_or(Error::State("the endpoint has no peer: call connect first"))?;
        Ok(passes.launch(p, &direct, &shared.layout, &shared.lines(lane), lane, ended))
    }

    /// What the stream does behind a move whose kernel raises nothing.
    fn behind(&self, m: &Move, ended: Option<u32>) -> Vec<Op> {
        let peer = self.core.shared.peer.get();
        let raised = m.raise.as_ref().zip(peer).map(|(r, peer)| raise(peer, r));
        raised.into_iter().flatten().chain(self.ended(ended)).collect()
    }

    /// What says that an execution has ended.
    fn ended(&self, number: Option<u32>) -> Vec<Op> {
        let Some((value, peer)) = number.zip(self.core.shared.peer.get()) else { return Vec::new() };
        let to = place(peer.places.lanes, self.lane, ENDED);
        vec![Op::Fence(Fence::RELEASE), Op::Store32 { to, value }]
    }

    /// Adds the list to a graph (a `CUgraph`) of the calling thread's context, behind the nodes `after`; the
    /// node behind which all of it is.
    ///
    /// # Safety
    /// They are a graph and nodes of it, and no other thread uses the graph. The graph and its instances are
    /// gone before the list is dropped.
    pub unsafe fn add_to_graph(&mut self, graph: usize, after: &[usize]) -> Result<usize, Error> {
        let core = self.core.clone();
        core.shared.peer()?;
        self.is_for_device()?;
        if self.items.is_empty() {
            return Err(Error::Invalid("the list is empty: add operations first"));
        }
        // SAFETY: the legacy default stream of this thread's context, which names the context alone.
        let stream = unsafe { Stream::captured_too(0) }.map_err(driver("naming the context"))?;
        let kernels = Loaded::of(&core, stream, kernel::context_id(stream)?)?;
        let after: Vec<Node> = after.iter().map(|n| Node::of_program(*n)).collect();
        // SAFETY: the caller's promise; memory stays registered as long as the endpoint.
        let (mut to, mut again) = unsafe {
            let [graph, again] = [(); 2].map(|()| Graph::of_program(graph, stream));
            (CudaGraph::new(graph, &after, stream, core.targets.clone())?, again)
        };
        let held = again.hold(core.hold(self.lane)).map_err(driver(HOLDS))?;
        let added = self.add_items(&mut to, &kernels);
        if let (None, Some(held)) = (to.last(), held) {
            // The graph is as it was.
            again.let_go(held).map_err(driver("having the graph let the list go"))?;
        }
        added?;
        to.last().map(Node::handle).ok_or(Error::Invalid("the list is empty: add operations first"))
    }

    fn add_items(&self, to: &mut CudaGraph, kernels: &Loaded) -> Result<(), Error> {
        for item in &self.items {
            match item {
                Item::Ops(ops) => to.execute(ops).map_err(|f| Error::Executor(f.error))?,
                Item::Move(m) => {
                    let l = kernels.moves.launch(m, &self.core.shared.lines(self.lane), None);
                    // SAFETY: as in `launch`.
                    unsafe { to.launch(l.function, [l.blocks, l.threads], &l.arguments)? };
                    if !l.raises {
                        to.execute(&self.behind(m, None)).map_err(|f| Error::Executor(f.error))?;
                    }
                }
                Item::Pass(p) => {
                    let l = self.launch_of(kernels, p, None)?;
                    // SAFETY: as in `pass`.
                    unsafe { to.launch(l.function, [l.blocks, l.threads], &l.arguments)? };
                }
            }
        }
        Ok(())
    }

    /// Executes the list by the calling thread, and returns when it is done or the endpoint has failed.
    pub fn run_on_cpu(&mut self) -> Result<(), Error> {
        let core = self.core.clone();
        core.shared.peer()?;
        // A lane has one word for what is waited for: a stream's would be lost to the watchdog.
        self.is_unused()?;
        let mut cpu = Cpu::new(core.targets.clone(), |_| {
            std::thread::yield_now();
            Ok(())
        });
        for item in &self.items {
            match item {
                Item::Ops(ops) => cpu.execute(ops).map_err(|f| Error::Executor(f.error))?,
                Item::Move(m) => move_by_cpu(&core, self.lane, m),
                Item::Pass(p) => pass_by_cpu(&core.shared, self.lane, p),
            }
        }
        core.shared.failure().map_or(Ok(()), |f| Err(Error::Failed(f)))
    }

    /// Refuses memory that a stream cannot access.
    fn is_for_device(&self) -> Result<(), Error> {
        let locked = |at| registry::of(MemoryKind::Cuda).is_host_locked(at);
        let shared = &self.core.shared;
        let peer = shared.peer()?;
        if ![&shared.own, &shared.lanes, &peer.words].iter().all(|words| locked(words.at())) {
            return Err(Error::State(
                "no device finds the endpoint's words: open and connect it in a thread that has a CUDA context",
            ));
        }
        for (at, len) in self.buffers.iter().copied().filter(|b| b.1 > 0) {
            let host = registry::classify(at, len) == MemoryKind::System;
            if host && !(locked(at) && locked(at + len - 1)) {
                return Err(Error::NotForDevice(at));
            }
        }
        Ok(())
    }

    /// After a list that was cut the words of both sides differ: the endpoint has failed.
    fn cut_short(&self, cut: Cut) -> Error {
        if cut.begun {
            self.core.shared.fail(cut.error.errno(), Kind::None, 0);
        }
        cut.error
    }
}

/// The executor of a stream, kept or made.
fn executor(core: &Arc<Core>, stream: Stream, key: StreamKey) -> Result<CudaStream, Error> {
    let mut state = core.state();
    if let Some(at) = state.executors.iter().position(|(k, _)| *k == key) {
        return Ok(state.executors.swap_remove(at).1);
    }
    drop(state);
    // SAFETY: memory stays registered as long as the endpoint, which is not closed while a list is executed.
    Ok(unsafe { CudaStream::new(stream, core.targets.clone()) }?)
}

fn keep(core: &Arc<Core>, key: StreamKey, executor: CudaStream) {
    let executors = &mut core.state().executors;
    if executors.len() == EXECUTORS {
        executors.remove(0);
    }
    executors.push((key, executor));
}

/// A move as the kernel does it.
fn move_by_cpu(core: &Core, lane: u32, m: &Move) {
    let shared = &core.shared;
    shared.lanes.word(lane, AT).store(0, Release);
    shared.lanes.word(lane, BEGUN).fetch_add(1, AcqRel);
    if let Some(line) = m.clear {
        shared.own.word(line, 0).store(0, Release);
    }
    if shared.own.word(0, ERROR).load(Acquire) == 0 {
        copy_by_cpu(shared, m);
    }
    if let Some((raise, peer)) = m.raise.as_ref().zip(shared.peer.get()) {
        peer.words.word(raise.line, LENGTH).store(raise.length, Release);
        peer.words.word(raise.line, 0).store(1, Release);
    }
}

fn copy_by_cpu(shared: &Shared, m: &Move) {
    if let (Some((slot, wanted)), Some(line)) = (m.slot, m.clear) {
        if shared.own.word(line, LENGTH).load(Acquire) != wanted {
            return shared.fail(libc::EMSGSIZE, Kind::Receive, slot);
        }
    }
    if m.len == 0 {
        return;
    }
    if !copy_of(m.to, m.from, m.len) {
        shared.fail(libc::EFAULT, Kind::None, 0);
    }
}

/// A message as the kernel passes it on.
fn pass_by_cpu(shared: &Shared, lane: u32, p: &Pass) {
    let (Some(direct), s) = (shared.direct(), p.slots.whole(p.len)) else { return };
    let raise = |at, [raises, length]: [u32; 2]| {
        write(at + LENGTH, &length.to_ne_bytes()) && write(at, &raises.to_ne_bytes())
    };
    if let Some(line) = p.acknowledges {
        let failed = shared.own.word(0, ERROR).load(Acquire) != 0;
        if !failed && !raise(direct.peer + line as usize * LINE, [1, 0]) {
            return shared.fail(libc::EFAULT, Kind::None, 0);
        }
    }
    for part in 0..s.parts {
        let ((slot, word), begin) = (s.place(part), part as usize * s.part);
        let in_line = 8 * word as usize;
        let len = (p.len - begin).min(s.part);
        if let Some((kind, line)) = p.wait {
            let line = line + slot;
            let at = direct.own + line as usize * LINE + in_line;
            let Some(came) = wait_by_cpu(shared, lane, code(kind, line) | word << WORD_AT, at) else {
                return;
            };
            if p.checks && came != p.flag(part) {
                return shared.fail(libc::EMSGSIZE, Kind::Receive, slot);
            }
        }
        if shared.own.word(0, ERROR).load(Acquire) != 0 {
            return;
        }
        let (here, there) = (p.at + begin, s.at + slot as usize * s.stride + word as usize * s.cell);
        let (to, from) = if p.sends { (there, here) } else { (here, there) };
        let raised = p.raise.map(|line| direct.peer + (line + slot) as usize * LINE + in_line);
        let flag = if p.sends { p.flag(part) } else { [1, 0] };
        let done = (len == 0 || copy_of(to, from, len)) && raised.is_none_or(|at| raise(at, flag));
        if !done {
            return shared.fail(libc::EFAULT, Kind::None, 0);
        }
    }
}

/// Waits for a word of a device's memory and clears it; what it was, with the one beside it. None: the
/// endpoint has failed.
fn wait_by_cpu(shared: &Shared, lane: u32, code: u32, at: usize) -> Option<[u32; 2]> {
    shared.lanes.word(lane, BEGUN).fetch_add(1, AcqRel);
    shared.lanes.word(lane, AT).store(code, Release);
    let mut words = [0u32; 2];
    while words[0] & 1 == 0 && shared.own.word(0, ERROR).load(Acquire) == 0 {
        std::thread::yield_now();
        if !copy_of(words.as_mut_ptr().expose_provenance(), at, 8) {
            shared.fail(libc::EFAULT, Kind::None, 0);
        }
        // The watchdog asks whether it still waits.
        if words[0] & 1 == 0 && shared.waits_for(lane) == 0 {
            shared.lanes.word(lane, AT).store(code, Release);
        }
    }
    shared.lanes.word(lane, AT).store(0, Release);
    let came = words[0] & 1 != 0 && shared.own.word(0, ERROR).load(Acquire) == 0;
    (came && write(at, &0u32.to_ne_bytes())).then_some(words)
}

/// Copies memory of any kind, which stays meanwhile.
pub(crate) fn copy_of(to: usize, from: usize, len: usize) -> bool {
    let span = |at| {
        // SAFETY: the promises of the calls that added memory, and the endpoint's own.
        [unsafe { Span::new(at, len, registry::classify(at, len)) }]
    };
    hmem::copy(&span(to), 0, &span(from), 0, len) == len
}

/// Writes bytes to memory of the endpoint's, or of the peer's.
pub(crate) fn write(to: usize, bytes: &[u8]) -> bool {
    copy_of(to, bytes.as_ptr().expose_provenance(), bytes.len())
}

/// Lanes are numbered in a byte of the words of lists.
const _: () = assert!(LANES <= 256);
