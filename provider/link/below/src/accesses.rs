//! How accesses to memory of peers begin.

use std::collections::VecDeque;

use hmem::{Caps, Span, total};
use link_api::{Direct, Grant, NoDirect, Once, OpId, PeerId, RmaLink, Way};
use wire::Seg;

use crate::dealings::{Memory, READ};
use crate::network::{Below, Dest, Piece, RAILS, RailsWith, Usage};
use crate::parts::reading::{Ended, Op};
use crate::peer::Stage;
use crate::published::Found;

/// Bytes of a word that is changed in one step.
const WORD: u64 = 8;

/// Where parts of an access begin, as multiples from its first byte.
const PART: usize = 4096;

/// How long each of so many parts of an access is.
fn share(len: usize, parts: usize) -> usize {
    if parts == 1 { len.max(1) } else { len.div_ceil(parts).next_multiple_of(PART) }
}

/// An access that can be made.
struct Plan {
    /// The request that it is of, or the registration.
    request: u64,
    /// The last generation of the peer's memory that it has a part of.
    generation: u64,
    first: Option<Piece>,
    others: VecDeque<Piece>,
    /// Some of it goes by a rail.
    is_cut: bool,
}

impl<B: RmaLink, F: Below> Memory<'_, B, F> {
    /// Starts to access memory of a peer's.
    pub(crate) fn start_access(
        &mut self,
        way: Way,
        peer: PeerId,
        access: &Direct<'_>,
    ) -> Result<OpId, NoDirect> {
        let Plan { request, generation, first, others, is_cut } = self.plan(way, peer, access, false)?;
        self.peers.at(peer).rest.note_access();
        let id = OpId(READ | self.reading.next_number());
        let (flying, ended, mute, until) = (0, Ended::Whole, false, None);
        let (queue, spread) = (others, is_cut && way == Way::Put);
        let op = Op { id, peer, request, generation, queue, flying, ended, spread, mute, until };
        if self.reading.begin(self.below, op, first) {
            self.report_reads();
        }
        Ok(id)
    }

    /// Starts what is done once, which is one piece: it is posted now or not at all.
    pub(crate) fn start_once(
        &mut self,
        peer: PeerId,
        once: Once,
        access: &Direct<'_>,
    ) -> Result<OpId, NoDirect> {
        // What the peer sees then would overtake what is written by rails.
        if self.reading.holds(peer) {
            return Err(NoDirect::Memory);
        }
        let Plan { request, generation, first, others, .. } = self.plan(once.way(), peer, access, true)?;
        let is_published = matches!(access.grant, Grant::Region(_));
        let piece = first.filter(|_| others.is_empty() && is_published).ok_or(NoDirect::Memory)?;
        if !matches!(once, Once::Write(_)) {
            // A word that is read and written.
            self.plan(Way::Put, peer, access, true)?;
            let at = self.peers.get_mut(peer).ok_or(NoDirect::Fault)?;
            let Grant::Region(version) = access.grant else { return Err(NoDirect::Memory) };
            if !at.dealings.published().has_atomics(version) {
                return Err(NoDirect::Memory);
            }
            if piece.addr % WORD != 0 || piece.local.len() as u64 != WORD || !piece.local.can(Caps::CPU) {
                return Err(NoDirect::Memory);
            }
        }
        let (Some(below), Some(at)) = (&mut *self.below, self.peers.get_mut(peer)) else {
            return Err(NoDirect::Fault);
        };
        let may = at.dealings.may_once(once);
        // At the peer the report of a write takes the place of a message.
        let takes_room = matches!(once, Once::Write(_));
        let channel = at.channel.as_mut().filter(|channel| may && (!takes_room || channel.has_room()));
        let channel = channel.ok_or(NoDirect::Memory)?;
        let id = OpId(READ | self.reading.next_number());
        below.access(id.0, &Piece { once: Some(once), ..piece }).map_err(|_| NoDirect::Memory)?;
        if takes_room {
            channel.note_sent();
        }
        at.rest.note_access();
        let (flying, ended, spread, mute, until) = (1, Ended::Whole, false, false, None);
        let queue = VecDeque::new();
        self.reading.add(Op { id, peer, request, generation, queue, flying, ended, spread, mute, until });
        Ok(id)
    }

    /// The keys by which so many bytes here and at a peer are accessed, one for each part, and how many.
    #[cold]
    fn keys(&self, found: &Found, span: Span, len: usize) -> ([u64; RAILS + 1], usize) {
        let (mut keys, mut n) = ([found.key; RAILS + 1], 1);
        // Memory of a device has but the first: each adapter would register it by a way of its own.
        let is_cut = len >= self.stripes && !span.can(Caps::DEVICE);
        let rails = self.below.as_ref().filter(|_| is_cut).map(|below| below.rails(found.from));
        if let Some(RailsWith::Made(which)) = rails {
            for (key, _) in
                found.further.into_iter().zip(which).filter(|(key, is_made)| *is_made && *key != 0)
            {
                keys[n] = key;
                n += 1;
            }
        }
        (keys, n)
    }

    /// The pieces of an access. `is_whole`: none of it goes by rails.
    fn plan(&self, way: Way, peer: PeerId, access: &Direct<'_>, is_whole: bool) -> Result<Plan, NoDirect> {
        let request = match access.grant {
            Grant::Region(version) if (access.roff, access.loff) == (0, 0) => version.number.into(),
            _ => access.operation()?,
        };
        let most = self.reading.most().filter(|_| self.reading.has(way)).ok_or(NoDirect::Memory)?;
        let at = self.peers.get(peer).filter(|_| !self.provider.has_failed()).ok_or(NoDirect::Fault)?;
        if at.stage != Stage::Fabric || at.end.is_broken() {
            return Err(NoDirect::Fault);
        }
        if at.rest.holds() && matches!(access.grant, Grant::Region(_)) {
            return Err(NoDirect::Memory);
        }
        if at.dealings.is_revoked(request) {
            return Err(NoDirect::Revoked);
        }
        let own = at.channel.as_ref().map_or(Dest(u64::MAX), |channel| channel.far().dest);
        let find = |seg: &Seg| match access.grant {
            Grant::Region(version) => at.dealings.place(version, seg, way, own),
            _ => at.dealings.find(seg, way),
        };
        let below = self.below.as_ref().ok_or(NoDirect::Fault)?;
        if total(access.local) < access.len
            || !access.local.iter().all(|span| self.provider.reaches(below, span, Usage::by_self(way)))
        {
            return Err(NoDirect::Memory);
        }
        let (mut first, mut others, mut generation, mut is_cut) = (None, VecDeque::new(), 0, false);
        // Elements of one access take effect in their order.
        let is_whole = is_whole || access.remote.len() > 1 || access.local.len() > 1;
        let (mut left, mut here) = (access.len, access.local.iter().copied());
        let mut room = here.next();
        for seg in access.remote {
            let len = usize::try_from(seg.len.get()).map_err(|_| NoDirect::Memory)?.min(left);
            if len == 0 {
                continue;
            }
            let found = find(seg).ok_or(NoDirect::Memory)?;
            generation = generation.max(found.generation);
            let mut off = 0;
            while off < len {
                let span = room.ok_or(NoDirect::Memory)?;
                let run = (len - off).min(span.len());
                let (keys, n) = match is_whole || found.further == [0; RAILS] {
                    true => ([found.key; RAILS + 1], 1),
                    false => self.keys(&found, span, run),
                };
                is_cut |= n > 1;
                let share = share(run, n).min(most);
                for (at, key) in (0..run).step_by(share).zip(keys.into_iter().take(n).cycle()) {
                    let local = span.part(at, share.min(run - at)).ok_or(NoDirect::Memory)?;
                    let addr = found.at.checked_add((off + at) as u64).ok_or(NoDirect::Memory)?;
                    let piece = Piece { way, at: found.from, key, first: found.key, addr, local, once: None };
                    match first {
                        None => first = Some(piece),
                        Some(_) => others.push_back(piece),
                    }
                }
                off += run;
                room = if run == span.len() { here.next() } else { span.part(run, span.len() - run) };
            }
            left -= len;
        }
        if left > 0 {
            return Err(NoDirect::Memory);
        }
        Ok(Plan { request, generation, first, others, is_cut })
    }
}
