//! Access to memory by keys.

use hmem::{Span, total};
use link_api::{Allow, Direct, HandleNote, InUse, NoDirect, OpId, PeerId, Revoke, RmaLink, Way};
use wire::Handle;

use super::flight::Flight;
use super::key::{Access, HOW, Key, Part, inside, secret};
use super::link::KeyedLink;

impl KeyedLink {
    /// Registers memory, so that it is exported for this access; its key.
    pub fn register(&mut self, span: Span, access: Access) -> u64 {
        let mut wire = self.shared.lock();
        let (id, secret) = (wire.number(), secret());
        if let Some(station) = wire.stations.get_mut(&self.id) {
            station.exposed.keys.insert(id, Key { secret, span, access });
        }
        id
    }

    /// Ends a key: whatever names it is refused.
    pub fn deregister(&mut self, key: u64) {
        let mut wire = self.shared.lock();
        if let Some(station) = wire.stations.get_mut(&self.id) {
            station.exposed.keys.remove(&key);
        }
    }

    /// The handle of registered memory that holds all of `span`.
    fn handle_of(&self, span: &Span) -> Option<Handle> {
        let wire = self.shared.lock();
        let holds = |key: &Key| {
            inside(key.span.addr(), key.span.len() as u64, span.addr(), span.len() as u64).is_some()
        };
        let keys = &wire.stations.get(&self.id)?.exposed.keys;
        keys.iter().filter(|(_, key)| holds(key)).min_by_key(|(id, _)| **id).map(|(id, key)| key.handle(*id))
    }
}

impl RmaLink for KeyedLink {
    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let request = access.operation()?;
        let (local, len) = (access.local, access.len);
        let known = &self.peers[peer.0 as usize];
        let to = known.channel.ok_or(NoDirect::Fault)?;
        let mut parts = Vec::new();
        for seg in access.remote.iter().filter(|seg| seg.len.get() > 0) {
            let (addr, len) = (seg.addr.get(), seg.len.get());
            let holds = |h: &&Handle| inside(h.base.get(), h.len.get(), addr, len).is_some();
            let handle = known.learned.iter().rev().find(holds).ok_or(NoDirect::Memory)?;
            let secret = u64::from_le_bytes(*handle.token.first_chunk().expect("a token has 64 bytes"));
            let len = usize::try_from(len).map_err(|_| NoDirect::Memory)?;
            parts.push(Part { key: handle.id.get(), secret, addr, len });
        }
        let there = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.len));
        if there.is_none_or(|there| there < len) || total(local) < len {
            return Err(NoDirect::Memory);
        }
        let mut wire = self.shared.lock();
        let target = wire.stations.get(&to).ok_or(NoDirect::Fault)?;
        if !target.exposed.allows(self.id, request) {
            return Err(NoDirect::Revoked);
        }
        wire.started += 1;
        let (op, from, local) = (OpId(wire.number()), self.id, local.to_vec());
        wire.flights.push(Flight { op, from, to, way, request, parts, local, len, done: 0 });
        self.shared.hurry();
        Ok(op)
    }

    fn cancel(&mut self, op: OpId) {
        let mut wire = self.shared.lock();
        let from = self.id;
        wire.flights.retain(|f| f.from != from || f.op != op);
        if let Some(station) = wire.stations.get_mut(&from) {
            station.done.retain(|(done, _)| *done != op);
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span], _: Way) -> Option<Vec<Handle>> {
        let mut out: Vec<Handle> = Vec::new();
        for span in iov.iter().filter(|s| !s.is_empty()) {
            if !hmem::can(&[*span], hmem::Caps::CMA) {
                return None;
            }
            let handle = self.handle_of(span).or_else(|| {
                self.register(*span, Access::ALL);
                self.handle_of(span)
            })?;
            let id = handle.id.get();
            let exported = self.peers[to.0 as usize].exported.contains(&id);
            if !exported && !out.iter().any(|h| h.id.get() == id) {
                out.push(handle);
            }
        }
        Some(out)
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        let peer = &mut self.peers[peer.0 as usize];
        match what {
            HandleNote::Exported(handle) => _ = peer.exported.insert(handle.id.get()),
            HandleNote::Imported(handle) if handle.how == HOW => peer.learned.push(*handle),
            HandleNote::Imported(_) | HandleNote::Retired(_) => {}
        }
    }

    fn allow(&mut self, what: Allow<'_>) {
        let Allow::Request(to, request) = what else { return };
        let mut wire = self.shared.lock();
        if let (Some(id), Some(here)) = (self.peers[to.0 as usize].channel, wire.stations.get_mut(&self.id)) {
            here.exposed.revoked.remove(&(id, request));
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        // The carrier copies with the wire locked, so no access is under way here.
        let mut wire = self.shared.lock();
        let Some(here) = wire.stations.get_mut(&self.id) else { return Ok(()) };
        match what {
            Revoke::Request(from, request) => {
                if let Some(id) = self.peers[from.0 as usize].channel {
                    here.exposed.revoked.insert((id, request));
                }
            }
            Revoke::Region(_) => {}
            Revoke::All => {
                here.exposed.closed = true;
                here.exposed.keys.clear();
            }
        }
        Ok(())
    }
}
