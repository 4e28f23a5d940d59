//! Access to memory of peers by the link of the kit.

use hmem::{Span, total};
use link_api::{
    Allow, Devices, Direct, Grant, GroupLink, HandleNote, InUse, NoDirect, OpId, PeerId, PieceCounter,
    Region, RegionVersion, Revoke, RmaLink, Way as CopyWay,
};
use wire::{Handle, Seg};

use crate::groups::Groups;
use crate::hub::Place;
use crate::link::{Flight, MemLink};

impl RmaLink for MemLink {
    fn groups(&mut self) -> Option<Box<dyn GroupLink + '_>> {
        Some(Box::new(Groups { hub: &self.hub, at: self.at, peers: &self.peers }))
    }

    fn access(&mut self, way: CopyWay, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        if way == CopyWay::Put && self.hub.borrow().barred == Some(self.at) {
            return Err(NoDirect::Never);
        }
        let there = self.hub.borrow_mut().reach(self.place_of(peer), access.grant, access.remote)?;
        if way == CopyWay::Put {
            return self.copy(&there, access.roff, access.local, access.loff, access.len);
        }
        self.let_others_work(true);
        self.copy(access.local, access.loff, &there, access.roff, access.len)
    }

    fn published(&mut self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        let (hub, by) = (self.hub.borrow(), self.place_of(by));
        let known = !hub.off && hub.boards;
        let exposed = *hub.exposed.get(&(by, key)).filter(|_| known)?;
        let place = key as u32;
        Some((exposed, RegionVersion { place, number: *hub.versions.get(&(by, place.into()))? }))
    }

    fn allow(&mut self, what: Allow<'_>) {
        let mut hub = self.hub.borrow_mut();
        match what {
            Allow::Region(memory, _) => {
                hub.exposed.insert((self.at, memory.key), *memory);
                hub.version(self.at, memory.key);
            }
            Allow::Request(_, request) => {
                assert!(hub.revoked.remove(&(self.at, request)), "it was not taken back");
            }
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        let mut hub = self.hub.borrow_mut();
        match what {
            Revoke::Region(key) => {
                hub.exposed.remove(&(self.at, key));
                hub.version(self.at, key);
            }
            Revoke::Request(_, request) => _ = hub.revoked.insert((self.at, request)),
            Revoke::All => {
                assert!(self.flying.is_empty(), "operations of its own are in flight");
                hub.closed.insert(self.at);
            }
        }
        hub.leave()
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        let with = self.place_of(with);
        self.hub.borrow_mut().open_share(self.at, with)
    }

    fn pieces_claim(&mut self, with: PeerId, share: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        let with = self.place_of(with);
        let sides = if mine { (self.at, with) } else { (with, self.at) };
        let mut hub = self.hub.borrow_mut();
        let state = hub.shares.get_mut(&(sides.0, sides.1, share.slot))?;
        if state.0 != share.generation || state.1 >= of {
            return None;
        }
        state.1 += 1;
        let piece = state.1 - 1;
        hub.helped += usize::from(!mine);
        Some(piece)
    }

    fn pieces_begun(&self, with: PeerId, share: PieceCounter) -> bool {
        let key = (self.at, self.place_of(with), share.slot);
        self.hub.borrow().shares.get(&key).is_none_or(|state| *state != (share.generation, 1))
    }

    fn pieces_close(&mut self, with: PeerId, share: PieceCounter) {
        let key = (self.at, self.place_of(with), share.slot);
        let mut hub = self.hub.borrow_mut();
        if let Some(state) = hub.shares.get_mut(&key).filter(|state| state.0 == share.generation) {
            state.1 = u16::MAX;
        }
    }

    fn devices(&self, _: PeerId, theirs: &[Seg], ours: &[Span]) -> Devices {
        let hub = self.hub.borrow();
        let is_device =
            |seg: &Seg| hub.devices.iter().any(|d| seg.addr.get().wrapping_sub(d.addr()) < d.len() as u64);
        match hmem::can(ours, hmem::Caps::DEVICE) {
            true if hub.one_device => Devices::One,
            true if !ours.is_empty() && !theirs.is_empty() && theirs.iter().all(is_device) => Devices::Two,
            _ => Devices::Unknown,
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span], _: CopyWay) -> Option<Vec<Handle>> {
        let (mut hub, place) = (self.hub.borrow_mut(), self.place_of(to));
        let mut out: Vec<Handle> = Vec::new();
        for s in iov.iter().filter(|s| !s.is_empty()) {
            let owner = hub.allocation(self.at, s)?;
            let base = owner.addr();
            if owner == *s && s.can(hmem::Caps::DEVICE) && !hub.devices.contains(s) && !hub.rooms.contains(s)
            {
                hub.rooms.push(*s);
            }
            if !hub.rooms.contains(s) && self.exported.contains(&(place, base))
                || out.iter().any(|h| h.base.get() == base)
            {
                continue;
            }
            let len = owner.len() as u64;
            let (device, token, zero) = ([0; 16], [0; 64], [0; 3]);
            let (fd, id, base, len) = (0.into(), base.into(), base.into(), len.into());
            out.push(Handle { how: 1, zero, fd, id, base, len, device, token });
        }
        Some(out)
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        let place = self.place_of(peer);
        match what {
            HandleNote::Exported(handle) => self.exported.push((place, handle.base.get())),
            HandleNote::Imported(handle) => {
                self.learned.push((place, handle.base.get(), handle.len.get()));
            }
            HandleNote::Retired(_) => {}
        }
    }

    fn start(&mut self, way: CopyWay, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let request = access.operation()?;
        let (local, len) = (access.local, access.len);
        let place = self.place_of(peer);
        let mut hub = self.hub.borrow_mut();
        hub.is_allowed(place, Grant::Request(request))?;
        if way == CopyWay::Put && hub.barred == Some(self.at) {
            return Err(NoDirect::Never);
        }
        let host = |s: &Span| !s.can(hmem::Caps::DEVICE);
        if hub.direct == crate::Direct::Gets && local.iter().any(host) {
            let fits = local.iter().all(|s| s.is_empty() || s.stays() && host(s));
            if way == CopyWay::Put || !fits {
                return Err(NoDirect::Memory);
            }
        }
        if hub.fail.0 > 0 {
            hub.fail.0 -= 1;
            return Err(NoDirect::Never);
        }
        let mut there = Vec::new();
        for seg in access.remote.iter().filter(|seg| seg.len.get() > 0) {
            let (addr, len) = (seg.addr.get(), seg.len.get());
            let has = |&(p, base, size): &(Place, u64, u64)| {
                p == place && addr.checked_sub(base).is_some_and(|off| off < size && len <= size - off)
            };
            if !self.learned.iter().any(has) {
                return Err(NoDirect::Never);
            }
            there.push(hub.memory_by_handle(place, seg).ok_or(NoDirect::Fault)?);
        }
        if total(&there) < len || total(local) < len {
            return Err(NoDirect::Fault);
        }
        self.started += 1;
        let here = local.to_vec();
        let (dst, src) = if way == CopyWay::Get { (here, there) } else { (there, here) };
        let (id, epoch) = (OpId(self.started), hub.stations[place].epoch);
        self.flying.push(Flight { id, dst, src, len, peer: place, epoch, request });
        hub.flying.insert(self.at, self.flying.len());
        Ok(id)
    }

    fn cancel(&mut self, copy: OpId) {
        self.flying.retain(|f| f.id != copy);
        self.hub.borrow_mut().flying.insert(self.at, self.flying.len());
    }
}
