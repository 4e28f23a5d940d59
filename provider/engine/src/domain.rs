//! The one object a door drives: everything that lives under one lock.

mod deferred;
mod receive;

use hmem::Span;
use wire::Addr;

use crate::av::Av;
use crate::core::{Cntr, Core, Cq, RxContext, Slab, Tally};
use crate::endpoint::Endpoint;
use crate::types::*;
use crate::work::{Work, WorkOp};
use link_api::{InUse, RmaLink};

/// How a domain is tuned; fixed when it is opened.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Registrations are addressed by virtual address (else by offset).
    pub virt_addr: bool,
    /// RMA and atomics to one peer take effect in the order they were posted.
    pub rma_order: bool,
}

/// Counters of an endpoint, by what they count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cntrs {
    /// Sends.
    pub send: Option<CntrId>,
    /// Receives.
    pub recv: Option<CntrId>,
    /// RMA reads, fetching atomics.
    pub read: Option<CntrId>,
    /// RMA writes, atomics.
    pub write: Option<CntrId>,
    /// Reads by peers.
    pub remote_read: Option<CntrId>,
    /// Writes by peers.
    pub remote_write: Option<CntrId>,
}

/// What an endpoint is made of.
#[derive(Debug)]
pub struct EpConfig<L> {
    /// Its way to peers.
    pub link: L,
    /// Who they are.
    pub av: AvId,
    /// A shared receive context; `None`: its own.
    pub rx: Option<RxId>,
    /// Where sends, RMA and atomics complete.
    pub tx_cq: Option<CqId>,
    /// Where receives and remote CQ data complete.
    pub rx_cq: Option<CqId>,
    /// What else counts.
    pub cntrs: Cntrs,
}

/// A registration.
#[derive(Clone, Copy, Debug)]
pub struct Reg<'a> {
    /// The memory.
    pub iov: &'a [Span],
    /// What peers may do.
    pub access: Access,
    /// The key asked for; `None`: the engine chooses one.
    pub key: Option<u64>,
}

/// A registration's name here: unlike its key it is never ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MrId(pub(crate) u64);

/// An operation that could not start, as its completion names it.
struct Failed {
    ctx: Ctx,
    what: What,
    tag: u64,
}

/// Endpoints and all that they share. It is driven by one thread at a time: a door puts its lock
/// around it.
#[derive(Debug)]
pub struct Domain<L> {
    core: Core,
    avs: Slab<Av>,
    eps: Slab<Endpoint<L>>,
    work: Vec<Work>,
}

impl<L: RmaLink> Domain<L> {
    /// A domain without anything in it.
    pub fn new(config: Config) -> Self {
        Domain { core: Core::new(config), avs: Slab::default(), eps: Slab::default(), work: Vec::new() }
    }

    /// Opens a completion queue: posts are refused while `size` entries stand unread, and what
    /// completes all the same is kept.
    pub fn cq_open(&mut self, size: usize) -> CqId {
        CqId(self.core.cqs.insert(Cq::new(size)))
    }

    /// Closes a queue that no endpoint is bound to.
    pub fn cq_close(&mut self, cq: CqId) -> Result<(), Error> {
        match self.core.cqs.get(cq.at()) {
            None => Err(Error::NotFound),
            Some(q) if q.users > 0 => Err(Error::Busy),
            Some(_) => {
                self.core.cqs.remove(cq.at());
                Ok(())
            }
        }
    }

    /// Takes up to `most` successes off a queue, each shown with its number from 0 on; returns how
    /// many. A failure is in the way of what is behind it until [`Domain::cq_error`] removes it.
    /// Makes no progress.
    #[inline]
    pub fn cq_take(&mut self, cq: CqId, most: usize, mut each: impl FnMut(usize, &Completion)) -> usize {
        let Some(cq) = self.core.cqs.get_mut(cq.at()) else { return 0 };
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
        let entries = &mut self.core.cqs.get_mut(cq.at())?.entries;
        let failed = *entries.front()?;
        failed.err?;
        entries.drop_front();
        Some(failed)
    }

    /// Whether a queue has nothing to tell.
    #[inline]
    pub fn cq_is_empty(&self, cq: CqId) -> bool {
        self.core.cqs.get(cq.at()).is_none_or(|q| q.entries.len() == 0)
    }

    /// Opens a counter.
    pub fn cntr_open(&mut self) -> CntrId {
        CntrId(self.core.cntrs.insert(Cntr::default()))
    }

    /// Closes a counter that nothing is bound to.
    pub fn cntr_close(&mut self, c: CntrId) -> Result<(), Error> {
        let waited = self.work.iter().any(|w| {
            let changes =
                matches!(w.op, WorkOp::CntrAdd { cntr, .. } | WorkOp::CntrSet { cntr, .. } if cntr == c);
            changes || w.trigger == c || w.completion == Some(c)
        });
        match self.core.cntrs.get(c.at()) {
            None => Err(Error::NotFound),
            Some(q) if q.users > 0 || waited => Err(Error::Busy),
            Some(_) => {
                self.core.cntrs.remove(c.at());
                Ok(())
            }
        }
    }

    /// How many operations have completed. Makes no progress.
    pub fn cntr_read(&self, c: CntrId) -> u64 {
        self.core.cntrs.get(c.at()).map_or(0, |c| c.value)
    }

    /// How many have failed.
    pub fn cntr_readerr(&self, c: CntrId) -> u64 {
        self.core.cntrs.get(c.at()).map_or(0, |c| c.errors)
    }

    fn cntr_edit(&mut self, c: CntrId, edit: impl FnOnce(&mut Cntr)) {
        if let Some(c) = self.core.cntrs.get_mut(c.at()) {
            edit(c);
            self.core.counted = true;
        }
        self.run_work();
    }

    /// Adds to a counter.
    pub fn cntr_add(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.value = c.value.wrapping_add(v));
    }

    /// Sets a counter.
    pub fn cntr_set(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.value = v);
    }

    /// Adds to a counter's failures.
    pub fn cntr_adderr(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.errors = c.errors.wrapping_add(v));
    }

    /// Sets a counter's failures.
    pub fn cntr_seterr(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.errors = v);
    }

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
        for (_, ep) in self.eps.iter_mut().filter(|(_, ep)| ep.av == av) {
            ep.learn(&mut self.core, at, &addr, first);
        }
        at
    }

    /// Removes an address.
    pub fn av_remove(&mut self, av: AvId, at: FiAddr) -> Result<(), Error> {
        let vector = self.avs.get_mut(av.at()).ok_or(Error::NotFound)?;
        let (_, next) = vector.remove(at).ok_or(Error::NotFound)?;
        for (_, ep) in self.eps.iter_mut().filter(|(_, ep)| ep.av == av) {
            ep.forget(&mut self.core, at, next);
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

    /// Closes a shared receive context that no endpoint uses.
    pub fn srx_close(&mut self, rx: RxId) -> Result<(), Error> {
        match self.core.rxs.get(rx.at()) {
            Some(r) if !r.shared => Err(Error::Invalid),
            Some(r) if !r.eps.is_empty() => Err(Error::Busy),
            Some(_) => {
                self.core.rxs.remove(rx.at());
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
        let ep = Endpoint::new(link, av, rx, tx_cq, rx_cq, cntrs);
        let id = EpId(self.eps.insert(ep));
        if let Some(rx) = self.core.rxs.get_mut(rx.at()) {
            rx.eps.push(id);
        }
        self.hold_ep(tx_cq, rx_cq, &cntrs, true);
        if let (Some(ep), Some(vector)) = (self.eps.get_mut(id.at()), self.avs.get_mut(av.at())) {
            ep.id = id;
            vector.users += 1;
            for (at, addr, first) in vector.iter() {
                ep.learn(&mut self.core, at, &addr, first);
            }
            for mr in self.core.mr_ids() {
                ep.expose(&self.core, mr);
            }
        }
        id
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
        Some(self.eps.get(ep.at())?.rx)
    }

    /// Sets how many operations of an endpoint to one peer may be under way (at first 4096, at most
    /// 65536); beyond that posts are refused with [`Error::Again`].
    pub fn ep_set_depth(&mut self, ep: EpId, depth: usize) {
        if let Some(ep) = self.eps.get_mut(ep.at()) {
            ep.set_depth(depth);
        }
    }

    /// Sets how many bytes messages that nobody asked for may take up before those who send them are
    /// told to hold back (at first 256 MiB).
    pub fn set_unexpected_most(&mut self, bytes: usize) {
        self.core.waiting_most = bytes;
    }

    /// Bytes that messages take up which wait to be received.
    pub fn unexpected(&self) -> usize {
        self.core.waiting
    }

    /// Exchanges the counters of an endpoint.
    pub fn ep_bind_cntrs(&mut self, ep: EpId, cntrs: Cntrs) {
        let Some(ep) = self.eps.get_mut(ep.at()) else { return };
        let old = std::mem::replace(&mut ep.cntrs, cntrs);
        for mr in self.core.mr_ids() {
            ep.expose(&self.core, mr);
        }
        self.hold_ep(None, None, &old, false);
        self.hold_ep(None, None, &cntrs, true);
    }

    /// Closes an endpoint. What was under way or posted is forgotten without a completion. When it returns
    /// `Ok`, no peer accesses memory of ours any more on account of it. [`Error::Busy`]: a peer is stopped
    /// while it does; nothing may be posted any more, and the call is to be made again.
    pub fn ep_close(&mut self, id: EpId) -> Result<(), Error> {
        let Some(ep) = self.eps.get_mut(id.at()) else { return Err(Error::NotFound) };
        ep.stop_copies();
        ep.link.close().map_err(|InUse| Error::Busy)?;
        let Some(ep) = self.eps.remove(id.at()) else { return Err(Error::NotFound) };
        self.hold_ep(ep.tx_cq, ep.rx_cq, &ep.cntrs, false);
        if let Some(vector) = self.avs.get_mut(ep.av.at()) {
            vector.users = vector.users.saturating_sub(1);
        }
        let shared = self.core.rxs.get(ep.rx.at()).is_some_and(|rx| rx.shared);
        self.work.retain(|w| match &w.op {
            WorkOp::Recv { rx, .. } => shared || *rx != ep.rx,
            op => op.ep() != Some(id),
        });
        let Some(rx) = self.core.rxs.get_mut(ep.rx.at()) else { return Ok(()) };
        rx.eps.retain(|e| *e != id);
        if !rx.shared {
            self.core.rxs.remove(ep.rx.at());
        } else {
            rx.claimed.retain(|(_, m)| m.ep != id);
            for tagged in [true, false] {
                rx.matcher(tagged).drop_waiting(|m| m.ep == id);
            }
        }
        self.core.weigh();
        Ok(())
    }

    /// How many operations an endpoint has under way, its own and those of peers. Zero once all
    /// have completed.
    pub fn ep_under_way(&self, ep: EpId) -> usize {
        self.eps.get(ep.at()).map_or(0, Endpoint::under_way)
    }

    /// Peers that an endpoint has room to keep something of: as many as there were at a time.
    pub fn ep_peers(&self, ep: EpId) -> usize {
        self.eps.get(ep.at()).map_or(0, Endpoint::peers)
    }

    /// The link of an endpoint.
    pub fn link(&self, ep: EpId) -> Option<&L> {
        Some(&self.eps.get(ep.at())?.link)
    }

    /// Runs a post; if there is no room, makes progress and tries once more, so that a caller who
    /// does nothing but repeat the call gets through.
    fn post(
        &mut self,
        ep: EpId,
        to: FiAddr,
        run: impl Fn(&mut Endpoint<L>, &mut Core) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let e = self.eps.get_mut(ep.at()).ok_or(Error::NotFound)?;
        let mut result = run(e, &mut self.core);
        if result == Err(Error::Again) && e.progress(&mut self.core, None) > 0 {
            result = run(e, &mut self.core);
        }
        if let Err(err) = result {
            e.not_started(&mut self.core, to, err);
        }
        if let (Some(peer), Ok(())) = (e.unlogged_path, result) {
            e.unlogged_path = None;
            e.tell(peer);
        }
        if self.core.counted && !self.work.is_empty() {
            self.run_work();
        }
        result
    }

    /// How a post ends whose peer cannot be reached: one that asked for a completion has one, with the
    /// error. There are clients that try again for ever what a post refuses.
    #[cold]
    fn fail_post(&mut self, ep: EpId, err: Error, flags: OpFlags, failed: Failed) -> Result<(), Error> {
        let gone = err.gone().is_some();
        match self.eps.get(ep.at()) {
            Some(e) if gone && flags.contains(OpFlags::COMPLETION) && e.tx_cq.is_some() => {
                e.fail_start(&mut self.core, failed.ctx, failed.what, failed.tag, Tally::PLAIN, err);
                Ok(())
            }
            _ => Err(err),
        }
    }

    /// Sends a message.
    pub fn send(&mut self, ep: EpId, op: &Send<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.send(core, op, Tally::PLAIN)).or_else(|err| {
            let what = What::SEND | if op.tag.is_some() { What::TAGGED } else { What::MSG };
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: op.tag.unwrap_or(0) })
        })
    }

    /// Sends a message of one buffer, `span` in the place of `op.iov`, if that can be done in no time.
    /// Otherwise nothing has happened, and [`Domain::send`] is the way.
    #[inline(always)]
    pub fn send_plain(&mut self, ep: EpId, span: Span, op: &Send<'_>) -> bool {
        let Some(e) = self.eps.get_mut(ep.at()) else { return false };
        let sent = e.send_plain(&mut self.core, span, op);
        if !self.work.is_empty() {
            self.run_work();
        }
        sent
    }

    /// Reads or writes a peer's memory.
    pub fn rma(&mut self, ep: EpId, op: &Rma<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.rma(core, op, Tally::PLAIN)).or_else(|err| {
            let what = What::RMA | if op.write { What::WRITE } else { What::READ };
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: 0 })
        })
    }

    /// Changes a peer's memory.
    pub fn atomic(&mut self, ep: EpId, op: &Atomic<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.atomic(core, op, Tally::PLAIN)).or_else(|err| {
            let fetches = hmem::total(op.result) > 0;
            let what = What::ATOMIC | if fetches { What::READ } else { What::WRITE };
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: 0 })
        })
    }

    /// Takes in what has arrived at any endpoint, and sends on what waits. Returns how much was
    /// done.
    pub fn progress(&mut self) -> usize {
        let mut n = 0;
        for (_, ep) in self.eps.iter_mut() {
            n += ep.progress(&mut self.core, None);
        }
        if !self.work.is_empty() {
            self.run_work();
        }
        n
    }

    /// Likewise, but no more than it takes for a queue to have `most` entries; returns whether it
    /// has any.
    #[inline]
    pub fn progress_for(&mut self, cq: CqId, most: usize) -> bool {
        for (_, ep) in self.eps.iter_mut() {
            ep.progress(&mut self.core, Some((cq, most)));
        }
        if !self.work.is_empty() {
            self.run_work();
        }
        !self.cq_is_empty(cq)
    }

    /// A quick look for what that queue, which is empty, would have one entry of, as nearly every
    /// message has.
    #[inline(always)]
    pub fn look_for(&mut self, cq: CqId) -> Look {
        if !self.work.is_empty() {
            return Look::Unknown;
        }
        for (_, ep) in self.eps.iter_mut() {
            match ep.look(&mut self.core, cq) {
                Look::Nothing => {}
                found => return found,
            }
        }
        Look::Nothing
    }

    /// Registers memory; returns its name here and its key.
    pub fn mr_reg(&mut self, reg: &Reg<'_>) -> Result<(MrId, u64), Error> {
        let made = self.core.mr_reg(reg)?;
        self.expose(made.0);
        Ok(made)
    }

    fn expose(&mut self, mr: MrId) {
        for (_, ep) in self.eps.iter_mut() {
            ep.expose(&self.core, mr);
        }
    }

    /// Has counters count what peers do to a registration.
    pub fn mr_bind_cntr(&mut self, mr: MrId, remote_read: Option<CntrId>, remote_write: Option<CntrId>) {
        if let Some(mr) = self.core.mr_mut(mr) {
            mr.remote_read = remote_read.or(mr.remote_read);
            mr.remote_write = remote_write.or(mr.remote_write);
        }
        self.expose(mr);
    }

    /// Ends a registration: from now on its key is unknown, and what peers had under way with it fails on
    /// both sides. When it returns `Ok`, the memory is not accessed any more on account of it.
    /// [`Error::Busy`]: a peer is stopped while it accesses it, so that the call is to be made again.
    pub fn mr_close(&mut self, mr: MrId) -> Result<(), Error> {
        let key = self.core.mr_key(mr);
        let mut outcome = Ok(());
        for (_, ep) in self.eps.iter_mut() {
            let concealed = key.map_or(Ok(()), |key| ep.link.unpublish(key));
            let ended = ep.end_accesses(&mut self.core, mr);
            outcome = outcome.and(concealed).and(ended);
        }
        outcome.map_err(|InUse| Error::Busy)?;
        self.core.mr_close(mr).map(|_| ())
    }

    /// Has every peer wake us when it sends. `true`: nothing is there now, and all links' wait
    /// descriptors may be slept on.
    pub fn arm(&mut self) -> bool {
        let mut quiet = true;
        for (_, ep) in self.eps.iter_mut() {
            quiet &= !ep.is_waiting_for_room() && !ep.is_inviting() && ep.link.arm();
        }
        quiet
    }
}

impl Cntrs {
    fn all(&self) -> [Option<CntrId>; 6] {
        [self.send, self.recv, self.read, self.write, self.remote_read, self.remote_write]
    }
}

impl WorkOp {
    fn ep(&self) -> Option<EpId> {
        match self {
            WorkOp::Send { ep, .. } | WorkOp::Rma { ep, .. } | WorkOp::Atomic { ep, .. } => Some(*ep),
            WorkOp::Recv { .. } | WorkOp::CntrAdd { .. } | WorkOp::CntrSet { .. } => None,
        }
    }
}
