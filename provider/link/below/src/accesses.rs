//! How accesses to memory of peers begin.

use std::collections::VecDeque;

use hmem::{Caps, total};
use link_api::{Direct, Grant, NoDirect, Once, OpId, PeerId, RmaLink, Way};
use wire::Seg;

use crate::dealings::{Memory, READ};
use crate::network::{Below, Dest, Piece, Usage};
use crate::parts::reading::{Ended, Op};
use crate::peer::Stage;

/// Bytes of a word that is changed in one step.
const WORD: u64 = 8;

/// An access that can be made.
struct Plan {
    /// The request that it is of, or the registration.
    request: u64,
    /// The last generation of the peer's memory that it has a part of.
    generation: u64,
    first: Option<Piece>,
    others: VecDeque<Piece>,
}

impl<B: RmaLink, F: Below> Memory<'_, B, F> {
    /// Starts to access memory of a peer's.
    pub(crate) fn start_access(
        &mut self,
        way: Way,
        peer: PeerId,
        access: &Direct<'_>,
    ) -> Result<OpId, NoDirect> {
        let Plan { request, generation, first, others } = self.plan(way, peer, access)?;
        let id = OpId(READ | self.reading.next_number());
        let (flying, ended, mute, until) = (0, Ended::Whole, false, None);
        let op = Op { id, peer, request, generation, queue: others, flying, ended, mute, until };
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
        let Plan { request, generation, first, others } = self.plan(once.way(), peer, access)?;
        let is_published = matches!(access.grant, Grant::Region(_));
        let piece = first.filter(|_| others.is_empty() && is_published).ok_or(NoDirect::Memory)?;
        if !matches!(once, Once::Write(_)) {
            // A word that is read and written.
            self.plan(Way::Put, peer, access)?;
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
        let (flying, ended, mute, until) = (1, Ended::Whole, false, None);
        let queue = VecDeque::new();
        self.reading.add(Op { id, peer, request, generation, queue, flying, ended, mute, until });
        Ok(id)
    }

    /// The pieces of an access.
    fn plan(&self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<Plan, NoDirect> {
        let request = match access.grant {
            Grant::Region(version) if (access.roff, access.loff) == (0, 0) => version.number.into(),
            _ => access.operation()?,
        };
        let most = self.reading.most().filter(|_| self.reading.has(way)).ok_or(NoDirect::Memory)?;
        let at = self.peers.get(peer).filter(|_| !self.provider.has_failed()).ok_or(NoDirect::Fault)?;
        if at.stage != Stage::Fabric || at.end.is_broken() {
            return Err(NoDirect::Fault);
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
        let (mut first, mut others, mut generation) = (None, VecDeque::new(), 0);
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
                let n = (len - off).min(span.len()).min(most);
                if let Some(local) = span.part(0, n).filter(|_| n > 0) {
                    let addr = found.at.checked_add(off as u64).ok_or(NoDirect::Memory)?;
                    let piece = Piece { way, at: found.from, key: found.key, addr, local, once: None };
                    match first {
                        None => first = Some(piece),
                        Some(_) => others.push_back(piece),
                    }
                }
                off += n;
                room = if n == span.len() { here.next() } else { span.part(n, span.len() - n) };
            }
            left -= len;
        }
        if left > 0 {
            return Err(NoDirect::Memory);
        }
        Ok(Plan { request, generation, first, others })
    }
}
