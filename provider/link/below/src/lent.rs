//! What two endpoints have of each other's memory.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use hmem::Span;
use link_api::{Once, RegionVersion, Way};
use wire::session::{ATOMICS, DATA, READS, RESTS, WRITES};
use wire::{Handle, Seg};

use crate::channel::Sort;
use crate::network::{Below, Dest, Keys, Lease, RAILS, Usage};
use crate::parts::provider::Provider;
use crate::published::{Found, Published};

/// What [`Handle::how`] is of memory that is read, and of memory that is written.
const READ: u8 = 0x40;
const WRITTEN: u8 = 0x41;
/// Where a handle has the keys of rails.
const FURTHER: usize = 32;
/// What a peer has lent, at most: what came first is forgotten first.
const LEARNED: usize = 1024;
/// Endpoints by which a peer has lent, at most.
const LENDERS: usize = 4;
/// What is to be said to a peer, and what it has taken back, at most.
const NOTES: usize = 1 << 16;
/// In place of a request: all of them.
pub(crate) const ALL: u64 = 0;

/// What [`Handle::how`] is of memory that is accessed this way.
fn how(way: Way) -> u8 {
    match way {
        Way::Get => READ,
        Way::Put => WRITTEN,
    }
}

/// And the other way round.
fn way_of(handle: &Handle) -> Option<Way> {
    [Way::Get, Way::Put].into_iter().find(|way| how(*way) == handle.how)
}

/// Memory of ours that a peer may access.
#[derive(Debug)]
struct Loan {
    lease: Lease,
    /// By which it is accessed in parts, too.
    further: Keys,
    way: Way,
    span: Span,
    /// What requests have of it, each part once. It is lent until all of them are over.
    parts: Vec<Span>,
    exported: bool,
    /// The peer was sent a handle of it, whatever it has made of that.
    was_sent: bool,
    /// How often what was lent had been ended before.
    generation: u64,
}

impl Loan {
    /// The handle that a peer gets.
    fn handle(&self) -> Handle {
        let lender = &self.lease.lender;
        let mut token = [0; 64];
        for (at, word) in [self.lease.key, self.lease.base, self.generation].into_iter().enumerate() {
            token[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        token[24] = lender.len() as u8;
        token[25..25 + lender.len()].copy_from_slice(lender);
        // Where each peer has a connection of its own there is no lender.
        for (at, word) in self.further.into_iter().enumerate().filter(|_| lender.is_empty()) {
            token[FURTHER + 8 * at..FURTHER + 8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        Handle {
            how: how(self.way),
            zero: [0; 3],
            fd: 0.into(),
            id: self.lease.number.into(),
            base: self.span.addr().into(),
            len: (self.span.len() as u64).into(),
            device: [0; 16],
            token,
        }
    }
}

/// Memory of a peer's: nothing of it is to be believed.
#[derive(Debug)]
struct Learned {
    way: Way,
    first: u64,
    /// What is behind it.
    end: u64,
    key: u64,
    further: Keys,
    base: u64,
    generation: u64,
    from: Dest,
}

/// The address of the endpoint by which memory is lent that a handle is of.
fn lender_in(handle: &Handle) -> Option<&[u8]> {
    let len = handle.token[24] as usize;
    handle.token[25..].get(..len).filter(|_| len > 0)
}

/// What two endpoints have of each other's memory.
#[derive(Debug, Default)]
pub(crate) struct Dealings {
    /// The peer can read, and be read from; and write, and be written to.
    may_read: bool,
    may_write: bool,
    /// They may also write with data, and change words in one step.
    may_data: bool,
    may_atomics: bool,
    /// They may close an idle connection.
    may_rest: bool,
    lent: Vec<Loan>,
    learned: VecDeque<Learned>,
    /// The peer lends nothing of generations before this one. A handle that was sent before may be taken
    /// later.
    lends_from: u64,
    /// Where the peer's memory is accessed, by address.
    lenders: Vec<(Vec<u8>, Dest)>,
    /// What is to be said.
    notes: VecDeque<(Sort, u64)>,
    /// Requests of ours that were taken back, when, and whether the peer has left them.
    taken_back: HashMap<u64, (Instant, bool)>,
    /// Requests of the peer's that it has taken back.
    revoked: HashSet<u64>,
    /// Registrations of the peer's program.
    published: Published,
}

impl Dealings {
    /// The peer has this handle.
    pub(crate) fn mark_exported(&mut self, handle: &Handle) {
        let lent = self.lent.iter_mut().find(|lent| lent.lease.number == handle.id.get());
        if let Some(lent) = lent {
            (lent.exported, lent.was_sent) = (true, true);
        }
    }

    /// A handle of the peer's has arrived, in place of what it had there before.
    fn import(&mut self, handle: &Handle, way: Way, from: Dest) {
        let (first, len) = (handle.base.get(), handle.len.get());
        let Some(end) = first.checked_add(len) else { return };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| handle.token[at + i]));
        let (key, base, generation) = (word(0), word(8), word(16));
        let has_further = lender_in(handle).is_none();
        let further = std::array::from_fn(|i| if has_further { word(FURTHER + 8 * i) } else { 0 });
        self.learned.retain(|old| old.way != way || old.end <= first || end <= old.first);
        if generation < self.lends_from {
            return;
        }
        if self.learned.len() >= LEARNED {
            self.learned.pop_front();
        }
        self.learned.push_back(Learned { way, first, end, key, further, base, generation, from });
    }

    /// The peer lends nothing of a generation any more.
    pub(crate) fn unlearn(&mut self, generation: u64) {
        self.lends_from = self.lends_from.max(generation.saturating_add(1));
        self.learned.retain(|known| known.generation > generation);
    }

    /// Where a segment of the peer's memory is accessed this way.
    pub(crate) fn find(&self, seg: &Seg, way: Way) -> Option<Found> {
        let (first, len) = (seg.addr.get(), seg.len.get());
        let end = first.checked_add(len)?;
        let holds = |l: &&Learned| l.way == way && l.first <= first && end <= l.end;
        let found = self.learned.iter().rev().find(holds)?;
        let at = found.base.checked_add(first - found.first)?;
        let Learned { from, generation, key, further, .. } = *found;
        Some(Found { from, generation, key, further, at })
    }

    /// Whether the peer has taken a request back.
    pub(crate) fn is_revoked(&self, request: u64) -> bool {
        self.revoked.contains(&request) || self.revoked.contains(&ALL)
    }

    pub(crate) fn has_left(&self, request: u64) -> bool {
        self.taken_back.get(&request).is_some_and(|(_, left)| *left)
    }

    /// Whether the two access each other's memory this way.
    pub(crate) fn may(&self, way: Way) -> bool {
        match way {
            Way::Get => self.may_read,
            Way::Put => self.may_write,
        }
    }

    /// Whether the two do this with each other's memory.
    pub(crate) fn may_once(&self, once: Once) -> bool {
        match once {
            Once::Write(_) => self.may_data,
            Once::FetchAdd(_) | Once::CompareSwap(..) => self.may_atomics,
        }
    }

    /// What both can do with each other's memory, as [`wire::session::Announce::can`] has it.
    pub(crate) fn set_may(&mut self, both: u16) {
        let can = |bit| both & bit != 0;
        (self.may_read, self.may_write) = (can(READS), can(WRITES));
        (self.may_data, self.may_atomics, self.may_rest) = (can(DATA), can(ATOMICS), can(RESTS));
    }

    /// Whether the two may close an idle connection.
    pub(crate) fn may_rest(&self) -> bool {
        self.may_rest
    }

    /// Registrations of the peer's program.
    #[inline]
    pub(crate) fn published(&mut self) -> &mut Published {
        &mut self.published
    }

    /// Where a segment of a version of a registration is accessed.
    pub(crate) fn place(&self, version: RegionVersion, seg: &Seg, way: Way, own: Dest) -> Option<Found> {
        self.published.place(version, seg, way, own)
    }

    /// Whether memory is lent to the peer.
    pub(crate) fn has_lent(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Lends memory to the peer in this generation, which accesses it this way: the handles that it lacks.
    pub(crate) fn lend<F: Below>(
        &mut self,
        (below, provider, to, stripes): (&mut F, &Provider, Dest, usize),
        generation: u64,
        (iov, way): (&[Span], Way),
    ) -> Option<Vec<Handle>> {
        let parts = || iov.iter().filter(|span| !span.is_empty());
        if !parts().all(|span| provider.reaches(below, span, Usage::by_peer(way))) {
            return None;
        }
        let mut lacks: Vec<Handle> = Vec::new();
        for span in parts() {
            let holds = |lent: &Loan| lent.way == way && lent.span.holds(*span);
            if !self.lent.iter().any(holds) {
                if self.lent.len() >= LEARNED {
                    return None;
                }
                let lease = below.lend(to, *span, way)?;
                let (read, write) = (way == Way::Get, way == Way::Put);
                let further = match span.len() < stripes {
                    true => [0; RAILS],
                    false => below.stripe(to, lease.number, *span, (read, write), false),
                };
                // The peer forgets those that have a part of it.
                for old in self.lent.iter_mut().filter(|old| old.way == way) {
                    old.exported &= !old.span.overlaps(*span);
                }
                let (parts, exported, was_sent) = (Vec::new(), false, false);
                let span = *span;
                self.lent.push(Loan { lease, further, way, span, parts, exported, was_sent, generation });
            }
            let found = self.lent.iter_mut().find(|lent| holds(lent))?;
            if !found.parts.iter().any(|p| (p.addr(), p.len()) == (span.addr(), span.len())) {
                found.parts.push(*span);
            }
            if !found.exported && lacks.iter().all(|h| h.id.get() != found.lease.number) {
                lacks.push(found.handle());
            }
        }
        Some(lacks)
    }

    /// The peer needs this memory no more, of which no request under way has a part; or none at all.
    pub(crate) fn end_leases<F: Below>(&mut self, below: &mut F, iov: &[Span]) {
        self.lent.retain_mut(|lent| {
            // What has a byte in common with that is of requests that are over. Other parts of the lease may
            // be being read.
            lent.parts.retain(|part| !iov.iter().any(|s| s.overlaps(*part)));
            let stays = !iov.is_empty() && !lent.parts.is_empty();
            if !stays {
                below.end_lease(lent.lease.number, lent.was_sent);
            }
            stays
        });
    }

    /// A handle of the peer's memory has arrived; `reads` if an access to that is under way. `own`: the
    /// connection with the peer.
    pub(crate) fn note_handle<F: Below>(
        &mut self,
        below: &mut F,
        handle: &Handle,
        (own, reads): (Dest, bool),
    ) {
        let Some(way) = way_of(handle).filter(|way| self.may(*way)) else { return };
        if F::CONNECTS {
            return self.import(handle, way, own);
        }
        let Some(address) = lender_in(handle) else { return };
        let known = self.lenders.iter().find(|(name, _)| name == address).map(|(_, dest)| *dest);
        let dest = match known {
            Some(dest) => dest,
            None if reads && self.lenders.len() >= LENDERS => return,
            None => {
                if self.lenders.len() >= LENDERS {
                    self.learned.clear();
                    self.part(below);
                }
                let Ok(dest) = below.meet(address) else { return };
                self.lenders.push((address.to_vec(), dest));
                dest
            }
        };
        self.import(handle, way, dest);
    }

    /// Nothing is accessed any more where the peer's memory was.
    pub(crate) fn part<F: Below>(&mut self, below: &mut F) {
        self.lenders.drain(..).for_each(|(_, dest)| below.part(dest));
    }

    /// Whether requests of either side use memory of the other one, as far as is known here.
    pub(crate) fn is_under_way(&self) -> bool {
        self.has_lent() || self.has_notes() || !self.taken_back.is_empty() || !self.revoked.is_empty()
    }

    /// Whether there is a note to send.
    #[inline]
    pub(crate) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// Whether this note is to be sent.
    pub(crate) fn has_note(&self, sort: Sort, name: u64) -> bool {
        self.notes.contains(&(sort, name))
    }

    pub(crate) fn push_note(&mut self, sort: Sort, name: u64) {
        self.notes.push_back((sort, name));
    }

    /// The next note to send.
    #[inline]
    pub(crate) fn next_note(&self) -> Option<(Sort, u64)> {
        self.notes.front().copied()
    }

    /// The next note was sent.
    pub(crate) fn pop_note(&mut self) {
        self.notes.pop_front();
    }

    /// Whether the peer has sent, or caused, more notes than there can be.
    pub(crate) fn is_flooded(&self) -> bool {
        self.notes.len() > NOTES || self.revoked.len() > NOTES
    }

    /// The peer has taken a request of its own back.
    pub(crate) fn revoke(&mut self, request: u64) {
        self.revoked.insert(request);
    }

    /// The peer may use the name of such a request again.
    pub(crate) fn renew(&mut self, request: u64) {
        self.revoked.remove(&request);
    }

    /// The peer has left a request of ours that was taken back.
    pub(crate) fn leave(&mut self, request: u64) {
        if let Some((_, left)) = self.taken_back.get_mut(&request) {
            *left = true;
        }
    }

    /// A request of ours is taken back; whether it was not before.
    pub(crate) fn take_back(&mut self, request: u64) -> bool {
        let mut is_new = false;
        self.taken_back.entry(request).or_insert_with(|| {
            is_new = true;
            (Instant::now(), false)
        });
        is_new
    }

    /// Whether the peer has had this long to leave a request that was taken back.
    pub(crate) fn has_had(&self, request: u64, time: Duration) -> bool {
        self.taken_back.get(&request).is_some_and(|(since, _)| since.elapsed() >= time)
    }

    /// The name of such a request may be used again; whether there was one.
    pub(crate) fn give_again(&mut self, request: u64) -> bool {
        self.taken_back.remove(&request).is_some()
    }
}
