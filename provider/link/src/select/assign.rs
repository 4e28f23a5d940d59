//! Which link a peer gets, and why.

use link_api::{Event, Link as _, PeerId};
use wire::Addr;

use super::Links;
use super::route::Route;
use crate::net;

impl Links {
    /// Chooses a link for a peer that is new.
    pub(super) fn assign(&mut self, peer: PeerId, addr: &Addr) {
        if *addr == self.shm.addr() {
            return self.routes.set(peer, Route::shm("it is this endpoint".into()));
        }
        let mut why = String::new();
        let reason = match net::is_local(addr.ip()) {
            true if self.near => {
                return self.routes.set(peer, Route::shm("its address is this host's".into()));
            }
            true => "shared memory is not to be used",
            false => "its address is not this host's",
        };
        for at in 0..self.far.len() {
            match self.far[at].link.reaches(addr) {
                Ok(()) => return self.assign_far(peer, addr, at, why + reason),
                Err(reason) => why += &format!("{}: {reason}; ", self.far[at].name(None)),
            }
        }
        self.routes.set(peer, Route::shm(why + "no further link leads to its address"));
    }

    fn assign_far(&mut self, peer: PeerId, addr: &Addr, at: usize, why: String) {
        let id = self.far[at].link.peer(addr);
        self.pace.has_peer();
        self.far[at].set(id, peer);
        self.routes.set(peer, Route::to(at, id, why));
    }

    /// Shared memory does not lead to this peer: the next link that does takes it.
    #[cold]
    pub(super) fn reroute(&mut self, peer: PeerId) -> bool {
        if self.far_of(peer).is_some() {
            return false;
        }
        let addr = self.shm.peer_addr(peer);
        let Some(at) = (0..self.far.len()).find(|&at| self.far[at].link.reaches(&addr).is_ok()) else {
            return false;
        };
        self.assign_far(peer, &addr, at, "shm: nothing answers to its address here".into());
        self.events.push_back(Event::PathChanged(peer));
        true
    }
}
