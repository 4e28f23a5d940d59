//! Opening an endpoint.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipc::Poller;
use ipc::fence::Barrier;
use ipc::rights::Spare;

use super::board::Board;
use super::hello;
use super::{HOT, NOBODY, PACE, ShmLink, Windows, ring, segment, service};
use crate::name::Name;
use crate::space::Space;

/// Bytes of a ring if nothing else is asked for. With the control page it makes 128 KiB, which take
/// memory only where they were touched.
pub const DEFAULT_RING: usize = 124 << 10;

/// Bytes of a ring to one of the first [`FEW`] peers, if nothing else is asked for. Between cores that share no
/// cache a long ring moves up to twice the bytes, since who is ahead seldom has to wait; between many, such rings
/// would take too much memory.
pub const LONG_RING: usize = 508 << 10;

/// How many peers at a time have a long ring.
pub const FEW: usize = 16;

/// Least bytes of a ring: enough for frames of 10 KiB.
pub const MIN_RING: usize = 24 << 10;

/// Most bytes of a ring.
pub const MAX_RING: usize = segment::MAX_RING;

/// The ring that is made where one of so many bytes is asked for.
fn size(ring: usize) -> usize {
    ring.clamp(MIN_RING, MAX_RING).next_multiple_of(4096)
}

/// Most bytes of payload that travel inside a frame of a ring for which so many bytes were asked.
pub fn eager_most(ring: usize) -> usize {
    ring::max_frame((size(ring) / ring::LINE) as u32) - wire::EAGER_HEAD
}

/// How to open a [`ShmLink`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The endpoint's name. Port 0 takes a free one, an unspecified address serves all of the
    /// host's; `None` is `0.0.0.0:0`.
    pub bind: Option<SocketAddr>,
    /// Bytes of the ring to each peer; rounded up to pages, and to [`MIN_RING`].
    pub ring: usize,
    /// Likewise, to the first [`FEW`] peers; no less than `ring`.
    pub long_ring: usize,
    /// See [`link_api::Path::eager`]: what paths say, which the link itself makes no use of.
    pub eager: usize,
    /// See [`link_api::Path::eager_in_a_row`].
    pub eager_in_a_row: usize,
    /// Whether to reach peers' memory directly where the kernel allows it.
    pub cma: bool,
    /// Whether a device copies from or to a peer's device memory where the driver allows it.
    pub device_direct: bool,
    /// How long a peer that was never reached may take to appear.
    pub connect_timeout: Duration,
    /// How long a peer waits for descriptors or memory that a channel to or from it needs and that this
    /// process lacks.
    pub patience: Duration,
    /// What peers have to speak, told by a number: [`wire::VERSION`] for the engine's frames.
    pub version: u16,
    /// Windows that peers may ask this endpoint for, and where those of peers go.
    pub windows: Option<Arc<Windows>>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            bind: None,
            ring: DEFAULT_RING,
            long_ring: LONG_RING,
            eager: 8 << 10,
            eager_in_a_row: 8 << 10,
            cma: true,
            device_direct: true,
            connect_timeout: Duration::from_secs(3),
            patience: Duration::from_secs(3),
            version: wire::VERSION,
            windows: None,
        }
    }
}

impl ShmLink {
    /// Opens an endpoint of this name; `AddrInUse` if it is taken.
    pub fn open(options: OpenOptions) -> io::Result<ShmLink> {
        let chosen = options.bind.is_some_and(|bind| bind.port() != 0);
        let (name, listener) = Name::claim(options.bind, |bound| listen(bound, chosen))?;
        let poller = Poller::new()?;
        poller.add(&listener, service::LISTENER)?;
        let ring = size(options.ring);
        let long_ring = size(options.long_ring).max(ring);
        let board = Board::create()?;
        let link = ShmLink {
            peers: Vec::new(),
            hot: [NOBODY; HOT],
            hot_len: 0,
            hot_turn: 0,
            ins: Vec::new(),
            ins_turn: 0,
            held: NOBODY,
            idle: false,
            calls: 0,
            clock_at: *PACE.start(),
            pace: *PACE.start(),
            slow: true,
            armed: false,
            dying: VecDeque::new(),
            barrier: Barrier::probe(),
            max_frame: ring::max_frame((ring / ring::LINE) as u32),
            looked: Instant::now(),
            serviced: Instant::now(),
            cooled: Instant::now(),
            addr: name.addr(),
            ids: HashMap::new(),
            callers: HashMap::new(),
            everywhere: name.is_wildcard(),
            poller,
            listener,
            guests: Vec::new(),
            contested: Vec::new(),
            behind: None,
            crowded: false,
            free: Vec::new(),
            spare: Spare::new(board.fd())?,
            board,
            lacking: None,
            starved: Vec::new(),
            connecting: false,
            options: OpenOptions { ring, long_ring, ..options },
            scratch: Vec::new(),
            incarnation: crate::random()?,
            pid: std::process::id(),
            space: Space::own()?,
            parted: Vec::new(),
            expected: Default::default(),
            closed: false,
            flying: Default::default(),
            flown: Vec::new(),
            unasked: 0,
            copies_started: 0,
            warned_cma: false,
            warned_uid: false,
            warned_fds: false,
            _name: name,
        };
        log::debug!("{}: open, ring {ring}, {:?}", link.addr, link.barrier);
        Ok(link)
    }
}

/// Listens under a name. If that is taken and was `chosen`, the log says by what.
fn listen(bound: SocketAddr, chosen: bool) -> io::Result<OwnedFd> {
    let e = match hello::listen(bound) {
        Ok(listener) => return Ok(listener),
        Err(e) => e,
    };
    if chosen && e.kind() == io::ErrorKind::AddrInUse {
        let owner = hello::listener(bound).map_or_else(
            || "a process that does not listen".into(),
            |cred| format!("pid {} of uid {}", cred.pid, cred.uid),
        );
        log::warn!(
            "{bound} cannot be opened: {owner} has its abstract unix socket; end it, or take another port"
        );
    }
    Err(e)
}
