//! An endpoint: opened, connected to one peer, closed.

mod connect;
pub(crate) mod permit;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hmem::Kind as MemoryKind;
use hmem::cuda::{self, Made, Stream};
use hmem::registry;
use ipc::process::Name;

use crate::agent::Carrier;
use crate::blob::{self, Blob, Region};
use crate::carried::Carried;
use crate::error::Error;
use crate::failure::{Failure, Kind};
use crate::kernel;
use crate::layout::{CLOSED, LANES, LINE, Layout, OVER, WORDS};
use crate::limit::Farewell;
use crate::list::List;
use crate::memory::Words;
use crate::pass;
use crate::run::write;
use crate::shared::{Core, RECEIVES, SENDS, Shared};

/// How an endpoint is opened. Both sides have the same slots, bytes and signals.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Messages that may be on the way in each direction.
    pub slots: u32,
    /// Bytes of a slot, a multiple of 16: a longer message takes several.
    pub slot_bytes: u32,
    /// Signals of puts.
    pub signals: u32,
    /// How long a stream waits at most for one operation.
    pub timeout: Duration,
    /// Slots are in host memory even if a device's could be mapped.
    pub in_host_memory: bool,
    /// The agent carries even where memory can be mapped.
    pub by_agent: bool,
    /// Memory operations wait even where kernels could.
    pub by_memory_operations: bool,
}

impl Default for Options {
    fn default() -> Options {
        let timeout = Duration::from_secs(30);
        Options {
            slots: 32,
            slot_bytes: 64 << 10,
            signals: 16,
            timeout,
            in_host_memory: false,
            by_agent: false,
            by_memory_operations: false,
        }
    }
}

/// Which memory messages go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// The peer's device memory.
    Device,
    /// Host memory that both processes map.
    Host,
    /// Host memory of each process; an agent copies.
    Agent,
}

/// Which way messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The memory.
    pub through: Through,
    /// Why.
    pub why: String,
}

/// Fails an endpoint, by any thread.
#[derive(Debug)]
pub struct Abort(Arc<Shared>);

impl Abort {
    /// Does it.
    pub fn abort(&self) -> Result<(), Error> {
        self.0.is_of_this_process()?;
        self.0.fail(libc::ECANCELED, Kind::None, 0);
        Ok(())
    }
}

/// One side of a connection between two processes of a host.
pub struct Endpoint {
    core: Arc<Core>,
    regions: Vec<Region>,
    slots: Option<Made>,
    no_slots: String,
    path: Option<Path>,
    watch: Option<JoinHandle<()>>,
    by_agent: bool,
    by_memory_operations: bool,
    /// The host's boot, and the endpoint's number ([`blob::NUMBER`]).
    boot: [u8; 16],
    number: u32,
    /// The peer may know the registrations: there are no more.
    described: bool,
    /// What brings words to a peer that is not mapped, and the words for it, until there is a peer.
    carrier: Option<Box<dyn Carrier>>,
    near: Option<Words>,
}

impl Endpoint {
    /// Opens one. The slots are in memory of the calling thread's CUDA context, if it has one, and kernels
    /// are loaded there. `carrier`: for a peer of another host, or one whose memory is not mapped.
    pub fn open(options: Options, mut carrier: Option<Box<dyn Carrier>>) -> Result<Endpoint, Error> {
        let layout =
            Layout { slots: options.slots, slot_bytes: options.slot_bytes, signals: options.signals };
        if !layout.is_valid() {
            return Err(Error::Invalid(
                "slots and signals are 1 to 1024, slot_bytes is a multiple of 16 up to 16 MiB, and the slots \
                 have 1 GiB at most",
            ));
        }
        let boot = boot()?;
        let (own, lanes) = (Words::new(layout.len())?, Words::new(LANES * LINE)?);
        for slot in 0..layout.slots {
            own.word(layout.credit(slot), 0).store(1, Release);
        }
        for signal in 0..layout.signals {
            own.word(layout.signal_credit(signal), 0).store(1, Release);
        }
        let near = match &mut carrier {
            None => None,
            Some(carrier) => {
                let near = Words::new(layout.near_len())?;
                // SAFETY: both stay as long as the endpoint, whose `end` closes the carrier.
                unsafe { carrier.register((own.at(), layout.len()), (near.at(), near.len()))? };
                Some(near)
            }
        };
        load_kernels()?;
        let (slots, no_slots) = match device_slots(&layout, options.in_host_memory) {
            Ok(slots) => (Some(slots), String::new()),
            Err(why) => (None, why),
        };
        let shared = Shared {
            own,
            lanes,
            layout,
            timeout: options.timeout,
            peer: OnceLock::new(),
            stop: AtomicBool::new(false),
            pid: std::process::id(),
        };
        let core = Arc::new(Core::new(Arc::new(shared)));
        Ok(Endpoint {
            core,
            regions: Vec::new(),
            slots,
            no_slots,
            path: None,
            watch: None,
            by_agent: options.by_agent,
            by_memory_operations: options.by_memory_operations,
            boot,
            number: number(),
            described: false,
            carrier,
            near,
        })
    }

    /// Registers device memory that the peer may put to and get from; its number.
    ///
    /// # Safety
    /// The memory stays allocated until both sides have closed.
    pub unsafe fn register(&mut self, at: usize, len: usize) -> Result<u32, Error> {
        if len == 0 || at.checked_add(len).is_none() {
            return Err(Error::Invalid("no memory can be at this address: pass an address and a length"));
        }
        if self.described || self.regions.len() == blob::REGIONS {
            return Err(Error::State("at most 64 registrations are made, before the call for the blob"));
        }
        let kind = registry::classify_to_register(at, len);
        let export = if self.by_agent {
            // Nothing of it is mapped.
            self.core.shared.own.export()
        } else if kind == MemoryKind::System {
            return Err(Error::Invalid(
                "the memory is not a device's: allocate it by cuMemAlloc, or open the endpoint by an agent",
            ));
        } else {
            let exports = registry::of(kind).export_ipc(at, len, 1);
            exports.map_err(|e| Error::Memory("exporting the memory", e))?.first().copied()
        };
        let export = export.ok_or(Error::Invalid("the memory cannot be exported"))?;
        if let Some(carrier) = &mut self.carrier {
            // SAFETY: the caller's promise; the carrier is closed before this side has closed.
            unsafe { carrier.window(at, len)? };
        }
        self.regions.push(Region { base: at as u64, len: len as u64, export });
        Ok(self.regions.len() as u32 - 1)
    }

    /// What the peer has to know: bytes that the program brings there.
    pub fn blob(&mut self) -> Result<Vec<u8>, Error> {
        self.described = true;
        let shared = &self.core.shared;
        let export = shared.own.export().ok_or(Error::State("its memory cannot be exported"))?;
        let words = Region { base: shared.own.at() as u64, len: shared.own.len() as u64, export };
        let slots = self.slots.as_ref().map(|s| Region {
            base: s.addr() as u64,
            len: shared.layout.device_len() as u64,
            export: s.export(),
        });
        let (layout, regions) = (shared.layout, self.regions.clone());
        let agent = self.carrier.as_ref().map_or_else(Vec::new, |c| c.blob());
        let (boot, process, pid) = (self.boot, Name::own(), shared.pid);
        // SAFETY: no condition.
        let user = unsafe { libc::geteuid() };
        let (by_agent, number) = (self.by_agent, self.number);
        let blob = Blob { boot, process, pid, user, number, layout, words, slots, regions, agent, by_agent };
        Ok(blob.encode())
    }

    /// How often an agent has polled; 0: there is none.
    pub fn polls(&self) -> u64 {
        let peer = self.core.shared.peer.get();
        peer.and_then(|p| p.agent.as_ref()).map_or(0, Carried::polls)
    }

    /// Which way messages to the peer go, and why.
    pub fn path(&self) -> Result<&Path, Error> {
        self.path.as_ref().ok_or(Error::State("the endpoint has no peer: call connect first"))
    }

    /// Refuses calls in a child of the process that opened it.
    pub fn is_of_this_process(&self) -> Result<(), Error> {
        self.core.shared.is_of_this_process()
    }

    /// What failed, if anything did.
    pub fn failure(&self) -> Option<Failure> {
        self.core.shared.failure()
    }

    /// The address of the error word, for kernels of the program's: not 0 once the endpoint has failed.
    pub fn error_word(&self) -> usize {
        self.core.shared.own.at() + crate::layout::ERROR
    }

    /// How many calls without a list streams have executed: sends and puts; receives, gets and waits.
    pub fn executed(&self) -> [u64; 2] {
        [self.core.executed(SENDS), self.core.executed(RECEIVES)]
    }

    /// A list with room for so many operations.
    pub fn list(&self, entries: usize) -> Result<List, Error> {
        List::new(self.core.clone(), entries)
    }

    /// Queues one operation, or several, without a list: sends and puts in one stream at a time, and
    /// receives, gets and waits in one: EBUSY while another one has not executed what it was given.
    ///
    /// # Safety
    /// As of [`List::run`] and of what `add` calls.
    pub unsafe fn queue(
        &self,
        stream: usize,
        sends: bool,
        add: impl FnOnce(&mut List) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = self.core.state().next;
        let lane = if sends { SENDS } else { RECEIVES };
        let mut list = List::of_lane(self.core.clone(), lane, usize::MAX);
        add(&mut list)?;
        // SAFETY: the caller's promise.
        unsafe { list.queue(stream) }.map_err(|cut| {
            if cut.begun {
                self.core.shared.fail(cut.error.errno(), Kind::None, 0);
            } else {
                self.core.state().next = before;
            }
            cut.error
        })
    }

    /// The same by the calling thread, which waits.
    ///
    /// # Safety
    /// As of what `add` calls.
    pub unsafe fn execute(
        &self,
        sends: bool,
        add: impl FnOnce(&mut List) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let lane = if sends { SENDS } else { RECEIVES };
        let mut list = List::of_lane(self.core.clone(), lane, usize::MAX);
        // Before a slot is taken for it.
        list.is_unused()?;
        add(&mut list)?;
        list.run_on_cpu()
    }

    /// What fails the endpoint and the peer's: all waits pass, and nothing is moved any more.
    pub fn aborts(&self) -> Abort {
        Abort(self.core.shared.clone())
    }

    /// Closes the endpoint. EBUSY: lists are open, or streams have not executed what they were given; all
    /// stays as it is then.
    pub fn close(&mut self) -> Result<(), Error> {
        self.is_of_this_process()?;
        if Arc::strong_count(&self.core) > 1 {
            return Err(Error::Busy(
                "lists of the endpoint are open: free them once streams and graphs are done",
            ));
        }
        if !(0..LANES as u32).all(|lane| self.core.is_idle(lane)) {
            return Err(Error::Busy(
                "a stream has not executed what it was given: wait for it, or abort first",
            ));
        }
        if (0..LANES as u32).any(|lane| self.core.is_held(lane)) {
            return Err(Error::Busy(
                "a graph has a list of the endpoint: destroy it and its instances first",
            ));
        }
        self.end();
        Ok(())
    }

    /// Waits until what was sent has arrived, and the end behind it. Of an endpoint that has failed, or has
    /// never had its peer, only the end itself is to arrive.
    fn farewell(&self, state: &Carried) {
        let mut farewell = Farewell::begin(state.done(), Instant::now());
        while !state.has_ended() && !state.is_lost() {
            // The peer may fail it meanwhile.
            let has_sent = self.path.is_some() && self.core.shared.failure().is_none();
            if farewell.is_over(state.done(), has_sent, Instant::now()) {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn end(&mut self) {
        if self.core.shared.stop.load(Acquire) {
            return;
        }
        self.core.shared.own.word(0, OVER).store(1, Release);
        if let Some(peer) = self.core.shared.peer.get() {
            std::sync::atomic::fence(SeqCst);
            peer.words.word(0, CLOSED).store(1, Release);
            if let Some(state) = &peer.agent {
                self.farewell(state);
            }
        }
        if let Some(carrier) = &mut self.carrier {
            carrier.close();
        }
        self.core.shared.stop.store(true, Release);
        if let Some(watch) = self.watch.take() {
            watch.thread().unpark();
            let _ = watch.join();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.core.shared.pid != std::process::id() {
            // The thread is the parent's.
            std::mem::forget(self.watch.take());
            std::mem::forget((self.carrier.take(), self.near.take()));
            return;
        }
        self.end();
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("path", &self.path).field("core", &self.core).finish()
    }
}

/// Slots in the memory of a device of which the process has a context; in `Err`, why not. The memory stays as
/// long as a process has it mapped: a peer may write a message while this side closes.
fn device_slots(layout: &Layout, in_host_memory: bool) -> Result<Made, String> {
    if in_host_memory {
        return Err("the options ask for it".into());
    }
    if !cuda::find_driver() {
        return Err("this process has no CUDA".into());
    }
    let made = cuda::device(None).and_then(|device| Made::new(device, layout.device_len()));
    let made = made.map_err(|e| format!("no memory of a device was made for the slots: {e}"))?;
    // Each slot and signal of the peer's has its credit.
    let mut lines = vec![0u8; layout.head()];
    for slot in 0..layout.slots {
        for word in 0..WORDS as usize {
            lines[layout.credit(slot) as usize * LINE + 8 * word] = 1;
        }
    }
    for signal in 0..layout.signals {
        lines[layout.signal_credit(signal) as usize * LINE] = 1;
    }
    write(made.addr() + layout.device_lines(), &lines)
        .then_some(made)
        .ok_or_else(|| "the words of the slots could not be written to the device".into())
}

/// Loads the kernels of the calling thread's context, if it has one. The driver waits then for what is queued
/// there, which at the first call for a stream may be a wait that the program has yet to end.
fn load_kernels() -> Result<(), Error> {
    if !cuda::find_driver() {
        return Ok(());
    }
    // SAFETY: the stream names the context alone.
    if let Ok(stream) = unsafe { Stream::captured_too(0) } {
        let id = kernel::context_id(stream)?;
        kernel::load(stream, id)?;
        // Where there are none, memory operations wait.
        let _ = pass::load(stream, id);
        peerop::cuda::means(stream)?;
    }
    Ok(())
}

/// The host's boot. Zeros where /proc is not there: peers are then reached by an agent alone.
fn boot() -> Result<[u8; 16], Error> {
    let boot = ipc::host::boot();
    if boot == [0; 16] || Name::own().namespace == 0 {
        // Too few descriptors say nothing of the host and of the process.
        std::fs::File::open("/")?;
    }
    Ok(boot)
}

/// One that another endpoint of the host hardly has.
fn number() -> u32 {
    RandomState::new().build_hasher().finish() as u32 & blob::NUMBER
}

#[cfg(test)]
mod tests;
