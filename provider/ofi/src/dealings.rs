//! Memory that is lent to peers to read, and taken back.
//!
//! Memory is registered for one peer and the time of its requests, so that it is never the memory of
//! something later that is read. A request that is taken back before its time is over when the peer has said
//! that it reads no more ([`Sort::Revoke`], [`Sort::Left`]).

use std::time::Instant;

use hmem::Span;
use link_api::{InUse, Patience, PeerId, RmaLink};
use wire::Handle;

use crate::below::{Below, Usage};
use crate::channel::{Said, Sort};
use crate::lent::{ALL, LEARNED, LENDERS, Lent, NOTES, is_for_below, lender_in};
use crate::link::OfiLink;
use crate::peer::Stage;

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    /// Lends memory to a peer: the handles that it lacks.
    pub(crate) fn lend(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        let at = self.peers.get_mut(to)?;
        let below = self.below.as_mut().filter(|_| !self.provider.has_failed())?;
        if at.stage != Stage::Fabric || !at.dealings.may_read || at.end.is_broken() {
            return None;
        }
        let parts = || iov.iter().filter(|span| !span.is_empty());
        if !parts().all(|span| is_for_below(below, span, Usage::Lent)) {
            return None;
        }
        let generation = self.reading.generation;
        let mut lacks: Vec<Handle> = Vec::new();
        for span in parts() {
            let holds = |lent: &Lent| lent.span.holds(*span);
            if !at.dealings.lent.iter().any(holds) {
                if at.dealings.lent.len() >= LEARNED {
                    return None;
                }
                let lease = below.lend(*span)?;
                // The peer forgets those that have a part of it.
                for old in &mut at.dealings.lent {
                    old.exported &= !old.span.overlaps(*span);
                }
                at.dealings.lent.push(Lent {
                    lease,
                    span: *span,
                    parts: Vec::new(),
                    exported: false,
                    generation,
                });
            }
            let found = at.dealings.lent.iter_mut().find(|lent| holds(lent))?;
            if !found.parts.iter().any(|p| (p.addr(), p.len()) == (span.addr(), span.len())) {
                found.parts.push(*span);
            }
            if !found.exported && lacks.iter().all(|h| h.id.get() != found.lease.number) {
                lacks.push(found.handle(below.lender()));
            }
        }
        if below.is_read_unseen() {
            self.set_timer();
        }
        Some(lacks)
    }

    /// A peer needs this memory no more, of which no request under way has a part; or none at all.
    pub(crate) fn end_leases(&mut self, to: PeerId, iov: &[Span]) {
        let (Some(at), Some(below)) = (self.peers.get_mut(to), &mut self.below) else { return };
        at.dealings.lent.retain_mut(|lent| {
            // What has a byte in common with that is of requests that are over. Other parts of the lease may
            // be being read.
            lent.parts.retain(|part| !iov.iter().any(|s| s.overlaps(*part)));
            let stays = !iov.is_empty() && !lent.parts.is_empty();
            if !stays {
                below.end_lease(lent.lease.number);
            }
            stays
        });
    }

    /// A peer is no more: nor is what it was lent, or was being read.
    pub(crate) fn end_dealings(&mut self, peer: PeerId) {
        self.reading.leaving.retain(|(of, _)| *of != peer);
        self.end_reads(|op| op.peer == peer, true);
        if self.peers.get(peer).is_some_and(|at| !at.dealings.lent.is_empty()) {
            // It may have been reading, and the provider below need not know yet that it does so no more.
            self.stop_lending();
        }
        let (Some(at), Some(below)) = (self.peers.get_mut(peer), &mut self.below) else { return };
        at.dealings.lenders.drain(..).for_each(|(_, dest)| below.part(dest));
    }

    /// Ends all that is lent. When this returns the provider reads none of it any more, whatever its peers
    /// do; it is reported to them, and what they have not read arrives in frames.
    fn stop_lending(&mut self) {
        let Some(below) = &mut self.below else { return };
        let generation = self.reading.generation;
        self.reading.generation += 1;
        let mut borrowers = Vec::new();
        for peer in self.peers.ids() {
            let lent = &mut self.peers[peer].dealings.lent;
            if !lent.is_empty() {
                lent.drain(..).for_each(|lent| below.end_lease(lent.lease.number));
                borrowers.push(peer);
            }
        }
        let mut said = false;
        while !below.stop_lending() {
            if !std::mem::replace(&mut said, true) {
                log::error!("{}: what is lent cannot be ended, and is waited for", self.base.addr());
            }
            match below.poll() {
                Some(did) => self.reading.stash.push_back(did),
                None => std::thread::yield_now(),
            }
        }
        for peer in borrowers {
            self.note(peer, Sort::Ended, generation);
        }
    }

    /// A read of a peer's memory has ended before its time. Its provider may go on to read that memory, so
    /// that it is to know before anything else.
    pub(crate) fn note_cut(&mut self, peer: PeerId, generation: u64) {
        if !self.peers.at(peer).dealings.notes.contains(&(Sort::Cut, generation)) {
            self.note(peer, Sort::Cut, generation);
        }
    }

    /// A handle of a peer's memory has arrived.
    pub(crate) fn note_handle(&mut self, from: PeerId, handle: &Handle) {
        let reads = self.reading.ops.iter().any(|op| op.peer == from);
        let (Some(at), Some(below)) = (self.peers.get_mut(from), &mut self.below) else { return };
        let (dealings, Some(address)) = (&mut at.dealings, lender_in(handle)) else { return };
        if !dealings.may_read {
            return;
        }
        let known = dealings.lenders.iter().find(|(name, _)| name == address).map(|(_, dest)| *dest);
        let dest = match known {
            Some(dest) => dest,
            None if reads && dealings.lenders.len() >= LENDERS => return,
            None => {
                if dealings.lenders.len() >= LENDERS {
                    dealings.learned.clear();
                    dealings.lenders.drain(..).for_each(|(_, dest)| below.part(dest));
                }
                let Ok(dest) = below.meet(address) else { return };
                dealings.lenders.push((address.to_vec(), dest));
                dest
            }
        };
        dealings.import(handle, dest);
    }

    /// Something is to be said to a peer of memory.
    pub(crate) fn note(&mut self, peer: PeerId, sort: Sort, name: u64) {
        self.peers.at(peer).dealings.notes.push_back((sort, name));
        self.note_restless(peer);
        self.send_notes(peer);
    }

    /// Says what is to be said, as far as there is room.
    pub(crate) fn send_notes(&mut self, peer: PeerId) {
        let (Some(below), Some(at)) = (&mut self.below, self.peers.get_mut(peer)) else { return };
        let Some(channel) = at.channel.as_mut().filter(|_| !at.end.is_broken()) else { return };
        while let Some((sort, name)) = at.dealings.notes.front() {
            if channel.send(below, Said::short(*sort, &name.to_le_bytes())).is_err() {
                return;
            }
            at.dealings.notes.pop_front();
        }
    }

    /// A peer says something of memory.
    pub(crate) fn hear_of_memory(&mut self, peer: PeerId, sort: Sort, name: u64) {
        let now = self.reading.generation;
        let dealings = &mut self.peers.at(peer).dealings;
        if dealings.notes.len() > NOTES || dealings.revoked.len() > NOTES {
            return self.spoil(peer, "it takes back more than there can be");
        }
        match sort {
            Sort::Revoke => {
                dealings.revoked.insert(name);
                self.leave_reads(peer, name);
            }
            Sort::Left => {
                if let Some(left) = dealings.taken_back.get_mut(&name) {
                    *left = true;
                }
            }
            // Of one that was ended since nothing is read any more.
            Sort::Cut if name == now && !dealings.lent.is_empty() => self.stop_lending(),
            Sort::Cut => {}
            Sort::Ended => {
                dealings.unlearn(name);
                self.let_reads_end(peer, name);
            }
            _ => {
                dealings.revoked.remove(&name);
            }
        }
        self.send_room(peer);
    }

    /// Takes a request back that memory was lent for.
    pub(crate) fn take_back(&mut self, from: PeerId, request: u64) -> Result<(), InUse> {
        if self.peers.get(from).is_none_or(|at| at.dealings.lent.is_empty()) {
            return Ok(());
        }
        let taken_back = &mut self.peers.at(from).dealings.taken_back;
        let mut is_new = false;
        taken_back.entry(request).or_insert_with(|| {
            is_new = true;
            false
        });
        if is_new {
            self.note(from, Sort::Revoke, request);
        }
        let until = Instant::now() + self.reading.patience.time();
        loop {
            self.read_below();
            let Some(at) = self.peers.get(from) else { return Ok(()) };
            // One that has ended was lent nothing any more.
            if at.dealings.lent.is_empty() || at.dealings.has_left(request) {
                return Ok(());
            }
            self.send_notes(from);
            if Instant::now() >= until {
                return Err(InUse);
            }
            std::thread::yield_now();
        }
    }

    /// The name of such a request may be used again.
    pub(crate) fn give_again(&mut self, to: PeerId, request: u64) {
        if self.peers.at(to).dealings.taken_back.remove(&request).is_some() {
            self.note(to, Sort::Renew, request);
        }
    }

    /// Takes back all that was lent, for good. Peers that do not answer, or whose end was not heard of yet,
    /// are not waited for in the end: what they read by is closed.
    pub(crate) fn take_back_all(&mut self) -> Result<(), InUse> {
        let lent: Vec<PeerId> =
            self.peers.ids().filter(|p| !self.peers[*p].dealings.lent.is_empty()).collect();
        let mut outcome = Ok(());
        for peer in lent {
            match self.take_back(peer, ALL) {
                Ok(()) => {
                    let (at, below) = (&mut self.peers[peer], &mut self.below);
                    let Some(below) = below else { continue };
                    at.dealings.lent.drain(..).for_each(|lent| below.end_lease(lent.lease.number));
                }
                Err(InUse) => outcome = Err(InUse),
            }
        }
        if outcome.is_err() && self.reading.patience != Patience::Look {
            self.stop_lending();
            outcome = Ok(());
        }
        outcome
    }
}
