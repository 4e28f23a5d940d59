//! What the calls of an endpoint, its lists and its watchdog share.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hmem::cuda::Stream;
use hmem::share::Opened;
use ipc::process::Name;
use peerop::cuda::CudaStream;
use peerop::{Place, Reach, TargetId, Targets};

use crate::carried::Carried;
use crate::endpoint::permit::Permit;
use crate::error::Error;
use crate::failure::{self, Failure, Kind};
use crate::kernel::Lines;
use crate::layout::{AT, ENDED, ERROR, LANES, LINE, Layout};
use crate::memory::Words;
use crate::slots::{BLOCKS, LONG_PUT, PUT_BLOCKS};

/// Lanes of the calls without a list.
pub(crate) const SENDS: u32 = 0;
pub(crate) const RECEIVES: u32 = 1;

/// Words, and where the peer's are.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Words that the peer writes, and slots in host memory.
    pub(crate) own: Words,
    /// Words that this process alone writes.
    pub(crate) lanes: Words,
    pub(crate) layout: Layout,
    pub(crate) timeout: Duration,
    pub(crate) peer: OnceLock<Peer>,
    pub(crate) stop: AtomicBool,
    /// The process that opened the endpoint.
    pub(crate) pid: u32,
}

/// The peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) words: Words,
    pub(crate) name: Name,
    pub(crate) pid: u32,
    /// Slots that this side writes to, and those in which messages arrive.
    pub(crate) to: usize,
    pub(crate) from: usize,
    /// Memory that this side puts to: where it is here, and its bytes.
    pub(crate) regions: Vec<(usize, u64)>,
    pub(crate) _opened: Vec<Opened>,
    pub(crate) places: Places,
    /// Of a peer that is not mapped: `words` is memory of this process, which the agent carries.
    pub(crate) agent: Option<Carried>,
    /// Kernels wait, for words in the devices' memory.
    pub(crate) direct: Option<Direct>,
    /// That they may.
    pub(crate) permit: Option<Permit>,
}

impl Peer {
    /// Most blocks of a put between two devices: without a signal it waits for nothing.
    pub(crate) fn put_blocks(&self, len: usize, waits: bool) -> usize {
        let has_one = || !self.permit.as_ref().is_some_and(Permit::is_two);
        if waits && len >= LONG_PUT && has_one() { BLOCKS } else { PUT_BLOCKS }
    }
}

/// Where the lines in the memory of the two devices are, and this side's device, which alone has both mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Direct {
    pub(crate) own: usize,
    pub(crate) peer: usize,
    pub(crate) device: i32,
}

/// The registered memory of bytecode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) own: TargetId,
    pub(crate) lanes: TargetId,
    pub(crate) peer: TargetId,
}

impl Places {
    pub(crate) fn new(targets: &Targets, shared: &Shared, peer: &Words) -> Result<Places, Error> {
        // SAFETY: both stay as long as the endpoint, and its words are accessed by atomics.
        let register = |w: &Words| unsafe { targets.register(w.at(), w.len(), Reach::Cpu) };
        Ok(Places { own: register(&shared.own)?, lanes: register(&shared.lanes)?, peer: register(peer)? })
    }
}

/// A word of a line.
pub(crate) fn place(target: TargetId, line: u32, byte: usize) -> Place {
    Place { target, offset: line as u64 * LINE as u64 + byte as u64 }
}

impl Shared {
    /// Both error words are set, the peer's first: nothing that this side moves later is taken for a message.
    pub(crate) fn fail(&self, errno: i32, kind: Kind, index: u32) {
        let word = failure::word(errno, kind, index);
        if let Some(peer) = self.peer.get() {
            let _ = peer.words.word(0, ERROR).compare_exchange(0, failure::of_peer(word), AcqRel, Relaxed);
        }
        fence(SeqCst);
        let _ = self.own.word(0, ERROR).compare_exchange(0, word, AcqRel, Relaxed);
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        failure::read(self.own.word(0, ERROR).load(Acquire), self.peer.get().map_or(0, |p| p.pid))
    }

    /// Refuses calls in a forked child.
    pub(crate) fn is_of_this_process(&self) -> Result<(), Error> {
        if self.pid == std::process::id() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Refuses calls after a failure, before the peer is known, and in a forked child.
    pub(crate) fn peer(&self) -> Result<&Peer, Error> {
        self.is_of_this_process()?;
        let peer = self.peer.get().ok_or(Error::State("the endpoint has no peer: call connect first"))?;
        self.failure().map_or(Ok(peer), |failure| Err(Error::Failed(failure)))
    }

    /// Whether kernels wait.
    pub(crate) fn direct(&self) -> Option<Direct> {
        self.peer.get().and_then(|p| p.direct)
    }

    pub(crate) fn lines(&self, lane: u32) -> Lines {
        let peer = self.peer.get().map_or(&self.own, |p| &p.words);
        Lines { own: self.own.at(), peer: peer.at(), lane: self.lanes.at() + lane as usize * LINE }
    }

    /// What a lane waits for; 0: nothing.
    pub(crate) fn waits_for(&self, lane: u32) -> u32 {
        self.lanes.word(lane, AT).load(Acquire)
    }
}

/// What calls change.
#[derive(Debug)]
pub(crate) struct State {
    /// The slots of the next send and the next receive.
    pub(crate) next: [u32; 2],
    /// Executions of each lane that were queued in streams.
    pub(crate) queued: [u64; LANES],
    /// Lanes of an execution that was cut, whose end could not be queued: the stream is asked.
    pub(crate) cut: [bool; LANES],
    /// Lanes that a list has.
    pub(crate) taken: [bool; LANES],
    /// The stream that each lane was last queued in.
    pub(crate) streams: [Option<StreamKey>; LANES],
    pub(crate) executors: Vec<(StreamKey, CudaStream)>,
}

/// A stream's handle, its context and the context's number.
pub(crate) type StreamKey = (usize, usize, u64);

/// An endpoint without what it was made of.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
    pub(crate) targets: Arc<Targets>,
    /// Of each lane: what the graphs hold that have its list.
    holds: [Arc<()>; LANES],
    state: Mutex<State>,
}

impl Core {
    pub(crate) fn new(shared: Arc<Shared>) -> Core {
        let mut taken = [false; LANES];
        taken[SENDS as usize] = true;
        taken[RECEIVES as usize] = true;
        let (next, queued, streams) = ([0; 2], [0; LANES], [None; LANES]);
        let state = State { next, queued, cut: [false; LANES], taken, streams, executors: Vec::new() };
        let holds = std::array::from_fn(|_| Arc::new(()));
        Core { shared, targets: Arc::new(Targets::new()), holds, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all that a lane was queued for in streams has ended.
    pub(crate) fn is_idle(&self, lane: u32) -> bool {
        self.ask_stream(lane);
        let ended = self.shared.lanes.word(lane, ENDED).load(Acquire);
        ended == self.state().queued[lane as usize] as u32 && self.shared.waits_for(lane) == 0
    }

    /// What a graph holds that has the list of a lane.
    pub(crate) fn hold(&self, lane: u32) -> Arc<()> {
        self.holds[lane as usize].clone()
    }

    /// Whether a graph, or an instance of one, has the list of a lane, as far as the driver says it.
    pub(crate) fn is_held(&self, lane: u32) -> bool {
        Arc::strong_count(&self.holds[lane as usize]) > 1
    }

    /// Of an execution that was cut without an end behind it: that is over when its stream is. Of a failed
    /// endpoint all is over whose context is gone.
    fn ask_stream(&self, lane: u32) {
        let failed = self.shared.failure().is_some();
        let mut state = self.state();
        let n = lane as usize;
        let Some((stream, context, id)) = state.streams[n].filter(|_| failed || state.cut[n]) else { return };
        // Only of a cut execution: a program destroys its stream once what was queued there is done.
        let is_done = || {
            // SAFETY: the promise of the call that queued there: it stays a stream until all of that is done.
            let stream = unsafe { Stream::captured_too(stream) };
            stream.and_then(Stream::is_done).is_ok_and(|done| done)
        };
        if failed && hmem::cuda::is_gone(context, id) || state.cut[n] && is_done() {
            state.cut[n] = false;
            self.shared.lanes.word(lane, ENDED).store(state.queued[n] as u32, Release);
            self.shared.lanes.word(lane, AT).store(0, Release);
        }
    }

    /// How many executions of a lane that were queued in streams have ended.
    pub(crate) fn executed(&self, lane: u32) -> u64 {
        let ended = self.shared.lanes.word(lane, ENDED).load(Acquire);
        let queued = self.state().queued[lane as usize];
        queued.saturating_sub(u64::from((queued as u32).wrapping_sub(ended)))
    }

    /// Refuses a lane for a stream while another one has not executed what it was given: a lane has one word
    /// for what is waited for.
    pub(crate) fn take_lane(&self, lane: u32, stream: StreamKey) -> Result<(), Error> {
        let idle = self.is_idle(lane);
        let last = &mut self.state().streams[lane as usize];
        if last.is_some_and(|other| other != stream) && !idle {
            return Err(Error::Busy(
                "another stream has not executed what it was given: queue in that one, or wait for it",
            ));
        }
        *last = Some(stream);
        Ok(())
    }
}
