//! The registrations, and the requests that use each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hmem::registry::AdapterWrites;
use hmem::{Caps, Kind, Span, registry};

use crate::device::{Device, Refusal, Uses, Way};
use crate::kept::Kept;
use crate::refused::Refused;

/// Where a request waits for room, that is looked for again after this time, though no registration has
/// ended.
const AGAIN: Duration = Duration::from_millis(5);

/// A registration.
#[derive(Debug)]
struct Entry<K> {
    key: K,
    span: Span,
    uses: Uses,
    on_demand: bool,
    /// Of a device's memory: the number of its allocation, and when the device sees what is written.
    allocation: Option<u64>,
    sees: AdapterWrites,
    /// [`Registry::find`] finds it.
    is_shared: bool,
    /// Requests of this side that name it, and are under way.
    requests: u32,
    /// It is to end when none does.
    is_closed: bool,
}

/// The registrations with one adapter.
#[derive(Debug)]
pub struct Registry<D: Device> {
    device: D,
    all: HashMap<u64, Entry<D::Key>>,
    /// Memory of the host is registered on demand for accesses of this side.
    on_demand: bool,
    kept: Kept,
    refused: Refused,
    number: u64,
    /// Until when there is taken to be no room, unless a registration ends.
    no_room: Option<Instant>,
}

/// The number of the allocation of a device that all of this memory is in: another one has its address when
/// it was freed.
fn allocation(span: Span) -> Option<u64> {
    let last = span.len().checked_sub(1).filter(|_| span.can(Caps::DEVICE))?;
    let (memory, at) = (registry::of(span.kind()), span.addr() as usize);
    memory.number(at).filter(|number| memory.number(at + last) == Some(*number))
}

/// Whether requests of this side alone use it, in the domain that peers share.
fn is_for_this_side(uses: Uses) -> bool {
    !uses.is_for_peers() && uses.domain == 0
}

/// Its first byte, and what is behind its last one.
fn ends(span: Span) -> (u64, u64) {
    (span.addr(), span.addr() + span.len() as u64)
}

impl<D: Device> Registry<D> {
    /// None yet. `on_demand`: memory of the host is registered on demand for accesses of this side, and
    /// stays so.
    pub fn new(device: D, on_demand: bool) -> Registry<D> {
        let (kept, refused) = (Kept::default(), Refused::default());
        Registry { device, all: HashMap::new(), on_demand, kept, refused, number: 0, no_room: None }
    }

    /// The adapter.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Registers memory by the first way that takes it: the number that the registration is known by, and
    /// its key; else why each way was refused. [`Registry::find`] finds it if it `is_shared`.
    pub fn register(
        &mut self,
        span: Span,
        uses: Uses,
        is_shared: bool,
    ) -> Result<(u64, &D::Key), Vec<Refusal>> {
        let (kind, for_peers, mut refusals) = (span.kind(), uses.is_for_peers(), Vec::new());
        let sees = self.sees(span, uses).map_err(|refusal| vec![refusal])?;
        let is_own = !is_shared && is_for_this_side(uses);
        let on_demand = self.on_demand && is_own && !self.kept.has_failed(ends(span));
        let may = |way: &Way| way.is_for(&span) && (*way != Way::OnDemand || on_demand);
        for way in Way::ALL.into_iter().filter(may) {
            if let Some(refusal) = self.refused.last_of_many(kind, for_peers, way) {
                refusals.push(refusal);
                continue;
            }
            let mut found = self.device.register(way, span, uses);
            let refusal = |(call, errno)| Refusal { way: Some(way), call, errno };
            let lacks_room = |refusal: Refusal| refusal.errno == libc::ENOMEM && !refusal.is_of_client();
            if found.as_ref().err().copied().map(refusal).is_some_and(lacks_room) && self.make_room(span) {
                found = self.device.register(way, span, uses);
            }
            match found {
                Ok(key) => {
                    let is_new = self.refused.note_success(kind, for_peers, way);
                    let is_usual = way == Way::Plain && kind == Kind::System && refusals.is_empty();
                    if is_new && !is_usual {
                        let by = self.describe(kind, for_peers).unwrap_or_default();
                        log::info!("memory is registered: {by}");
                    }
                    self.number += 1;
                    if way == Way::OnDemand {
                        self.keep(self.number, span, uses);
                    }
                    let allocation = allocation(span);
                    let (requests, is_closed) = (0, false);
                    let on_demand = way == Way::OnDemand;
                    let entry = Entry {
                        key,
                        span,
                        uses,
                        on_demand,
                        allocation,
                        sees,
                        is_shared,
                        requests,
                        is_closed,
                    };
                    return Ok((self.number, &self.all.entry(self.number).or_insert(entry).key));
                }
                Err(why) => {
                    let refusal = refusal(why);
                    refusals.push(refusal);
                    if self.refused.note_refusal(kind, for_peers, way, refusal) {
                        log::info!("memory of {kind:?} is not registered by {refusal}");
                    }
                }
            }
        }
        Err(refusals)
    }

    /// What is registered on demand stays, in place of others.
    fn keep(&mut self, number: u64, span: Span, uses: Uses) {
        let others = self.kept.add(ends(span), uses.local_write, number);
        self.end_kept(others);
    }

    /// There was no room to register this memory: as much as it that was registered on demand ends; whether
    /// there was any.
    fn make_room(&mut self, span: Span) -> bool {
        let others = self.kept.make_room(span.len() as u64);
        let is_some = !others.is_empty();
        self.end_kept(others);
        is_some
    }

    fn end_kept(&mut self, others: Vec<u64>) {
        for other in others {
            if let Err((call, errno)) = self.close(other) {
                log::error!("{call}: errno {errno}: memory that nothing uses stays registered on demand");
            }
        }
    }

    /// When the owner of memory sees what is written there, if the adapter writes it.
    fn sees(&mut self, span: Span, uses: Uses) -> Result<AdapterWrites, Refusal> {
        let because = |call, errno| Refusal { way: None, call, errno };
        let sees = self.device.sees(span).map_err(|(call, errno)| because(call, errno))?;
        let call = match sees {
            AdapterWrites::Unknown if uses.writes() => "the order of an adapter's writes",
            // This side may write it nevertheless.
            AdapterWrites::Flushed if uses.remote_write => "a flush, which peers that write do not do",
            _ => return Ok(sees),
        };
        let (kind, refusal) = (span.kind(), because(call, libc::EOPNOTSUPP));
        if self.refused.note_unwritten(kind, refusal) {
            log::info!("memory of {kind:?} is not written: {refusal}");
        }
        Err(refusal)
    }

    /// What came of a way for memory of this kind; `None`: it was not tried.
    pub fn outcome(&self, kind: Kind, for_peers: bool, way: Way) -> Option<Result<(), Refusal>> {
        self.refused.outcome(kind, for_peers, way)
    }

    /// The registration that holds all of this memory, for these uses, if there is one that is shared, or one
    /// on demand.
    pub fn find(&mut self, span: Span, uses: Uses) -> Option<(u64, &D::Key)> {
        if self.on_demand && is_for_this_side(uses) && Way::OnDemand.is_for(&span) {
            if let Some(number) = self.kept.find(ends(span), uses.local_write) {
                return self.key(number).map(|key| (number, key));
            }
        }
        let serves = |e: &Entry<D::Key>| {
            e.is_shared
                && !e.is_closed
                && e.span.kind() == span.kind()
                && e.span.holds(span)
                && e.uses.include(uses)
                && match span.kind() {
                    Kind::Client => self.device.is_there(&e.key),
                    _ if !span.can(Caps::DEVICE) => true,
                    _ => e.allocation.is_some() && e.allocation == allocation(span),
                }
        };
        self.all.iter().find(|(_, entry)| serves(entry)).map(|(number, entry)| (*number, &entry.key))
    }

    /// The key of a registration that was not closed, and whose memory is registered still.
    pub fn key(&self, number: u64) -> Option<&D::Key> {
        let is_there = |entry: &&Entry<D::Key>| !entry.is_closed && self.device.is_there(&entry.key);
        self.all.get(&number).filter(is_there).map(|entry| &entry.key)
    }

    /// Whether the memory of a registration is registered still: its owner may have taken it back.
    pub fn is_there(&self, number: u64) -> bool {
        self.all.get(&number).is_some_and(|entry| self.device.is_there(&entry.key))
    }

    /// The key of a registration that a request is to name, for which [`Registry::begin`] was called.
    pub fn key_in_use(&self, number: u64) -> Option<&D::Key> {
        self.all.get(&number).map(|entry| &entry.key)
    }

    /// Has the owner of a registration's memory see what the adapter has written there.
    pub fn flush(&mut self, number: u64) -> Result<(), (&'static str, i32)> {
        let Some(entry) = self.all.get(&number) else { return Ok(()) };
        if entry.sees == AdapterWrites::Flushed && entry.uses.local_write {
            self.device.flush(entry.span)
        } else {
            Ok(())
        }
    }

    /// A request that names it is posted.
    pub fn begin(&mut self, number: u64) {
        if let Some(entry) = self.all.get_mut(&number) {
            entry.requests += 1;
        }
    }

    /// Such a request is over: what was closed meanwhile ends with the last one. As [`Registry::close`] for
    /// errors.
    pub fn end(&mut self, number: u64) -> Result<(), (&'static str, i32)> {
        let Some(entry) = self.all.get_mut(&number) else { return Ok(()) };
        entry.requests = entry.requests.saturating_sub(1);
        if entry.requests > 0 {
            return Ok(());
        }
        self.device.note_idle(&entry.key);
        if entry.is_closed { self.remove(number) } else { Ok(()) }
    }

    /// The request that memory was registered for, by [`Registry::register`], is the last one to use it,
    /// unless the registration is one on demand. As [`Registry::close`] for errors.
    pub fn let_go(&mut self, number: u64) -> Result<(), (&'static str, i32)> {
        let is_kept = self.all.get(&number).is_some_and(|entry| self.kept.has(ends(entry.span), number));
        if is_kept { Ok(()) } else { self.close(number).map(drop) }
    }

    /// A request that names it has failed: what is on demand may be memory by now that the adapter cannot
    /// fault in, and all registrations of it are found no more. `is_own`: the adapter had no access to it; it
    /// is not registered on demand again. As [`Registry::close`] for errors.
    pub fn note_failure(&mut self, number: u64, is_own: bool) -> Result<(), (&'static str, i32)> {
        let Some(entry) = self.all.get(&number) else { return Ok(()) };
        let ends = ends(entry.span);
        if entry.on_demand && is_own {
            self.kept.note_failed(ends);
        }
        let all = self.kept.remove_all(ends);
        all.into_iter().try_fold((), |(), number| self.close(number).map(drop))
    }

    /// The registration is not needed any more: it ends now, or with the last request that names it. Whether
    /// it has ended, so that the adapter accesses its memory no more. An error says that the adapter may go
    /// on to access it.
    pub fn close(&mut self, number: u64) -> Result<bool, (&'static str, i32)> {
        let Some(entry) = self.all.get_mut(&number) else { return Ok(true) };
        entry.is_closed = true;
        if entry.requests > 0 { Ok(false) } else { self.remove(number).map(|()| true) }
    }

    fn remove(&mut self, number: u64) -> Result<(), (&'static str, i32)> {
        let Some(entry) = self.all.remove(&number) else { return Ok(()) };
        self.no_room = None;
        self.device.deregister(entry.key)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.all.len()
    }

    /// A request waits since there was no room to register its memory.
    pub fn note_no_room(&mut self, now: Instant) {
        self.no_room = Some(now + AGAIN);
    }

    /// Whether there was none for another one a moment ago, and none has come since: the device, which may
    /// pin all of the memory before it refuses, is not asked.
    pub fn has_no_room(&self, now: Instant) -> bool {
        self.no_room.is_some_and(|until| now < until)
    }

    /// Whether requests of this side use some.
    pub fn is_used(&self) -> bool {
        self.all.values().any(|entry| entry.requests > 0)
    }

    /// Whether memory of this kind may be registered, as far as is known: for peers, or for this side.
    pub fn may(&self, kind: Kind, for_peers: bool) -> bool {
        self.refused.may(kind, for_peers)
    }

    /// The same of this memory: what the program has named a dma-buf of may be registered as that whatever
    /// came of other memory of its kind.
    pub fn may_take(&self, span: &Span, for_peers: bool) -> bool {
        let kind = span.kind();
        let is_left = |way: Way| self.refused.last_of_many(kind, for_peers, way).is_none();
        self.may(kind, for_peers) || is_left(Way::Own) && Way::Own.is_for(span)
    }

    /// By which way memory of this kind was registered for that, and why by no better one, for people; `None`
    /// if none was to be.
    pub fn describe(&self, kind: Kind, for_peers: bool) -> Option<String> {
        self.refused.describe(kind, for_peers)
    }
}

#[cfg(test)]
mod tests;
