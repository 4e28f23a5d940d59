//! A context of the program's own: an endpoint, memory that peers reach, rings, and the tables that a device
//! reads.
//!
//! Contexts of several processes come to know each other by blobs ([`Context::blob`], [`Context::connect`]).
//! After [`Context::begin`] nothing is added, and a thread drains the rings.

mod lane;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use engine::{Access, MrId, Reg};
use hmem::registry::{self, Pages};
use hmem::share::{self, Export, Opened, Owner};
use hmem::{Kind, Span};
use ipc::process::Name;

use crate::blob::{self, Blob, Region};
use crate::drain::Drain;
use crate::error::{Error, code, ended};
use crate::handle::{RingHandle, RingRequest};
use crate::layout;
use crate::port::{Peers, Regions};
use crate::queue::Place;
use crate::thread::{Drains, Feed, Pace};
use crate::words::Words;
use lane::Lane;

/// How a context is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The endpoint's name; `None`: all addresses of the host, and a free port.
    pub bind: Option<SocketAddr>,
    /// Peers of other hosts are reached by TCP, if they have the same key.
    pub key: Option<wire::session::JobKey>,
    /// Of waits of the device that name no time.
    pub timeout: Duration,
    /// What the drain's thread does between polls that find nothing.
    pub pace: Pace,
    /// Peers of this host are reached by shared memory; otherwise by TCP, with a key.
    pub shm: bool,
    /// How many threads drain the rings: ring r is that of thread r modulo this.
    pub threads: usize,
    /// How long a thread sleeps at most once nothing has happened for 10 ms. `None`: as `pace` says.
    pub idle: Option<Duration>,
}

/// Threads that a context may have.
pub const THREADS: usize = 16;

/// Wakes the threads of a context that sleep.
#[derive(Clone, Debug)]
pub struct Waker(Vec<Arc<Drains>>);

impl Waker {
    /// See [`Drains::wake`].
    pub fn wake(&self) {
        self.0.iter().for_each(|drains| drains.wake());
    }
}

impl Default for Options {
    fn default() -> Options {
        let (timeout, pace) = (Duration::from_secs(30), Pace::adapts(Duration::from_micros(50)));
        Options { bind: None, key: None, timeout, pace, shm: true, threads: 1, idle: None }
    }
}

/// Memory of this process that peers reach.
#[derive(Debug)]
struct Registered {
    span: Span,
    key: u64,
    mr: MrId,
    export: Option<Export>,
    _pages: Option<Pages>,
    _words: Option<Arc<Words>>,
}

/// What keeps a peer's memory mapped.
struct Mapped {
    /// Goes first.
    _locked: Vec<Pages>,
    _opened: Opened,
}

/// Nearly all that can be done without an application's endpoint.
pub struct Context {
    /// The first has the memory that peers reach.
    lanes: Vec<Lane>,
    options: Options,
    regions: Arc<Regions>,
    registered: Vec<Registered>,
    mapped: Vec<Mapped>,
    peers: Vec<Blob>,
    rank: u32,
    table: Vec<layout::Peer>,
    rings: Vec<(RingHandle, RingRequest)>,
    view: Option<Place>,
    /// The peers' error words.
    errors: Option<Place>,
    closed: bool,
}

/// Most peers, and entries of the table.
const PEERS: usize = 1 << 20;
/// Most bytes of a message.
pub(crate) const MESSAGE: u64 = (1 << 40) - 1;

impl Context {
    /// Opens one, with an endpoint for each of its threads.
    pub fn open(options: Options) -> Result<Context, Error> {
        if options.threads == 0 || options.threads > THREADS {
            return Err(Error::Invalid("a context has 1 to 16 threads"));
        }
        let key = options.key.as_ref();
        let mut lanes = vec![Lane::open(options.bind, key, options.shm)?];
        for _ in 1..options.threads {
            // No peer calls these by a port that it knows.
            let bind = options.bind.map(|bind| SocketAddr::new(bind.ip(), 0));
            lanes.push(Lane::open(bind, key, options.shm)?);
        }
        Ok(Context {
            lanes,
            options,
            regions: Arc::default(),
            registered: Vec::new(),
            mapped: Vec::new(),
            peers: Vec::new(),
            rank: 0,
            table: Vec::new(),
            rings: Vec::new(),
            view: None,
            errors: None,
            closed: false,
        })
    }

    fn main(&self) -> &Lane {
        &self.lanes[0]
    }

    /// For whatever starts kernels: their commands find the threads awake.
    pub fn waker(&self) -> Waker {
        Waker(self.lanes.iter().map(|lane| lane.drains().clone()).collect())
    }

    /// Its endpoint's name.
    pub fn addr(&self) -> wire::Addr {
        self.main().addr()
    }

    fn is_being_set_up(&self) -> Result<(), Error> {
        match self.view {
            None if !self.closed => Ok(()),
            _ => Err(Error::State("the context has begun: all is set up before strait_xpu_begin")),
        }
    }

    /// Registers memory of the program, a device's or the host's; the region's number. All processes register
    /// theirs in the same order.
    ///
    /// # Safety
    /// `addr..addr+len` stays allocated until the context is closed, and only in ways that allow for peers'
    /// accesses at any time are references made to it.
    pub unsafe fn register(&mut self, addr: usize, len: usize) -> Result<u32, Error> {
        registry::find_runtimes();
        let kind = hmem::classify(addr, len);
        // SAFETY: the caller's promise; the registration ends before the context does.
        let span = unsafe { Span::new(addr, len, kind) };
        let mut exports = match kind {
            Kind::System => Vec::new(),
            _ => registry::of(kind).export_ipc(addr, len, 1).unwrap_or_default(),
        };
        // SAFETY: as above.
        unsafe { self.add(span, exports.pop(), None) }
    }

    /// Registers new memory of the host's, which devices and peers of this host may map.
    pub fn allocate(&mut self, words: usize) -> Result<(u32, Arc<Words>), Error> {
        let memory = Words::new(words)?;
        // SAFETY: kept beside the registration; nothing but atomics is ever made of it here.
        let region = unsafe { self.add(memory.span(), memory.export(), Some(memory.clone())) }?;
        Ok((region, memory))
    }

    /// # Safety
    /// As for [`Context::register`], unless `words` is that memory.
    unsafe fn add(
        &mut self,
        span: Span,
        export: Option<Export>,
        words: Option<Arc<Words>>,
    ) -> Result<u32, Error> {
        self.is_being_set_up()?;
        if span.is_empty() || self.registered.len() == blob::REGIONS {
            return Err(Error::Invalid("a region has at least 1 byte, and a context at most 4096 regions"));
        }
        let pages = registry::get_pages(span, true).map_err(Error::Memory)?;
        // What peers unmap under an access must not end this process.
        hmem::guard::hold(true);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (mr, key) = self.main().runtime().enter()?.mr_reg(&Reg { iov: &[span], access, key: None })?;
        // SAFETY: the caller's promise.
        let number = unsafe { self.regions.add(span) };
        let number = number.ok_or(Error::Invalid("too many regions"))?;
        debug_assert_eq!(number as usize, self.registered.len());
        self.registered.push(Registered { span, key, mr, export, _pages: pages, _words: words });
        Ok(number)
    }

    /// What peers have to know of this process, once all its memory is registered.
    pub fn blob(&self) -> Vec<u8> {
        let describe = |r: &Registered| Region {
            base: r.span.addr(),
            len: r.span.len() as u64,
            key: r.key,
            export: r.export,
        };
        let regions = self.registered.iter().map(describe).collect();
        Blob { addr: self.addr(), process: Name::own(), boot: ipc::host::boot(), regions }.encode()
    }

    /// Comes to know all processes, of which this is number `rank`: their blobs, in the order of their
    /// numbers.
    pub fn connect(&mut self, rank: u32, blobs: &[&[u8]]) -> Result<(), Error> {
        self.is_being_set_up()?;
        let count = self.registered.len();
        if rank as usize >= blobs.len() || blobs.len() * count.max(1) > PEERS || !self.peers.is_empty() {
            return Err(Error::Invalid(
                "connect is called once, with a blob of each process, and this one's number",
            ));
        }
        let all = blobs.iter().map(|b| Blob::decode(b)).collect::<Result<Vec<_>, _>>()?;
        let own = &all[rank as usize];
        if own.addr != self.addr() || own.regions.len() != count {
            return Err(Error::Blob(
                "the one of this process's number is not this process's, or is older than its last region",
            ));
        }
        let boot = ipc::host::boot();
        for (number, peer) in all.iter().enumerate() {
            let is_here = peer.boot == boot && boot != [0; 16];
            let pid = peer.process.pid().filter(|_| is_here);
            for region in 0..count {
                let entry = self.entry(number == rank as usize, pid, peer.regions.get(region), region);
                self.table.push(entry);
            }
            if pid.is_some() && number != rank as usize {
                self.main().drains().watch(number as u32, peer.process);
            }
        }
        self.rank = rank;
        self.peers = all;
        Ok(())
    }

    /// The table's entry of a peer's region; maps it, where that can be done.
    fn entry(&mut self, own: bool, pid: Option<u32>, remote: Option<&Region>, region: usize) -> layout::Peer {
        let Some(remote) = remote else { return layout::Peer::default() };
        let mut entry = layout::Peer { mapped: 0, remote: remote.base, key: remote.key, length: remote.len };
        if own {
            entry.mapped = remote.base;
            return entry;
        }
        let (Some(pid), Some(export)) = (pid, &remote.export) else { return entry };
        let near = self.registered[region].span.addr() as usize;
        let owner = Owner::now(pid as i32);
        match share::open(owner.pid, owner.id, export, near) {
            Ok(opened) => {
                // All of the region is in that allocation, or none of it is mapped.
                let place = opened.place(remote.base).filter(|(_, follow)| *follow as u64 >= remote.len);
                let Some((at, _)) = place else { return entry };
                let locked = match opened.kind() {
                    // SAFETY: mapped for as long as `opened` is kept, beside what is returned and behind it.
                    Kind::System => unsafe { registry::lock_for_devices(at, remote.len as usize) },
                    _ => Vec::new(),
                };
                entry.mapped = at as u64;
                self.mapped.push(Mapped { _locked: locked, _opened: opened });
            }
            Err(why) => log::info!("a region of process {pid} is reached by commands: {why}"),
        }
        entry
    }

    /// Makes a ring.
    pub fn open_ring(&mut self, request: RingRequest) -> Result<RingHandle, Error> {
        self.is_being_set_up()?;
        let handle = RingHandle::new(self.rings.len() as u32, &request)?;
        self.rings.push((handle.clone(), request));
        Ok(handle)
    }

    /// Ends the setting up: makes the tables, and starts the thread that drains the rings. Returns where a
    /// device finds [`layout::Context`].
    pub fn begin(&mut self) -> Result<u64, Error> {
        self.is_being_set_up()?;
        let timeout_ns = u64::try_from(self.options.timeout.as_nanos()).unwrap_or(u64::MAX);
        let mut drains = Vec::new();
        for (number, lane) in self.lanes.iter().enumerate() {
            let (port, peers) = lane.port(self.peers.iter().map(|p| p.addr))?;
            // Peers know the first endpoint alone: messages are its own.
            let message = (number == 0).then_some(MESSAGE);
            drains.push(Drain::new(port, Peers::List(peers), self.regions.clone(), message));
        }
        let count = drains.len();
        let rings = self.rings.iter().enumerate();
        let rings: Vec<_> =
            rings.map(|(at, (ring, of))| ring.add_to(&mut drains[at % count], of, timeout_ns)).collect();
        let regions = self.registered.iter().map(|r| layout::Region {
            base: r.span.addr(),
            length: r.span.len() as u64,
            key: r.key,
            unused: 0,
        });
        let words: [Vec<u64>; 3] = [
            rings.iter().flat_map(layout::Ring::words).collect(),
            regions.flat_map(|r| r.words()).collect(),
            self.table.iter().flat_map(layout::Peer::words).collect(),
        ];
        let head = size_of::<layout::Context>() / 8;
        let total = head + words.iter().map(Vec::len).sum::<usize>() + self.peers.len();
        let memory = Words::new(total + 8)?;
        let (mut at, mut places) = (head, Vec::new());
        for part in &words {
            let place = Place { words: memory.clone(), at };
            place.write(part);
            at += part.len();
            places.push(place.device());
        }
        let errors = Place { words: memory.clone(), at };
        let view = layout::Context {
            version: layout::VERSION,
            rank: self.rank,
            peer_count: self.peers.len() as u32,
            region_count: self.registered.len() as u32,
            ring_count: self.rings.len() as u32,
            rings: places[0],
            regions: places[1],
            peers: places[2],
            peer_errors: errors.device(),
            timeout_ns,
            ..layout::Context::default()
        };
        let place = Place { words: memory, at: 0 };
        place.write(&view.words());
        drains.iter_mut().for_each(|drain| drain.set_losses(errors.clone()));
        self.errors = Some(errors);
        let pace = self.options.pace;
        let pace = self.options.idle.map_or(pace, |most| pace.resting(most));
        for (lane, drain) in self.lanes.iter_mut().zip(drains) {
            lane.start(drain, pace)?;
        }
        let at = place.device();
        self.view = Some(place);
        Ok(at)
    }

    /// Has the thread of the drain poll that before each of its own polls.
    pub fn feed_by(&self, feed: Box<dyn Feed>) {
        self.lanes[0].drains().set_feed(Some(feed));
    }

    /// The entry of a peer's region in the table: what a device sees.
    pub fn peer(&self, peer: u32, region: u32) -> Option<layout::Peer> {
        let count = self.registered.len();
        let inside = (region as usize) < count;
        self.table.get(peer as usize * count + region as usize).filter(|_| inside).copied()
    }

    /// A peer's region, also one of a number that this process has none of: commands reach it.
    pub fn region_of_peer(&self, peer: u32, region: u32) -> Option<layout::Region> {
        let r = self.peers.get(peer as usize)?.regions.get(region as usize)?;
        Some(layout::Region { base: r.base, length: r.len, key: r.key, unused: 0 })
    }

    fn error_of(&self, peer: u32) -> Option<&AtomicU64> {
        let errors = self.errors.as_ref().filter(|_| (peer as usize) < self.peers.len())?;
        Some(errors.word(peer as usize))
    }

    /// A peer's error word: 0, or why it is lost.
    pub fn peer_error(&self, peer: u32) -> u64 {
        self.error_of(peer).map_or(0, |w| w.load(Acquire))
    }

    /// Ends it: devices get an error word in each ring and for each peer, nothing is taken any more, and no
    /// peer reaches memory of this process when it returns. Memory of the rings and tables goes when the
    /// context is dropped: kernels that use it have to have ended by then.
    pub fn close(&mut self) -> Result<(), Error> {
        let had_begun = self.lanes.iter_mut().map(Lane::stop).filter(|begun| *begun).count() > 0;
        if had_begun {
            for peer in 0..self.peers.len() as u32 {
                if let Some(error) = self.error_of(peer).filter(|w| w.load(Relaxed) == 0) {
                    error.store(ended(code::CANCELED), Release);
                }
            }
        }
        if !self.closed {
            self.lanes.iter_mut().try_for_each(Lane::close)?;
            self.closed = true;
            for r in &self.registered {
                self.main().runtime().take_back(|engine| engine.mr_close(r.mr))?;
            }
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.close().is_err() {
            // Peers may still be inside of the memory, and the engine has spans of it.
            std::mem::forget(std::mem::take(&mut self.registered));
            self.lanes.iter().for_each(|lane| std::mem::forget(lane.runtime().clone()));
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (regions, rings) = (self.registered.len(), self.rings.len());
        f.debug_struct("Context")
            .field("addr", &self.addr())
            .field("regions", &regions)
            .field("rings", &rings)
            .finish()
    }
}
