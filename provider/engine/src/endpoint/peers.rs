//! The peers of an endpoint: what they are called, and what becomes of those that end.

use wire::Addr;

use super::Endpoint;
use crate::core::Core;
use crate::endpoint::parts::peer::Peer;
use crate::endpoint::parts::request::{In, Request, Then};
use crate::types::*;
use link_api::{Gone, PeerId, RmaLink};

impl<L: RmaLink> Endpoint<L> {
    /// The address vector got an entry. `first` is the first index of the same address.
    pub(crate) fn add_route(&mut self, core: &mut Core, at: FiAddr, addr: &Addr, first: FiAddr) {
        let peer = self.net.link.peer(addr);
        self.net.peers.set_route(at, peer);
        if self.net.peer(peer).routes == 0 {
            // Its number may have been a peer's of another link.
            let path = self.net.link.path(peer);
            self.net.peer(peer).flow.set_path(&path);
        }
        self.net.peer(peer).routes += 1;
        self.relabel(core, peer, first);
    }

    /// The address vector lost an entry; `next` is what the address is called now.
    pub(crate) fn remove_route(&mut self, core: &mut Core, at: FiAddr, next: FiAddr) {
        if let Some(peer) = self.net.peers.take_route(at) {
            self.relabel(core, peer, next);
            let state = self.net.peer(peer);
            state.routes = state.routes.saturating_sub(1);
            self.release(peer);
        }
    }

    fn relabel(&mut self, core: &mut Core, peer: PeerId, src: FiAddr) {
        let old = std::mem::replace(&mut self.net.peer(peer).src, src);
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

    /// A peer is gone, or its channel is closed: what depended on it fails.
    #[cold]
    pub(super) fn closed(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        let err = Error::from(why);
        self.net.metered.path(&self.net.link, peer);
        let path = self.net.link.path(peer);
        let owed = self.net.peer(peer).flow.owed();
        self.net.quota.pay(owed);
        let stopped = self.net.peer(peer).close(&path, why);
        self.net.unhurried.resume(stopped);
        log::info!("{} -> {}: {err}", self.net.link.addr(), self.net.link.peer_addr(peer));
        self.net.peers.drop_work_of(peer);
        self.net.unhurried.set_in_order(self.net.peers.has_in_order());
        self.end_unsent(core, peer, err);
        let mut mine = self.requests.pool.names(|r| r.peer() == peer);
        mine.retain(|name| !self.requests.outlives_peer(*name));
        self.requests.queues.drop_requests(&mine);
        for name in mine {
            self.requests.cancel_operation(&mut self.net.link, name);
            self.requests.injected.take_kept(name);
            match self.requests.pool.remove(name) {
                Some(Request::Out(out)) => self.finish_out(core, &out, Some(err)),
                Some(Request::In(In { then: Then::Recv(matched), .. })) => {
                    self.bind.complete_recv(core, matched, 0, Some(err))
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
        self.net.peer(peer).waiting = left;
        core.weigh();
        self.fail_directed(core, peer, why);
        self.release(peer);
    }

    /// Keeps nothing of a peer that nothing here is about any more: its number may be another's next.
    #[cold]
    pub(super) fn release(&mut self, peer: PeerId) {
        let state = self.net.peer(peer);
        let needed = state.routes > 0 || state.waiting > 0 || state.answers.outstanding() > 0;
        if needed || state.flow.has_backlog() || self.net.link.is_connected(peer) {
            return;
        }
        if !self.requests.pool.any(|r| r.peer() == peer) {
            self.net.peers.drop_backlog_of(peer);
            self.requests.queues.retain_revoked(|_, p| p != peer);
            self.net.link.forget(peer);
            let path = self.net.link.path(peer);
            *self.net.peer(peer) = Peer::new(&path, self.net.metered.is_on());
        }
    }
}
