//! What is opened and closed in a domain: endpoints, address vectors, receive contexts, registrations,
//! completion queues and counters.

use hmem::{Span, Words};
use wire::Addr;

use super::Domain;
use crate::av::Av;
use crate::config::{Cntrs, EpConfig, MrId, Reg};
use crate::core::{Cntr, Cq, Number, RxContext};
use crate::endpoint::{Endpoint, forget};
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
        AvId(self.opened.avs.insert(Av::default()))
    }

    /// Closes an address vector that no endpoint is bound to.
    pub fn av_close(&mut self, av: AvId) -> Result<(), Error> {
        match self.opened.avs.get(av.at()) {
            None => Err(Error::NotFound),
            Some(a) if a.users > 0 => Err(Error::Busy),
            Some(_) => {
                self.opened.avs.remove(av.at());
                Ok(())
            }
        }
    }

    /// Inserts an address; an address that is there already gets another index.
    pub fn av_insert(&mut self, av: AvId, addr: Addr) -> FiAddr {
        let Some(vector) = self.opened.avs.get_mut(av.at()) else { return ADDR_UNSPEC };
        let (at, first) = vector.insert(addr);
        self.opened.core.aliases |= at != first;
        for (_, ep) in self.opened.eps.iter_mut().filter(|(_, ep)| ep.bind.av() == av) {
            ep.add_route(&mut self.opened.core, at, &addr, first);
        }
        at
    }

    /// Removes an address.
    pub fn av_remove(&mut self, av: AvId, at: FiAddr) -> Result<(), Error> {
        let vector = self.opened.avs.get_mut(av.at()).ok_or(Error::NotFound)?;
        let (_, next) = vector.remove(at).ok_or(Error::NotFound)?;
        self.collectives.address_removed(&mut self.opened, av, (at, next));
        for (_, ep) in self.opened.eps.iter_mut().filter(|(_, ep)| ep.bind.av() == av) {
            ep.remove_route(&mut self.opened.core, at, next);
        }
        Ok(())
    }

    /// The address at an index.
    pub fn av_lookup(&self, av: AvId, at: FiAddr) -> Option<Addr> {
        self.opened.avs.get(av.at())?.lookup(at)
    }

    /// The indices of all addresses.
    pub fn av_indices(&self, av: AvId) -> Vec<FiAddr> {
        self.opened.avs.get(av.at()).map_or(Vec::new(), |vector| vector.iter().map(|(at, ..)| at).collect())
    }

    /// Opens a receive context for several endpoints.
    pub fn srx_open(&mut self) -> RxId {
        RxId(self.opened.core.rxs.insert(RxContext::new(true)))
    }

    /// Closes a shared receive context that no endpoint uses. What was posted to it, or was to be when a
    /// counter is there, is forgotten without a completion.
    pub fn srx_close(&mut self, rx: RxId) -> Result<(), Error> {
        match self.opened.core.rxs.get(rx.at()) {
            Some(r) if !r.shared => Err(Error::Invalid),
            Some(r) if !r.eps.is_empty() => Err(Error::Busy),
            Some(_) => {
                self.opened.core.rxs.remove(rx.at());
                let taken =
                    self.deferred.retain(|work| !matches!(work.op, WorkOp::Recv { rx: of, .. } if of == rx));
                taken.iter().for_each(|work| self.opened.core.forget(work.tally(), None));
                Ok(())
            }
            None => Err(Error::NotFound),
        }
    }

    /// How much must be left of a multi-receive buffer for it to stay posted (at first 64 bytes).
    pub fn rx_set_min_multi_recv(&mut self, rx: RxId, bytes: usize) {
        if let Some(rx) = self.opened.core.rxs.get_mut(rx.at()) {
            rx.min_multi_recv = bytes;
        }
    }

    /// Opens an endpoint, ready for use.
    pub fn ep_open(&mut self, config: EpConfig<L>) -> EpId {
        let EpConfig { link, av, rx, tx_cq, rx_cq, cntrs } = config;
        let rx = rx.unwrap_or_else(|| RxId(self.opened.core.rxs.insert(RxContext::new(false))));
        let ep = Endpoint::new(link, av, rx, tx_cq, rx_cq, cntrs, self.opened.core.limit.budget());
        let id = EpId(self.opened.eps.insert(ep));
        if let Some(rx) = self.opened.core.rxs.get_mut(rx.at()) {
            rx.add_ep(id);
        }
        self.hold_ep(tx_cq, rx_cq, &cntrs, true);
        if let (Some(ep), Some(vector)) = (self.opened.eps.get_mut(id.at()), self.opened.avs.get_mut(av.at()))
        {
            ep.id = id;
            vector.users += 1;
            for (at, addr, first) in vector.iter() {
                ep.add_route(&mut self.opened.core, at, &addr, first);
            }
            for mr in self.opened.core.mrs.ids() {
                ep.expose(&self.opened.core, mr);
            }
        }
        id
    }

    /// Has what an endpoint does counted. To be called before anything is posted; messages then go the
    /// general way, which takes a little longer.
    pub fn ep_meter(&mut self, ep: EpId, meter: Box<dyn Meter>) {
        if let Some(ep) = self.opened.eps.get_mut(ep.at()) {
            ep.net.set_meter(meter);
        }
    }

    /// Takes or gives back what an endpoint keeps from being closed.
    fn hold_ep(&mut self, tx_cq: Option<CqId>, rx_cq: Option<CqId>, cntrs: &Cntrs, on: bool) {
        let step = |n: &mut usize| *n = if on { *n + 1 } else { n.saturating_sub(1) };
        for cq in [tx_cq, rx_cq].into_iter().flatten() {
            if let Some(cq) = self.opened.core.cqs.get_mut(cq.at()) {
                step(&mut cq.users);
            }
        }
        for c in cntrs.all().into_iter().flatten() {
            if let Some(c) = self.opened.core.cntrs.get_mut(c.at()) {
                step(&mut c.users);
            }
        }
    }

    /// The receive context of an endpoint.
    pub fn ep_rx(&self, ep: EpId) -> Option<RxId> {
        Some(self.opened.eps.get(ep.at())?.bind.rx())
    }

    /// Sets how many operations of an endpoint to one peer may be under way (at first 4096, at most
    /// 65536); beyond that posts are refused with [`Error::Again`].
    pub fn ep_set_depth(&mut self, ep: EpId, depth: usize) {
        if let Some(ep) = self.opened.eps.get_mut(ep.at()) {
            ep.net.set_depth(depth);
        }
    }

    /// Has every receive of a shared context that succeeds written to the queue of this endpoint if its
    /// message came there, also one without [`OpFlags::COMPLETION`], if it has [`OpFlags::AS_BOUND`].
    pub fn ep_write_every_receive(&mut self, ep: EpId) {
        if let Some(ep) = self.opened.eps.get_mut(ep.at()) {
            ep.bind.write_every_receive();
        }
    }

    /// Sets how many bytes unexpected messages may take up before their senders are
    /// asked to pause (at first 256 MiB).
    pub fn set_unexpected_most(&mut self, bytes: usize) {
        self.opened.core.waiting_most = bytes;
    }

    /// Sets how many bytes peers may have this domain keep in all, however many they are and whatever they
    /// call themselves (at first 2 GiB). A peer that would have it keep more is cut off; what has come stays.
    pub fn set_kept_most(&mut self, bytes: usize) {
        self.opened.core.limit.set(bytes);
    }

    /// Bytes that messages take up which wait to be received.
    pub fn unexpected(&self) -> usize {
        self.opened.core.waiting
    }

    /// Bytes that answers take up which found no room, and parts of frames.
    pub fn owed(&self) -> usize {
        self.opened.core.limit.budget().used()
    }

    /// Exchanges the counters of an endpoint.
    pub fn ep_bind_cntrs(&mut self, ep: EpId, cntrs: Cntrs) {
        let Some(ep) = self.opened.eps.get_mut(ep.at()) else { return };
        let old = ep.bind.set_cntrs(cntrs);
        for mr in self.opened.core.mrs.ids() {
            ep.expose(&self.opened.core, mr);
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
        let Some(ep) = self.opened.eps.get_mut(id.at()) else { return Err(Error::NotFound) };
        ep.net.answer_writes();
        ep.requests.cancel_operations(&mut ep.net.link);
        if let Err(InUse) = ep.net.link.revoke(Revoke::All) {
            // Peers that close their endpoints too may wait for answers of the other endpoints here.
            self.opened.eps.iter_mut().filter(|(at, _)| *at != id.0).for_each(|(_, ep)| {
                ep.progress(&mut self.opened.core, None);
            });
            return Err(Error::Busy);
        }
        let Some(mut ep) = self.opened.eps.remove(id.at()) else { return Err(Error::NotFound) };
        self.hold_ep(ep.bind.tx_cq(), ep.bind.rx_cq(), ep.bind.cntrs(), false);
        if let Some(vector) = self.opened.avs.get_mut(ep.bind.av().at()) {
            vector.users = vector.users.saturating_sub(1);
        }
        let shared = self.opened.core.rxs.get(ep.bind.rx().at()).is_some_and(|rx| rx.shared);
        if shared {
            ep.fail_received(&mut self.opened.core);
        }
        let taken = self.deferred.retain(|work| match &work.op {
            WorkOp::Recv { rx, .. } => shared || *rx != ep.bind.rx(),
            op => op.ep() != Some(id),
        });
        for work in taken {
            self.opened.core.forget(work.tally(), ep.bind.cntr_of(work.op.what()));
        }
        forget(&mut ep, &mut self.opened.core);
        self.collectives.forget(id);
        if let Some(rx) = ep.bind.collective() {
            self.opened.core.rxs.remove(rx.at());
        }
        let Some(rx) = self.opened.core.rxs.get_mut(ep.bind.rx().at()) else { return Ok(ep.net.link) };
        rx.remove_ep(id);
        if !rx.shared {
            self.opened.core.rxs.remove(ep.bind.rx().at());
        } else {
            rx.claimed.retain(|(_, m)| m.ep != id);
            for tagged in [true, false] {
                rx.matcher(tagged).drop_waiting(|m| m.ep == id);
            }
        }
        self.opened.core.weigh();
        Ok(ep.net.link)
    }

    /// How long [`Domain::ep_close`], [`Domain::mr_close`] and [`Domain::ep_cancel`] wait from now on for
    /// each peer that is inside an access.
    pub fn set_patience(&mut self, patience: Patience) {
        self.opened.core.patience = patience;
        self.opened.eps.iter_mut().for_each(|(_, ep)| ep.net.link.set(Setting::Patience(patience)));
    }

    /// Of a domain in which a call has panicked, and which may be in any state: takes the next endpoint out.
    /// What was under way is forgotten without a completion.
    pub fn ep_abandon(&mut self) -> Option<Abandoned<L>> {
        self.opened
            .eps
            .take_any()
            .map(|ep| Abandoned { ops: ep.requests.ops_in_flight().collect(), link: ep.net.link })
    }

    /// How many operations an endpoint has under way, its own and those of peers. Zero once all
    /// have completed.
    pub fn ep_under_way(&self, ep: EpId) -> usize {
        self.opened.eps.get(ep.at()).map_or(0, |ep| ep.requests.under_way())
    }

    /// Peers that an endpoint has room to keep something of: as many as there were at a time.
    pub fn ep_peers(&self, ep: EpId) -> usize {
        self.opened.eps.get(ep.at()).map_or(0, |ep| ep.net.peers.len())
    }

    /// What the way from an endpoint to an address can do.
    pub fn ep_path(&self, ep: EpId, to: FiAddr) -> Option<Path> {
        self.opened.eps.get(ep.at())?.net.path(to)
    }

    /// Whether there is a connection between an endpoint and the peer of this address, by which frames may
    /// still come.
    pub fn ep_is_connected(&self, ep: EpId, to: FiAddr) -> bool {
        self.opened.eps.get(ep.at()).is_some_and(|ep| ep.net.is_connected(to))
    }

    /// One line on the path from an endpoint to an address, for people, as the log has it once that is used.
    pub fn ep_describe(&self, ep: EpId, to: FiAddr) -> Result<String, Error> {
        let ep = self.opened.eps.get(ep.at()).ok_or(Error::NotFound)?;
        ep.net.path_words(to).ok_or(Error::NoAddr)
    }

    /// The link of an endpoint.
    pub fn link(&self, ep: EpId) -> Option<&L> {
        Some(&self.opened.eps.get(ep.at())?.net.link)
    }

    /// Memory that is registered, here and at peers, stays until its registration is closed, so that long
    /// writes may be got by their targets. Where a target's does not ([`hmem::Span::stays`]), they come in
    /// frames all the same.
    pub fn set_lasting(&mut self) {
        self.opened.core.lasting = true;
    }

    /// Registers memory; returns its name here and its key.
    pub fn mr_reg(&mut self, reg: &Reg<'_>) -> Result<(MrId, u64), Error> {
        let made = self.opened.core.mrs.register(reg)?;
        self.expose(made.0);
        Ok(made)
    }

    fn expose(&mut self, mr: MrId) {
        for (_, ep) in self.opened.eps.iter_mut() {
            ep.expose(&self.opened.core, mr);
        }
    }

    /// Has counters count what peers do to a registration.
    pub fn mr_bind_cntr(&mut self, mr: MrId, remote_read: Option<CntrId>, remote_write: Option<CntrId>) {
        if let Some(mr) = self.opened.core.mrs.get_mut(mr) {
            mr.remote_read = remote_read.or(mr.remote_read);
            mr.remote_write = remote_write.or(mr.remote_write);
        }
        self.expose(mr);
    }

    /// Ends a registration: from now on its key is unknown, and what peers had under way with it fails on
    /// both sides, whatever the answer. When it returns `Ok`, the memory is not accessed any more on account
    /// of it.
    /// [`Error::Busy`]: a peer is stopped while it accesses it, so that the call is to be made again; until
    /// then no other registration gets the key.
    pub fn mr_close(&mut self, mr: MrId) -> Result<(), Error> {
        let key = self.opened.core.mrs.end(mr)?;
        let mut outcome = Ok(());
        for (_, ep) in self.opened.eps.iter_mut() {
            let concealed = key.map_or(Ok(()), |key| ep.net.link.revoke(Revoke::Region(key)));
            let ended = ep.end_accesses(&mut self.opened.core, mr);
            outcome = outcome.and(concealed).and(ended);
        }
        if let Err(InUse) = outcome {
            // Peers that take memory back wait for an answer, too.
            self.progress();
            return Err(Error::Busy);
        }
        self.opened.core.mrs.close(mr);
        Ok(())
    }

    /// Opens a completion queue: posts are refused while `size` entries stand unread, and what
    /// completes all the same is kept.
    pub fn cq_open(&mut self, size: usize) -> CqId {
        CqId(self.opened.core.cqs.insert(Cq::new(size)))
    }

    /// Closes a queue that no endpoint is bound to.
    pub fn cq_close(&mut self, cq: CqId) -> Result<(), Error> {
        match self.opened.core.cqs.get(cq.at()) {
            None => Err(Error::NotFound),
            Some(q) if q.users > 0 => Err(Error::Busy),
            Some(_) => {
                self.opened.core.cqs.remove(cq.at());
                Ok(())
            }
        }
    }

    /// Takes up to `most` successes off a queue, each shown with its number from 0 on; returns how
    /// many. A failure is in the way of what is behind it until [`Domain::cq_error`] removes it.
    /// Makes no progress.
    #[inline(always)]
    pub fn cq_take(&mut self, cq: CqId, most: usize, mut each: impl FnMut(usize, &Completion)) -> usize {
        let Some(cq) = self.opened.core.cqs.get_mut(cq.at()) else { return 0 };
        let mut n = 0;
        while n < most {
            match cq.entries.front() {
                Some(c) if c.err.is_none() => each(n, c),
                _ => break,
            }
            cq.entries.drop_front();
            n += 1;
        }
        n
    }

    /// Takes the failure off the head of a queue, if one is there.
    pub fn cq_error(&mut self, cq: CqId) -> Option<Completion> {
        let entries = &mut self.opened.core.cqs.get_mut(cq.at())?.entries;
        let failed = *entries.front()?;
        failed.err?;
        entries.drop_front();
        Some(failed)
    }

    /// Whether a queue is empty.
    #[inline]
    pub fn cq_is_empty(&self, cq: CqId) -> bool {
        self.opened.core.cqs.get(cq.at()).is_none_or(|q| q.entries.len() == 0)
    }

    /// Opens a counter.
    pub fn cntr_open(&mut self) -> CntrId {
        CntrId(self.opened.core.cntrs.insert(Cntr::new()))
    }

    /// Opens a counter whose numbers lie in memory that others may write, too: completions in the first 8
    /// bytes, failures in the second, with what they are. The memory stays until the counter is closed.
    /// [`Error::Invalid`]: it is not 16 bytes that are aligned to 8 and that the CPU can load and store.
    ///
    /// What others write is noticed by a look, and by progress where operations wait for the counter; it
    /// wakes nothing.
    pub fn cntr_open_at(&mut self, memory: Span) -> Result<CntrId, Error> {
        let words = Words::of(memory).ok_or(Error::Invalid)?;
        Ok(CntrId(self.opened.core.cntrs.insert(Cntr::at(words))))
    }

    /// Whether others may write a counter, so that none can sleep until it changes.
    pub fn cntr_is_shared(&self, c: CntrId) -> bool {
        self.opened.core.cntrs.get(c.at()).is_some_and(Cntr::is_shared)
    }

    /// A device waits for the counter, and can be woken by a change alone: an operation that never completes,
    /// since its endpoint closes or it is taken back before it starts, counts as failed in it.
    pub fn cntr_watch(&mut self, c: CntrId) {
        if let Some(cntr) = self.opened.core.cntrs.get_mut(c.at()) {
            cntr.watched = true;
        }
    }

    /// Closes a counter that nothing is bound to.
    pub fn cntr_close(&mut self, c: CntrId) -> Result<(), Error> {
        let waited = self.deferred.names(c);
        match self.opened.core.cntrs.get(c.at()) {
            None => Err(Error::NotFound),
            Some(q) if q.users > 0 || waited => Err(Error::Busy),
            Some(_) => {
                self.opened.core.cntrs.remove(c.at());
                Ok(())
            }
        }
    }

    /// How many operations have completed. Makes no progress.
    pub fn cntr_read(&self, c: CntrId) -> u64 {
        self.opened.core.cntrs.get(c.at()).map_or(0, |c| c.get(Number::Value))
    }

    /// How many have failed.
    pub fn cntr_readerr(&self, c: CntrId) -> u64 {
        self.opened.core.cntrs.get(c.at()).map_or(0, |c| c.get(Number::Errors))
    }

    fn cntr_edit(&mut self, c: CntrId, edit: impl FnOnce(&mut Cntr)) {
        self.opened.core.change(c, edit);
        self.run_work();
    }

    /// Adds to a counter.
    pub fn cntr_add(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.add(Number::Value, v));
    }

    /// Sets a counter.
    pub fn cntr_set(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.set(Number::Value, v));
    }

    /// Adds to a counter's failures.
    pub fn cntr_adderr(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.add(Number::Errors, v));
    }

    /// Sets a counter's failures.
    pub fn cntr_seterr(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.set(Number::Errors, v));
    }
}
