//! Receives that name a peer which ended, or cannot be reached.
//!
//! A receive waits for a peer of which nothing is known, as a send would: it may not have started yet
//! ([`link_api::Link::expect`]). It fails when the peer's end is reported
//! ([`Event::Closed`](link_api::Event::Closed)) and when a post to it is refused for good. One that is posted
//! after that looks for the peer again, since another process may have its name by now: it waits if there is
//! a channel or one can be made, and fails if not.

use crate::core::{Core, RecvOp};
use crate::endpoint::net::Net;
use crate::endpoint::parts::bind::Bind;
use crate::types::*;
use link_api::{Channel, Connect, Gone, Parting, PeerId, Refused, RmaLink};

/// Receives that name a peer, and whether that is there.
pub(crate) struct Directed<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) bind: &'a Bind,
}

impl<L: RmaLink> Directed<'_, L> {
    /// An operation to this peer could not be started.
    #[cold]
    pub(crate) fn not_started(&mut self, core: &mut Core, to: FiAddr, err: Error) {
        if let (Some(peer), Some(why)) = (self.net.routed(to), err.gone()) {
            self.not_there(core, peer, why);
        }
    }

    /// A peer was not there, unless it has a channel: then its frames come first, and its end will be
    /// reported.
    fn not_there(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        if self.net.link.channel(peer) != Channel::None {
            return;
        }
        let state = self.net.peer(peer);
        state.gone = Some(why);
        state.connecting = false;
        self.fail_directed(core, peer, why);
    }

    /// Fails the receives that name this peer.
    pub(in crate::endpoint) fn fail_directed(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        let src = self.net.peer(peer).src;
        if src == ADDR_UNSPEC {
            return;
        }
        for rx in self.bind.contexts() {
            let Some(rx) = core.rxs.get_mut(rx.at()) else { continue };
            let named = |r: &RecvOp| r.pattern.src == src;
            let failed = [true, false].map(|tagged| rx.matcher(tagged).unpost_all(named));
            for recv in failed.into_iter().flatten() {
                self.bind.fail_recv(core, recv, why.into());
            }
        }
    }

    #[cold]
    pub(in crate::endpoint) fn reconnect(&mut self, core: &mut Core, peer: PeerId) {
        if self.net.peer(peer).gone.is_none() {
            self.net.peer(peer).expected = true;
            if self.net.link.channel(peer) == Channel::None {
                let _ = self.net.link.connect(peer, Connect::Expected);
            }
            return;
        }
        self.connect_now(core, peer);
    }

    fn connect_now(&mut self, core: &mut Core, peer: PeerId) {
        match self.net.link.connect(peer, Connect::Now) {
            Ok(()) => self.net.peer(peer).gone = None,
            Err(Refused::Gone(why)) => self.not_there(core, peer, why),
            Err(_) => {
                if !std::mem::replace(&mut self.net.peer(peer).connecting, true) {
                    self.net.peers.add_backlog(peer);
                }
            }
        }
    }

    /// A part of a collective operation is to come from this peer, which has been there: if it is not, there
    /// is nothing to wait for.
    pub(crate) fn expect_member(&mut self, core: &mut Core, from: FiAddr) {
        let Some(peer) = self.net.routed(from) else { return };
        let state = self.net.peer(peer);
        if state.connecting || self.net.link.channel(peer) != Channel::None {
            return;
        }
        self.connect_now(core, peer);
    }

    /// A member of a group waits for what this endpoint cannot send, for want of what a channel to it takes.
    /// The end of its own channel ends that.
    #[cold]
    pub(crate) fn hang_up(&mut self, to: FiAddr) {
        let Some(peer) = self.net.routed(to) else { return };
        if self.net.link.channel(peer) != Channel::None {
            let (own, other) = (self.net.link.addr(), self.net.link.peer_addr(peer));
            log::warn!("{own}: hung up on {other}, a member of a group: no channel to it can be made");
            self.net.link.dismiss(peer, Parting::CutOff);
        }
    }

    /// Looks again for those that could not be reached just yet.
    pub(in crate::endpoint) fn retry_connects(&mut self, core: &mut Core) -> usize {
        let connecting = self.net.peers.connecting();
        let mut n = 0;
        for peer in connecting {
            let found = self.net.link.connect(peer, Connect::Now);
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
