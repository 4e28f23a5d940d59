//! Opening an endpoint.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use ipc::Poller;
use link_api::PeerId;

use super::access::Access;
use super::admission::{Admission, Callers};
use super::contests::Contests;
use super::copies::Copies;
use super::ends::Ends;
use super::expected::Expected;
use super::lack::Shortage;
use super::link::ShmLink;
use super::listening::Listening;
use super::looks::Looks;
use super::mr_table::MrTable;
use super::options::{OpenOptions, size};
use super::own::Own;
use super::pace::Pace;
use super::peers::Peers;
use super::rings::Rings;
use super::sending::Sending;
use super::sleep::Sleep;
use super::{hello, token};
use crate::name::Name;

impl ShmLink {
    /// Another link of the endpoint carries frames.
    pub(crate) fn set_patient(&mut self) {
        self.pace.set_patient();
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
        self.pace.is_patient()
    }

    /// Whether no peer of this host has a channel to this endpoint.
    pub(crate) fn has_no_rings(&self) -> bool {
        self.rings.is_empty()
    }

    /// When the clock was read last, which is now and then.
    pub(crate) fn clock(&self) -> std::time::Instant {
        self.pace.clock()
    }

    /// The name, which links of other sorts share.
    pub(crate) fn name(&self) -> &Name {
        self.own.name()
    }

    /// The port of the name listens from now on, for other links.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        self.own.listen()
    }

    /// Opens an endpoint of this name; `AddrInUse` if it is taken.
    pub fn open(options: OpenOptions) -> io::Result<ShmLink> {
        let chosen = options.bind.is_some_and(|bind| bind.port() != 0);
        let (name, listener) = Name::claim(options.bind, options.port, |bound| listen(bound, chosen))?;
        let poller = Poller::new()?;
        poller.add(&listener, token::LISTENER)?;
        let ring = size(options.ring);
        let long_ring = size(options.long_ring).max(ring);
        let access = Access::new(MrTable::create()?);
        let link = ShmLink {
            own: Own::new(name)?,
            peers: Peers::default(),
            rings: Rings::new(),
            pace: Pace::new(),
            ends: Ends::default(),
            sending: Sending::new(ring, long_ring),
            listening: Listening::new(listener, access.mr_table().fd())?,
            admission: Admission::new(),
            contests: Contests::default(),
            shortage: Shortage::default(),
            expected: Expected::default(),
            looks: Looks::new(&poller)?,
            sleep: Sleep::new(poller),
            access,
            copies: Copies::default(),
            options: OpenOptions { ring, long_ring, ..options },
        };
        log::debug!("{}: open, ring {ring}, {:?}", link.own.addr(), link.sleep.barrier());
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
