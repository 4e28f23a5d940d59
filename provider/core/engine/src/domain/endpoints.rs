//! Endpoints, what they are made of, and their address vectors.

use wire::Addr;

use super::Domain;
use crate::av::Av;
use crate::config::{Cntrs, EpConfig};
use crate::core::RxContext;
use crate::endpoint::Endpoint;
use crate::types::*;
use crate::work::WorkOp;
use link_api::{InUse, Meter, OpId, Path, Patience, Revoke, RmaLink, Setting};

/// What is left of an endpoint of a domain in which a call has panicked.
#[derive(Debug)]
pub struct Abandoned<L> {
    link: L,
    /// What it has in flight.
    ops: Vec<OpId>,
}

impl<L: RmaLink> Abandoned<L> {
    /// As [`Domain::ep_close`], with this patience; then this is to be dropped.
    pub fn close(&mut self, patience: Patience) -> Result<(), Error> {
        self.ops.drain(..).for_each(|op| self.link.cancel(op));
        self.link.set(Setting::Patience(patience));
        self.link.revoke(Revoke::All).map_err(|InUse| Error::Busy)
    }
}

impl<L: RmaLink> Domain<L> {
    /// Opens an address vector.
    pub fn av_open(&mut self) -> AvId {
        AvId(self.avs.insert(Av::default()))
    }

    /// Closes an address vector that no endpoint is bound to.
    pub fn av_close(&mut self, av: AvId) -> Result<(), Error> {
        match self.avs.get(av.at()) {
            None => Err(Error::NotFound),
            Some(a) if a.users > 0 => Err(Error::Busy),
            Some(_) => {
                self.avs.remove(av.at());
                Ok(())
            }
        }
    }

    /// Inserts an address; an address that is there already gets another index.
    pub fn av_insert(&mut self, av: AvId, addr: Addr) -> FiAddr {
        let Some(vector) = self.avs.get_mut(av.at()) else { return ADDR_UNSPEC };
        let (at, first) = vector.insert(addr);
        self.core.aliases |= at != first;
        for (_, ep) in self.eps.iter_mut().filter(|(_, ep)| ep.bind.av() == av) {
            ep.add_route(&mut self.core, at, &addr, first);
        }
        at
    }

    /// Removes an address.
    pub fn av_remove(&mut self, av: AvId, at: FiAddr) -> Result<(), Error> {
        let vector = self.avs.get_mut(av.at()).ok_or(Error::NotFound)?;
        let (_, next) = vector.remove(at).ok_or(Error::NotFound)?;
        for (_, ep) in self.eps.iter_mut().filter(|(_, ep)| ep.bind.av() == av) {
            ep.remove_route(&mut self.core, at, next);
        }
        Ok(())
    }

    /// The address at an index.
    pub fn av_lookup(&self, av: AvId, at: FiAddr) -> Option<Addr> {
        self.avs.get(av.at())?.lookup(at)
    }

    /// Opens a receive context for several endpoints.
    pub fn srx_open(&mut self) -> RxId {
        RxId(self.core.rxs.insert(RxContext::new(true)))
    }

    /// Closes a shared receive context that no endpoint uses. What was posted to it, or was to be when a
    /// counter is there, is forgotten without a completion.
    pub fn srx_close(&mut self, rx: RxId) -> Result<(), Error> {
        match self.core.rxs.get(rx.at()) {
            Some(r) if !r.shared => Err(Error::Invalid),
            Some(r) if !r.eps.is_empty() => Err(Error::Busy),
            Some(_) => {
                self.core.rxs.remove(rx.at());
                self.work.retain(|w| !matches!(&w.op, WorkOp::Recv { rx: of, .. } if *of == rx));
                Ok(())
            }
            None => Err(Error::NotFound),
        }
    }

    /// How much must be left of a multi-receive buffer for it to stay posted (at first 64 bytes).
    pub fn rx_set_min_multi_recv(&mut self, rx: RxId, bytes: usize) {
        if let Some(rx) = self.core.rxs.get_mut(rx.at()) {
            rx.min_multi_recv = bytes;
        }
    }

    /// Opens an endpoint, ready for use.
    pub fn ep_open(&mut self, config: EpConfig<L>) -> EpId {
        let EpConfig { link, av, rx, tx_cq, rx_cq, cntrs } = config;
        let rx = rx.unwrap_or_else(|| RxId(self.core.rxs.insert(RxContext::new(false))));
        let ep = Endpoint::new(link, av, rx, tx_cq, rx_cq, cntrs, self.core.limit.budget());
        let id = EpId(self.eps.insert(ep));
        if let Some(rx) = self.core.rxs.get_mut(rx.at()) {
            rx.eps.push(id);
        }
        self.hold_ep(tx_cq, rx_cq, &cntrs, true);
        if let (Some(ep), Some(vector)) = (self.eps.get_mut(id.at()), self.avs.get_mut(av.at())) {
            ep.id = id;
            vector.users += 1;
            for (at, addr, first) in vector.iter() {
                ep.add_route(&mut self.core, at, &addr, first);
            }
            for mr in self.core.mrs.ids() {
                ep.expose(&self.core, mr);
            }
        }
        id
    }

    /// Has what an endpoint does counted. To be called before anything is posted; messages then go the
    /// general way, which takes a little longer.
    pub fn ep_meter(&mut self, ep: EpId, meter: Box<dyn Meter>) {
        if let Some(ep) = self.eps.get_mut(ep.at()) {
            ep.net.set_meter(meter);
        }
    }

    /// Takes or gives back what an endpoint keeps from being closed.
    fn hold_ep(&mut self, tx_cq: Option<CqId>, rx_cq: Option<CqId>, cntrs: &Cntrs, on: bool) {
        let step = |n: &mut usize| *n = if on { *n + 1 } else { n.saturating_sub(1) };
        for cq in [tx_cq, rx_cq].into_iter().flatten() {
            if let Some(cq) = self.core.cqs.get_mut(cq.at()) {
                step(&mut cq.users);
            }
        }
        for c in cntrs.all().into_iter().flatten() {
            if let Some(c) = self.core.cntrs.get_mut(c.at()) {
                step(&mut c.users);
            }
        }
    }

    /// The receive context of an endpoint.
    pub fn ep_rx(&self, ep: EpId) -> Option<RxId> {
        Some(self.eps.get(ep.at())?.bind.rx())
    }

    /// Sets how many operations of an endpoint to one peer may be under way (at first 4096, at most
    /// 65536); beyond that posts are refused with [`Error::Again`].
    pub fn ep_set_depth(&mut self, ep: EpId, depth: usize) {
        if let Some(ep) = self.eps.get_mut(ep.at()) {
            ep.net.set_depth(depth);
        }
    }

    /// Has every receive of a shared context that succeeds written to the queue of this endpoint if its
    /// message came there, also one without [`OpFlags::COMPLETION`], if it has [`OpFlags::AS_BOUND`].
    pub fn ep_write_every_receive(&mut self, ep: EpId) {
        if let Some(ep) = self.eps.get_mut(ep.at()) {
            ep.bind.write_every_receive();
        }
    }

    /// Sets how many bytes unexpected messages may take up before their senders are
    /// told to pause (at first 256 MiB).
    pub fn set_unexpected_most(&mut self, bytes: usize) {
        self.core.waiting_most = bytes;
    }

    /// Sets how many bytes peers may have this domain keep in all, however many they are and whatever they
    /// call themselves (at first 2 GiB). A peer that would have it keep more is cut off; what has come stays.
    pub fn set_kept_most(&mut self, bytes: usize) {
        self.core.limit.set(bytes);
    }

    /// Bytes that messages take up which wait to be received.
    pub fn unexpected(&self) -> usize {
        self.core.waiting
    }

    /// Bytes that answers take up which found no room, and parts of frames.
    pub fn owed(&self) -> usize {
        self.core.limit.budget().used()
    }

    /// Exchanges the counters of an endpoint.
    pub fn ep_bind_cntrs(&mut self, ep: EpId, cntrs: Cntrs) {
        let Some(ep) = self.eps.get_mut(ep.at()) else { return };
        let old = ep.bind.set_cntrs(cntrs);
        for mr in self.core.mrs.ids() {
            ep.expose(&self.core, mr);
        }
        self.hold_ep(None, None, &old, false);
        self.hold_ep(None, None, &cntrs, true);
    }

    /// Closes an endpoint. What was under way or posted is forgotten without a completion, but for receives
    /// of a shared context to which a message was on its way: these fail with [`Error::Cancelled`]. When it
    /// returns `Ok`, no peer accesses memory of ours any more on account of it. [`Error::Busy`]: a peer is
    /// stopped while it does; nothing may be posted any more, and the call is to be made again.
    pub fn ep_close(&mut self, id: EpId) -> Result<(), Error> {
        self.ep_part(id).map(drop)
    }

    /// [`Domain::ep_close`], but for the link, which is the caller's to drop: that may wait for peers, and
    /// does better without a lock on the domain.
    pub fn ep_part(&mut self, id: EpId) -> Result<L, Error> {
        let Some(ep) = self.eps.get_mut(id.at()) else { return Err(Error::NotFound) };
        ep.requests.cancel_operations(&mut ep.net.link);
        if let Err(InUse) = ep.net.link.revoke(Revoke::All) {
            // Peers that are closed likewise may wait for those.
            self.eps.iter_mut().filter(|(at, _)| *at != id.0).for_each(|(_, ep)| {
                ep.progress(&mut self.core, None);
            });
            return Err(Error::Busy);
        }
        let Some(mut ep) = self.eps.remove(id.at()) else { return Err(Error::NotFound) };
        self.hold_ep(ep.bind.tx_cq(), ep.bind.rx_cq(), ep.bind.cntrs(), false);
        if let Some(vector) = self.avs.get_mut(ep.bind.av().at()) {
            vector.users = vector.users.saturating_sub(1);
        }
        let shared = self.core.rxs.get(ep.bind.rx().at()).is_some_and(|rx| rx.shared);
        if shared {
            ep.fail_received(&mut self.core);
        }
        self.work.retain(|w| match &w.op {
            WorkOp::Recv { rx, .. } => shared || *rx != ep.bind.rx(),
            op => op.ep() != Some(id),
        });
        let Some(rx) = self.core.rxs.get_mut(ep.bind.rx().at()) else { return Ok(ep.net.link) };
        rx.eps.retain(|e| *e != id);
        if !rx.shared {
            self.core.rxs.remove(ep.bind.rx().at());
        } else {
            rx.claimed.retain(|(_, m)| m.ep != id);
            for tagged in [true, false] {
                rx.matcher(tagged).drop_waiting(|m| m.ep == id);
            }
        }
        self.core.weigh();
        Ok(ep.net.link)
    }

    /// How long [`Domain::ep_close`], [`Domain::mr_close`] and [`Domain::ep_cancel`] wait from now on for
    /// each peer that is inside an access.
    pub fn set_patience(&mut self, patience: Patience) {
        self.core.patience = patience;
        self.eps.iter_mut().for_each(|(_, ep)| ep.net.link.set(Setting::Patience(patience)));
    }

    /// Of a domain in which a call has panicked, and which may be in any state: takes the next endpoint out.
    /// What was under way is forgotten without a completion.
    pub fn ep_abandon(&mut self) -> Option<Abandoned<L>> {
        self.eps
            .take_any()
            .map(|ep| Abandoned { ops: ep.requests.ops_in_flight().collect(), link: ep.net.link })
    }

    /// How many operations an endpoint has under way, its own and those of peers. Zero once all
    /// have completed.
    pub fn ep_under_way(&self, ep: EpId) -> usize {
        self.eps.get(ep.at()).map_or(0, |ep| ep.requests.under_way())
    }

    /// Peers that an endpoint has room to keep something of: as many as there were at a time.
    pub fn ep_peers(&self, ep: EpId) -> usize {
        self.eps.get(ep.at()).map_or(0, |ep| ep.net.peers.len())
    }

    /// What the way from an endpoint to an address can do.
    pub fn ep_path(&self, ep: EpId, to: FiAddr) -> Option<Path> {
        self.eps.get(ep.at())?.net.path(to)
    }

    /// Whether there is a connection between an endpoint and the peer of this address, by which frames may
    /// still come.
    pub fn ep_is_connected(&self, ep: EpId, to: FiAddr) -> bool {
        self.eps.get(ep.at()).is_some_and(|ep| ep.net.is_connected(to))
    }

    /// One line on the path from an endpoint to an address, for people, as the log has it once that is used.
    pub fn ep_describe(&self, ep: EpId, to: FiAddr) -> Result<String, Error> {
        let ep = self.eps.get(ep.at()).ok_or(Error::NotFound)?;
        ep.net.path_words(to).ok_or(Error::NoAddr)
    }

    /// The link of an endpoint.
    pub fn link(&self, ep: EpId) -> Option<&L> {
        Some(&self.eps.get(ep.at())?.net.link)
    }
}
