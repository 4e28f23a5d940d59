//! Which link a peer gets.

use std::collections::VecDeque;

use hmem::Span;
use link_api::{Event, FrameLink as _, Gone, Link as _, PeerId, Refused, Sent};
use wire::Addr;

use super::further::Further;
use super::pace::Pace;
use super::route::{Cause, Route, Routes};
use crate::shm::ShmLink;
use crate::{net, turns};

/// Peers of this host: whether shared memory reaches them, and how many are known.
#[derive(Debug)]
pub(super) struct Host {
    shm: bool,
    peers: usize,
}

impl Host {
    pub(super) fn new() -> Host {
        Host { shm: true, peers: 0 }
    }

    /// Whether shared memory reaches peers of this host.
    pub(super) fn has_shm(&self) -> bool {
        self.shm
    }

    pub(super) fn set_shm(&mut self, on: bool) {
        self.shm = on;
    }

    /// Whether shared memory is to reach a peer of this name, and why or why not; `own`: the endpoint's name.
    pub(super) fn cause(&self, own: Addr, addr: &Addr) -> Cause {
        match addr.ip() == own.ip() || net::is_local(addr.ip()) {
            _ if *addr == own => Cause::Near("it is this endpoint"),
            true if self.shm => Cause::Near("its address is this host's"),
            true => Cause::Far("shared memory is not to be used"),
            false => Cause::Far("its address is not this host's"),
        }
    }

    fn add_peer(&mut self) {
        self.peers += 1;
        turns::knows(self.peers);
    }

    /// A peer that was assigned for this cause is forgotten, or is found not to be on this host.
    pub(super) fn remove_peer(&mut self, cause: Option<Cause>) {
        if let Some(Cause::Near(_)) = cause {
            self.peers -= 1;
        }
    }
}

/// Assigns links to peers.
pub(super) struct Assign<'a> {
    pub(super) shm: &'a mut ShmLink,
    pub(super) further: &'a mut Further,
    pub(super) routes: &'a mut Routes,
    pub(super) events: &'a mut VecDeque<Event>,
    pub(super) pace: &'a mut Pace,
    pub(super) host: &'a mut Host,
}

impl Assign<'_> {
    /// Chooses a link for a peer that is new.
    pub(super) fn choose(&mut self, peer: PeerId, addr: &Addr, cause: Cause) {
        if let Cause::Near(_) = cause {
            self.host.add_peer();
        }
        match self.leads(addr, cause) {
            Some(at) => self.assign_far(peer, addr, at, cause),
            None => self.routes.set(peer, Route::shm(cause)),
        }
    }

    /// The first further link that leads to an address, unless shared memory is to.
    fn leads(&self, addr: &Addr, cause: Cause) -> Option<usize> {
        match cause {
            Cause::Near(_) => None,
            _ => self.further.each().position(|link| link.reaches(addr).is_ok()),
        }
    }

    fn assign_far(&mut self, peer: PeerId, addr: &Addr, at: usize, cause: Cause) {
        let id = self.further[at].peer(addr);
        self.route_to(peer, at, id, cause);
    }

    /// A further link serves a peer, which it calls `id`, from now on.
    pub(super) fn route_to(&mut self, peer: PeerId, at: usize, id: PeerId, cause: Cause) {
        self.pace.has_peer();
        self.further.set(at, id, peer);
        self.shm.set_elsewhere(peer, true);
        self.routes.set(peer, Route::to(at, id, cause));
    }

    /// Shared memory does not lead to this peer: the next link that does takes it.
    #[cold]
    pub(super) fn reroute(&mut self, peer: PeerId) -> bool {
        if self.routes.far_of(peer).is_some() {
            return false;
        }
        let addr = self.shm.peer_addr(peer);
        let cause = Cause::Far("by shared memory nothing answers to its address here");
        let Some(at) = self.leads(&addr, cause) else { return false };
        self.host.remove_peer(self.routes.cause_of(peer));
        self.assign_far(peer, &addr, at, cause);
        self.events.push_back(Event::PathChanged(peer));
        true
    }

    /// Sends to a peer of no further link that has no open channel of shared memory.
    pub(super) fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        match self.shm.send(to, head, body, off, len) {
            Err(Refused::Gone(Gone::Unreachable)) if self.reroute(to) => Err(Refused::Busy),
            done => done,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::SocketAddr;

    use wire::session::JobKey;

    use super::super::Links;
    use super::*;
    use crate::{OpenOptions, TcpOptions};

    #[test]
    fn who_is_on_this_host_is_counted_once() {
        let mut links = Links::open(OpenOptions::default()).unwrap();
        links.add_tcp(TcpOptions::new(JobKey::from_secret(b"of the tests"))).unwrap();
        let name = |ip: [u8; 4], n: u16| Addr::new(SocketAddr::from((ip, n)));
        for n in 1..9 {
            for again in 0..2 {
                links.peer(&name([198, 51, 100, 1], n));
                let peer = links.peer(&name([127, 0, 0, 1], n));
                assert_eq!(links.host.peers, usize::from(n));
                if n == 8 && again == 1 {
                    (0..2).for_each(|_| links.dismiss(peer, link_api::Parting::Forgotten));
                    assert_eq!(links.host.peers, 7, "it is forgotten");
                }
            }
        }
        for n in 0..crate::processors::Processors::new().count() {
            links.peer(&name([127, 0, 0, 1], 100 + n as u16));
        }
        assert!(turns::yields(turns::POLLS, 8 * turns::POLLS));
    }
}
