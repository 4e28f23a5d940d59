//! What the endpoints of a domain share: queues, counters, receive contexts, registrations.

mod cntr;
mod later;
mod memory;
mod messages;
mod mr;
mod payload;
mod spans;
mod tally;

use hmem::Span;
use link_api::{Budget, Patience};
use wire::Status;

use crate::config::Config;
use crate::entries::Entries;
use crate::types::*;
pub(crate) use cntr::{Cntr, Number};
pub(crate) use later::Later;
pub(crate) use memory::Registrations;
pub(crate) use messages::{Body, Message, Multi, RecvOp, RxContext, Segs};
pub(crate) use mr::{Bound, Mr, Mrs, Reached};
pub(crate) use payload::{Buffers, Payload, SHORT};
pub use spans::{Iov, RmaIov};
pub(crate) use spans::{Spans, on_device};
pub(crate) use tally::Tally;

/// A slab: ids are used again, by the provider's leave only.
#[derive(Debug)]
pub(crate) struct Slab<T>(Vec<Option<T>>);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab(Vec::new())
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, v: T) -> u32 {
        let at = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[at] = Some(v);
        at as u32
    }
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at)?.as_ref()
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)?.as_mut()
    }
    /// A place, whether something is there or not.
    #[inline]
    pub(crate) fn slot(&mut self, at: usize) -> Option<&mut Option<T>> {
        self.0.get_mut(at)
    }
    /// All places.
    #[inline(always)]
    pub(crate) fn slots(&mut self) -> &mut [Option<T>] {
        &mut self.0
    }
    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        self.0.get_mut(at)?.take()
    }
    pub(crate) fn take_any(&mut self) -> Option<T> {
        self.0.iter_mut().find_map(Option::take)
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.0).filter_map(|(i, v)| Some((i, v.as_ref()?)))
    }
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.0).filter_map(|(i, v)| Some((i, v.as_mut()?)))
    }
}

/// A completion queue. Posts are refused while `size` entries stand unread; what completes anyway
/// is kept, however many that are.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) entries: Entries,
    pub(crate) size: usize,
    pub(crate) users: usize,
}

impl Cq {
    pub(crate) fn new(size: usize) -> Self {
        Cq { entries: Entries::with_capacity(size.clamp(1, 1024)), size: size.max(1), users: 0 }
    }
}

/// What peers may have a domain keep, all of them together, those that have ended included: three quarters of
/// it for messages that wait, requests, and completions of what peers do on their own; the rest for answers
/// that wait for room, and for parts of frames.
#[derive(Debug)]
pub(crate) struct Limit {
    waiting: usize,
    budget: Budget,
}

impl Limit {
    pub(crate) fn new(bytes: usize) -> Limit {
        let mut limit = Limit { waiting: 0, budget: Budget::default() };
        limit.set(bytes);
        limit
    }

    pub(crate) fn set(&mut self, bytes: usize) {
        self.waiting = bytes / 4 * 3;
        self.budget.set_most(bytes / 4);
    }

    /// Whether waiting messages, requests and completions may take up so many bytes.
    #[inline]
    pub(crate) fn holds(&self, waiting: usize) -> bool {
        waiting <= self.waiting
    }

    /// For answers, and parts of frames.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }
}

/// Everything of a domain but its endpoints. What each message touches comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Core {
    pub(crate) cqs: Slab<Cq>,
    pub(crate) rxs: Slab<RxContext>,
    /// Counters that have changed and were armed: deferred work waits for them.
    pub(crate) changed: Vec<CntrId>,
    /// Polls that take nothing in: a receive has completed, and none is posted. See `endpoint::plain`.
    pub(crate) rest: u8,
    /// An address vector has had one address under two indices.
    pub(crate) aliases: bool,
    /// What calls of progress are to go on with behind what the links bring.
    pub(crate) later: Later,
    pub(crate) config: Config,
    pub(crate) cntrs: Slab<Cntr>,
    pub(crate) mrs: Registrations,
    /// For what waits.
    pub(crate) buffers: Buffers,
    /// Bytes that waiting messages take up, and how many may before peers have to pause.
    pub(crate) waiting: usize,
    pub(crate) waiting_most: usize,
    /// How much peers may have the domain keep in all.
    pub(crate) limit: Limit,
    /// See [`crate::Domain::kept`].
    pub(crate) kept: u32,
    /// How long calls wait for a peer that is inside an access.
    pub(crate) patience: Patience,
    /// Registrations are of memory that stays until they are closed, here and at peers.
    pub(crate) lasting: bool,
}

impl Core {
    pub(crate) fn new(config: Config) -> Self {
        let mrs = Registrations::new(config.virt_addr);
        Core {
            config,
            cqs: Slab::default(),
            cntrs: Slab::default(),
            rxs: Slab::default(),
            mrs,
            changed: Vec::new(),
            buffers: Buffers::default(),
            aliases: false,
            waiting: 0,
            waiting_most: 256 << 20,
            limit: Limit::new(2 << 30),
            rest: 0,
            kept: 0,
            patience: Patience::Second,
            lasting: false,
            later: Later::default(),
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, cq: Option<CqId>, entry: Completion) {
        self.complete_with(cq, || entry);
    }

    /// Reports the end of an operation: to a queue, or of a part of a collective operation to that.
    #[inline]
    pub(crate) fn report(&mut self, cq: Option<CqId>, entry: Completion) {
        if entry.what.contains(What::PART) {
            self.later.part_done(entry);
        } else {
            self.complete(cq, entry);
        }
    }

    /// Writes an entry to a queue, built in its place there.
    #[inline(always)]
    pub(crate) fn complete_with(&mut self, cq: Option<CqId>, entry: impl FnOnce() -> Completion) {
        let Some(id) = cq else { return };
        if let Some(cq) = self.cqs.get_mut(id.at()) {
            cq.entries.push(entry);
        }
    }

    /// How many entries stand in it.
    #[inline]
    pub(crate) fn standing(&self, cq: CqId) -> usize {
        self.cqs.get(cq.at()).map_or(0, |cq| cq.entries.len())
    }

    /// Whether the queue takes no more posts until it is read.
    #[inline]
    pub(crate) fn is_full(&self, cq: Option<CqId>) -> bool {
        cq.and_then(|id| self.cqs.get(id.at())).is_some_and(|cq| cq.entries.len() >= cq.size)
    }

    #[inline(always)]
    pub(crate) fn count(&mut self, cntr: Option<CntrId>, failed: bool) {
        if let Some(id) = cntr {
            self.count_in(id, failed);
        }
    }

    #[inline(never)]
    fn count_in(&mut self, cntr: CntrId, failed: bool) {
        if let Some(slot) = self.cntrs.slot(cntr.at()) {
            if Cntr::count(slot, failed) {
                self.changed.push(cntr);
            }
        }
    }

    /// Changes a counter, if there is one.
    pub(crate) fn change(&mut self, id: CntrId, how: impl FnOnce(&mut Cntr)) -> Option<()> {
        let cntr = self.cntrs.get_mut(id.at())?;
        how(cntr);
        if cntr.disarm() {
            self.changed.push(id);
        }
        Some(())
    }

    /// A message has gone to a receive of this context.
    #[inline(always)]
    pub(crate) fn rest_after(&mut self, rx: RxId) {
        self.rest = self.rxs.get(rx.at()).map_or(0, RxContext::rest);
    }

    /// Counts a completion that belongs to `cntr` of its endpoint.
    #[inline(always)]
    pub(crate) fn tally(&mut self, tally: Tally, cntr: Option<CntrId>, failed: bool) {
        if tally.endpoint {
            self.count(cntr, failed);
        }
        self.count(tally.also, failed);
    }

    /// An operation will have no completion: its endpoint closes, or it was taken back. It has failed for a
    /// device that waits for the counter, and is not counted in others.
    #[cold]
    pub(crate) fn forget(&mut self, tally: Tally, cntr: Option<CntrId>) {
        let of_endpoint = cntr.filter(|_| tally.endpoint);
        for id in [of_endpoint, tally.also].into_iter().flatten() {
            if self.cntrs.get(id.at()).is_some_and(|cntr| cntr.watched) {
                self.count_in(id, true);
            }
        }
    }

    /// Weighs all waiting messages anew, after some were dropped.
    pub(crate) fn weigh(&mut self) {
        self.waiting = self.rxs.iter_mut().flat_map(|(_, rx)| rx.waiting()).map(Message::weight).sum();
    }
}

/// What a peer's status means to the initiator.
pub(crate) fn failure(status: Status) -> Option<Error> {
    match status {
        Status::Ok => None,
        Status::BadKey => Some(Error::BadKey),
        Status::Access => Some(Error::Access),
        Status::Range => Some(Error::Range),
        Status::Unsupported => Some(Error::Unsupported),
        Status::Io | Status::Malformed => Some(Error::Io),
        Status::Discarded => Some(Error::Cancelled),
        Status::Fault => Some(Error::Fault),
    }
}

/// The status for an initiator whose bytes could not be moved from or to this memory.
#[cold]
pub(crate) fn unmoved(iov: &[Span]) -> Status {
    if iov.iter().any(|s| s.may_vanish()) { Status::Fault } else { Status::Io }
}

#[cfg(test)]
mod bounds_tests;
