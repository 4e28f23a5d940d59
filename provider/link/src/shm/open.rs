//! Opening an endpoint.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ipc::Poller;
use ipc::fence::Barrier;
use ipc::rights::Spare;
use link_api::{Patience, PeerId};

use super::admission::{Admission, Callers};
use super::allowance::Allowance;
use super::link::{PACE, ShmLink};
use super::looks::Looks;
use super::mr_table::MrTable;
use super::options::{NEAR, OpenOptions, size};
use super::rings::{NO_PEER, Rings};
use super::shrink::Shrinking;
use super::{hello, ring, token};
use crate::name::Name;
use crate::space;

impl ShmLink {
    /// Another link of the endpoint carries frames.
    pub(crate) fn set_patient(&mut self) {
        self.patient = true;
    }

    /// Which peers this link serves: others that call are refused.
    pub(crate) fn admit_callers(&mut self, callers: Callers) {
        self.admission.set_callers(callers);
    }

    /// Another link serves this peer, or does no more. A peer with a channel here is none of another link's.
    pub(crate) fn set_elsewhere(&mut self, peer: PeerId, on: bool) {
        self.admission.set_elsewhere(peer, on);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_patient(&self) -> bool {
        self.patient
    }

    /// Whether no peer of this host has a channel to this endpoint.
    pub(crate) fn has_no_rings(&self) -> bool {
        self.rings.is_empty()
    }

    /// When the clock was read last, which is now and then.
    pub(crate) fn clock(&self) -> std::time::Instant {
        self.clock_read
    }

    /// The name, which links of other sorts share.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// The port of the name listens from now on, for other links.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        self.name.listen()
    }

    /// Opens an endpoint of this name; `AddrInUse` if it is taken.
    pub fn open(options: OpenOptions) -> io::Result<ShmLink> {
        let chosen = options.bind.is_some_and(|bind| bind.port() != 0);
        let (name, listener) = Name::claim(options.bind, options.port, |bound| listen(bound, chosen))?;
        let poller = Poller::new()?;
        poller.add(&listener, token::LISTENER)?;
        let ring = size(options.ring);
        let long_ring = size(options.long_ring).max(ring);
        let mr_table = MrTable::create()?;
        let looks = Looks::new(&poller)?;
        let link = ShmLink {
            peers: Vec::new(),
            rings: Rings::new(),
            held: NO_PEER,
            idle: false,
            calls: 0,
            clock_at: *PACE.start(),
            pace: *PACE.start(),
            rare: false,
            slow: true,
            patient: false,
            armed: false,
            quiet: false,
            dying: VecDeque::new(),
            others_first: 0,
            barrier: Barrier::probe(),
            max_frame: ring::max_frame((ring / ring::LINE) as u32),
            // What the rings to the nearest peers take.
            longer_laps: Allowance::new((NEAR * (long_ring / ring::LINE)) as u32),
            clock_read: Instant::now(),
            serviced: Instant::now(),
            cooled: Instant::now(),
            shrinking: Shrinking::new(),
            addr: name.addr(),
            ids: HashMap::new(),
            callers: HashMap::new(),
            everywhere: name.is_wildcard(),
            poller,
            listener,
            guests: Vec::new(),
            admission: Admission::new(),
            contested: Vec::new(),
            contest: None,
            behind: None,
            many_successors: false,
            free: Vec::new(),
            spare: Spare::new(mr_table.fd())?,
            mr_table,
            lacking: None,
            lacks: [None; 2],
            starved: Vec::new(),
            connecting: false,
            options: OpenOptions { ring, long_ring, ..options },
            scratch: Vec::new(),
            incarnation: crate::random()?,
            pid: std::process::id(),
            space: space::own()?,
            parted: Vec::new(),
            expected: Default::default(),
            looks,
            patience: Patience::Second,
            closed: false,
            pending: Default::default(),
            pending_peers: Vec::new(),
            polls_since_asked: 0,
            copies_started: 0,
            warned_cma: false,
            warned_uid: false,
            warned_fds: false,
            name,
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
