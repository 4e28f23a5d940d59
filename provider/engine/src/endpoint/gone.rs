//! Receives that name a peer which ended, or cannot be reached.
//!
//! A receive waits for a peer of which nothing is known, as a send would: it may not have started yet
//! ([`link_api::Link::expect`]). It fails when the peer's end is told of
//! ([`Event::Closed`](link_api::Event::Closed)) and when a post to it is refused for good. One that is posted
//! after that looks for the peer again, since another process may have its name by now: it waits if there is
//! a channel or one can be made, and fails if not.

use super::Endpoint;
use crate::core::{Core, RecvOp};
use crate::types::*;
use link_api::{Gone, PeerId, Refused, RmaLink};

impl<L: RmaLink> Endpoint<L> {
    /// An operation to this peer could not be started.
    #[cold]
    pub(crate) fn not_started(&mut self, core: &mut Core, to: FiAddr, err: Error) {
        if let (Some(peer), Some(why)) = (self.net.routed(to), err.gone()) {
            self.not_there(core, peer, why);
        }
    }

    /// A peer was not there, unless it has a channel: then its frames come first, and its end will be told
    /// of.
    fn not_there(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        if self.net.link.is_connected(peer) {
            return;
        }
        let state = self.net.peer(peer);
        state.gone = Some(why);
        state.connecting = false;
        self.fail_directed(core, peer, why);
    }

    /// Fails the receives that name this peer.
    pub(super) fn fail_directed(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        let src = self.net.peer(peer).src;
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()).filter(|_| src != ADDR_UNSPEC) else { return };
        let named = |r: &RecvOp| r.pattern.src == src;
        let failed = [true, false].map(|tagged| rx.matcher(tagged).unpost_all(named));
        for recv in failed.into_iter().flatten() {
            self.bind.fail_recv(core, recv, why.into());
        }
    }

    /// A receive was posted that names this peer, which may never come, or be gone as far as is known;
    /// `ADDR_UNSPEC`: it names none. `only`: no other receive is posted.
    #[inline(always)]
    pub(crate) fn look_for(&mut self, core: &mut Core, from: FiAddr, only: bool) {
        let peer = self.net.routed(from);
        let awaited = self.awaits(if only { peer } else { None });
        let Some(peer) = peer else { return };
        if awaited {
            // The next message most often goes to that peer.
            self.net.link.will_send(peer);
        }
        match self.net.peers.get(peer) {
            Some(p) if p.expected & p.gone.is_none() => {}
            _ => self.reconnect(core, peer),
        }
    }

    /// The only receive that is posted, or that is about to be, names this peer; `None`: it names none, or
    /// there are others, or none. Where something else is under way, answers of any peer may be waited for.
    /// Whether the peer is waited for.
    #[inline(always)]
    pub(super) fn awaits(&mut self, peer: Option<PeerId>) -> bool {
        let peer = if self.requests.pool.len() == 0 { peer } else { None };
        self.net.link.awaits(peer);
        peer.is_some()
    }

    #[cold]
    fn reconnect(&mut self, core: &mut Core, peer: PeerId) {
        if self.net.peer(peer).gone.is_none() {
            self.net.peer(peer).expected = true;
            if !self.net.link.is_connected(peer) {
                self.net.link.expect(peer);
            }
            return;
        }
        match self.net.link.connect(peer) {
            Ok(()) => self.net.peer(peer).gone = None,
            Err(Refused::Gone(why)) => self.not_there(core, peer, why),
            Err(_) => {
                if !std::mem::replace(&mut self.net.peer(peer).connecting, true) {
                    self.net.peers.add_backlog(peer);
                }
            }
        }
    }

    /// Looks again for those that could not be reached just yet.
    pub(super) fn retry_connects(&mut self, core: &mut Core) -> usize {
        let connecting = self.net.peers.connecting();
        let mut n = 0;
        for peer in connecting {
            let found = self.net.link.connect(peer);
            if found == Err(Refused::Busy) {
                continue;
            }
            n += 1;
            self.net.peer(peer).connecting = false;
            match found {
                Err(Refused::Gone(why)) => self.not_there(core, peer, why),
                _ => self.net.peer(peer).gone = None,
            }
        }
        n
    }
}
