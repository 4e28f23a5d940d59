//! What peers may take up here, and what happens when that is a lot.
//!
//! Unexpected messages wait in memory of ours. When they take up more than they are to
//! (`FI_STRAIT_UNEXPECTED_SIZE`), their senders have to pause (`Pause`): from then on they
//! offer every message instead of sending it, so that its bytes stay with them until they are wanted. No
//! ring ever stops, so that nothing behind such a message waits, and whatever an MPI program may
//! rely on goes on. An offer takes little room here, and each sender has only so many operations under way
//! ([`Endpoint::depth`]) before it has to wait for a completion.
//!
//! The same depth bounds what a correct peer can have this side keep of answers that found no room, and of
//! requests that this side serves. One that goes far beyond is cut off.

use wire::{Head, Status};

use crate::core::{Body, Core, Message};
use crate::endpoint::malformed::Handled;
use crate::endpoint::net::Net;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::quota::{AHEAD, SLACK};
use crate::endpoint::parts::request::Meta;
use crate::endpoint::requests::Requests;
use crate::endpoint::rma::order::RmaOrder;
use crate::matching::At;
use crate::types::*;
use link_api::{PeerId, RmaLink};

/// Unexpected messages.
pub(crate) struct Unexpected<'a, L> {
    pub(in crate::endpoint) id: EpId,
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
    pub(in crate::endpoint) bind: &'a Bind,
}

impl<L: RmaLink> Unexpected<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn rma_order(&mut self) -> RmaOrder<'_, L> {
        RmaOrder { net: self.net, requests: self.requests }
    }

    /// Keeps an unexpected message.
    pub(in crate::endpoint) fn keep_unexpected(
        &mut self,
        core: &mut Core,
        meta: Meta,
        ack: Option<u64>,
        body: Body,
    ) {
        let Meta { peer, src, tagged, tag, data, len } = meta;
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return };
        let message = Message { ep: self.id, peer, src, tagged, tag, data, len, ack, body };
        let weight = message.weight();
        let at = rx.matcher(tagged).wait(src, tag, || message);
        if !self.add_weight(core, peer, weight) {
            self.refuse_unexpected(core, tagged, at);
        }
    }

    /// What waits takes up so much more. `false`: that is more than all peers may have this side keep, and
    /// the peer is cut off.
    #[inline]
    #[must_use]
    pub(in crate::endpoint) fn add_weight(&mut self, core: &mut Core, peer: PeerId, weight: usize) -> bool {
        core.waiting += weight;
        self.net.peer(peer).waiting += weight;
        core.waiting <= core.waiting_most.min(AHEAD) || self.is_much(core, peer, weight)
    }

    /// More waits than of a peer that does not run ahead. Whether what came last may stay.
    #[inline(never)]
    fn is_much(&mut self, core: &mut Core, peer: PeerId, weight: usize) -> bool {
        if core.waiting > core.waiting_most {
            return self.over_quota(core, peer);
        }
        let state = self.net.peer(peer);
        let limits = state.flow.limits();
        let is_long = limits.is_sync() && weight > Message::weight_held(limits.eager);
        if is_long && state.waiting > AHEAD && !std::mem::replace(&mut state.ahead_sent, true) {
            self.net.send_ahead(peer);
        }
        true
    }

    /// Whether what came last may stay.
    #[cold]
    fn over_quota(&mut self, core: &mut Core, peer: PeerId) -> bool {
        if !self.net.may_keep(core, peer, 0) {
            return false;
        }
        let most = core.waiting_most.saturating_mul(2).saturating_add(SLACK);
        let state = self.net.peer(peer);
        if state.waiting > most {
            let ep = self.id;
            self.net.cut_off(peer, "unexpected messages");
            for rx in self.bind.contexts() {
                let Some(rx) = core.rxs.get_mut(rx.at()) else { continue };
                for tagged in [true, false] {
                    rx.matcher(tagged).drop_waiting(|m| m.ep == ep && m.peer == peer);
                }
            }
            self.net.peer(peer).waiting = 0;
            core.weigh();
        } else if !std::mem::replace(&mut state.pause_sent, true) {
            self.net.unhurried.pause();
            log::info!(
                "{}: {} bytes of messages wait to be received; {} is to pause",
                self.net.link.addr(),
                core.waiting,
                self.net.link.peer_addr(peer)
            );
            self.net.send_pause(peer, true);
        }
        true
    }

    /// A message that was kept just now does not stay.
    #[cold]
    pub(in crate::endpoint) fn refuse_unexpected(&mut self, core: &mut Core, tagged: bool, at: At) {
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return };
        let Some(message) = rx.matcher(tagged).take(at) else { return };
        self.take_unexpected(core, &message);
        if let Body::Held(held) = message.body {
            core.buffers.drop(held);
        }
    }

    /// A message waits no more.
    pub(in crate::endpoint) fn take_unexpected(&mut self, core: &mut Core, message: &Message) {
        self.drop_weight(core, message.peer, message.weight());
    }

    /// What waits takes up so much less.
    #[inline]
    pub(in crate::endpoint) fn drop_weight(&mut self, core: &mut Core, peer: PeerId, weight: usize) {
        core.waiting = core.waiting.saturating_sub(weight);
        let Some(state) = self.net.peers.get_mut(peer) else { return };
        state.waiting = state.waiting.saturating_sub(weight);
        if state.waiting == 0 && state.gone.is_some() {
            self.requests.release(self.net, peer);
        }
    }

    /// Throws a waiting message away; to its sender it has been received.
    pub(crate) fn discard(&mut self, core: &mut Core, message: Message) {
        self.take_unexpected(core, &message);
        match message.body {
            Body::Held(held) => {
                core.buffers.drop(held);
                if let Some(req) = message.ack {
                    self.net.fin(message.peer, req, Status::Ok, 0);
                }
            }
            Body::Offered { req, .. } => self.net.fin(message.peer, req, Status::Ok, 0),
            Body::Withdrawn => {}
        }
    }

    /// The sender of a message has cancelled it: it is matched no more.
    pub(in crate::endpoint) fn on_withdrawn(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
    ) -> Handled {
        let (ep, theirs) = (self.id, head.tag.get());
        if self.rma_order().restore_order(peer, theirs) {
            return Ok(());
        }
        let withdrawn =
            self.bind.contexts().find_map(|rx| core.rxs.get_mut(rx.at())?.withdraw(ep, peer, theirs));
        match withdrawn {
            // It is being received, which fails by itself.
            None => return Ok(()),
            Some(Some(message)) => self.take_unexpected(core, &message),
            Some(None) => {}
        }
        self.net.fin(peer, theirs, Status::Discarded, 0);
        Ok(())
    }
}
