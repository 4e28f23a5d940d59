//! The peers of an endpoint: what they are called, and what becomes of those that end.

use wire::Addr;

use super::Endpoint;
use crate::core::Core;
use crate::endpoint::parts::peer::Peer;
use crate::endpoint::parts::request::{In, Request, Then};
use crate::types::*;
use link_api::{Gone, Path, PeerId, RmaLink};

impl From<Gone> for Error {
    fn from(why: Gone) -> Error {
        match why {
            Gone::Refused => Error::Refused,
            Gone::Reset => Error::Reset,
            Gone::Unreachable => Error::Unreachable,
            Gone::Denied => Error::Denied,
            Gone::Exhausted => Error::Exhausted,
        }
    }
}

impl<L: RmaLink> Endpoint<L> {
    /// The address vector got an entry. `first` is the first index of the same address.
    pub(crate) fn add_route(&mut self, core: &mut Core, at: FiAddr, addr: &Addr, first: FiAddr) {
        let peer = self.link.peer(addr);
        self.peers.set_route(at, peer);
        if self.peer(peer).routes == 0 {
            // Its number may have been a peer's of another link.
            let path = self.link.path(peer);
            self.peer(peer).flow.set_path(&path);
        }
        self.peer(peer).routes += 1;
        self.relabel(core, peer, first);
    }

    /// The address vector lost an entry; `next` is what the address is called now.
    pub(crate) fn remove_route(&mut self, core: &mut Core, at: FiAddr, next: FiAddr) {
        if let Some(peer) = self.peers.take_route(at) {
            self.relabel(core, peer, next);
            let state = self.peer(peer);
            state.routes = state.routes.saturating_sub(1);
            self.release(peer);
        }
    }

    fn relabel(&mut self, core: &mut Core, peer: PeerId, src: FiAddr) {
        let old = std::mem::replace(&mut self.peer(peer).src, src);
        if old == src {
            return;
        }
        let ep = self.id;
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return };
        for tagged in [true, false] {
            let m = rx.matcher(tagged);
            m.edit_waiting(|m| m.ep == ep && m.peer == peer, |m| m.src = src);
            if old != ADDR_UNSPEC && src != ADDR_UNSPEC {
                m.edit_posted(|r| r.pattern.src == old, |r| r.pattern.src = src);
            }
        }
        for (_, m) in rx.claimed.iter_mut().filter(|(_, m)| m.ep == ep && m.peer == peer) {
            m.src = src;
        }
    }

    #[inline]
    pub(super) fn peer(&mut self, peer: PeerId) -> &mut Peer {
        if peer.0 as usize >= self.peers.len() {
            self.add_peers(peer.0 as usize);
        }
        &mut self.peers[peer]
    }

    #[cold]
    fn add_peers(&mut self, at: usize) {
        while self.peers.len() <= at {
            let path = self.link.path(PeerId(self.peers.len() as u32));
            self.peers.push(Peer::new(&path, self.meter.is_some()));
        }
    }

    /// One line on the path to an address; `None`: the vector does not have it.
    pub(crate) fn path_words(&self, to: FiAddr) -> Option<String> {
        let peer = self.peers.routed(to)?;
        Some(self.link.describe(peer))
    }

    /// What the way to an address can do; `None`: the vector does not have it.
    pub(crate) fn path(&self, to: FiAddr) -> Option<Path> {
        let peer = self.peers.routed(to)?;
        Some(self.link.path(peer))
    }

    /// Whether there is a connection with the peer of an address.
    pub(crate) fn is_connected(&self, to: FiAddr) -> bool {
        let peer = self.peers.routed(to);
        peer.is_some_and(|peer| self.link.is_connected(peer))
    }

    /// Writes a line on the path to a peer that something was just posted to for the first time.
    #[inline(always)]
    pub(crate) fn log_new_path(&mut self) {
        if let Some(peer) = self.peers.take_unlogged() {
            self.log_path(peer);
        }
    }

    /// Writes a line on the path to a peer, once there is one.
    pub(crate) fn log_path(&mut self, peer: PeerId) {
        let first = self.peer(peer).flow.mark_path_logged();
        if first {
            self.meter_path(peer);
        }
        if !first || !log::log_enabled!(log::Level::Info) {
            return;
        }
        let limits = *self.peer(peer).flow.limits();
        log::info!(
            "{} -> {}: {}; up to {} bytes inside the frame, more fetched by the other side, or sent in frames of {} where it can't",
            self.link.addr(),
            self.link.peer_addr(peer),
            self.link.describe(peer),
            limits.eager,
            limits.max_frame()
        );
    }

    /// A peer is gone, or its channel is closed: what depended on it fails.
    #[cold]
    pub(super) fn closed(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        let err = Error::from(why);
        self.meter_path(peer);
        let path = self.link.path(peer);
        let owed = self.peer(peer).flow.owed();
        self.quota.pay(owed);
        let stopped = self.peer(peer).close(&path, why);
        self.unhurried.resume(stopped);
        log::info!("{} -> {}: {err}", self.link.addr(), self.link.peer_addr(peer));
        self.peers.drop_work_of(peer);
        self.unhurried.set_in_order(self.peers.has_in_order());
        self.end_unsent(core, peer, err);
        let mut mine = self.requests.names(|r| r.peer() == peer);
        mine.retain(|name| !self.outlives_peer(*name));
        self.queues.drop_requests(&mine);
        for name in mine {
            self.cancel_operation(name);
            self.injected.take_kept(name);
            match self.requests.remove(name) {
                Some(Request::Out(out)) => self.finish_out(core, &out, Some(err)),
                Some(Request::In(In { then: Then::Recv(matched), .. })) => {
                    self.complete_recv(core, matched, 0, Some(err))
                }
                _ => {}
            }
        }
        let ep = self.id;
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return };
        rx.claimed.retain(|(_, m)| !(m.ep == ep && m.peer == peer && m.is_offered()));
        // Its successor under the same name has not asked for these answers.
        for (_, m) in rx.claimed.iter_mut().filter(|(_, m)| m.ep == ep && m.peer == peer) {
            m.ack = None;
        }
        for tagged in [true, false] {
            let m = rx.matcher(tagged);
            m.drop_waiting(|m| m.ep == ep && m.peer == peer && m.is_offered());
            m.edit_waiting(|m| m.ep == ep && m.peer == peer, |m| m.ack = None);
        }
        let left = rx.weight_of(ep, peer);
        self.peer(peer).waiting = left;
        core.weigh();
        self.fail_directed(core, peer, why);
        self.release(peer);
    }

    /// Keeps nothing of a peer that nothing here is about any more: its number may be another's next.
    #[cold]
    pub(super) fn release(&mut self, peer: PeerId) {
        let state = self.peer(peer);
        let needed = state.routes > 0 || state.waiting > 0 || state.answers.outstanding() > 0;
        if needed || state.flow.has_backlog() || self.link.is_connected(peer) {
            return;
        }
        if !self.requests.any(|r| r.peer() == peer) {
            self.peers.drop_backlog_of(peer);
            self.queues.retain_revoked(|_, p| p != peer);
            self.link.forget(peer);
            let path = self.link.path(peer);
            *self.peer(peer) = Peer::new(&path, self.meter.is_some());
        }
    }

    /// How many peers there is room for that something is kept of.
    pub(crate) fn peers(&self) -> usize {
        self.peers.len()
    }
}
