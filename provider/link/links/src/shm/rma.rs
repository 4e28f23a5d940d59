//! Access to memory of peers on this host: by the kernel (CMA), or by a device.

use hmem::Span;
use ipc::pieces;
use link_api::{
    Allow, Devices, Direct, HandleNote, InUse, NoDirect, OpId, PeerId, PieceCounter, Region, RegionVersion,
    Revoke, RmaLink, Way,
};
use wire::{Handle, Seg};

use crate::shm::link::ShmLink;

impl RmaLink for ShmLink {
    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        self.direct(way, peer, access)
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        let out = self.peers[with.0].out.as_mut()?;
        let (slot, generation) = out.pieces.open(|slot| out.tx.mem().pieces(slot))?;
        Some(PieceCounter { slot, generation })
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        let peer = &self.peers[with.0];
        let mem = match mine {
            true => peer.out.as_ref()?.tx.mem(),
            false => peer.inb.as_ref()?.rx.mem(),
        };
        pieces::claim(mem.pieces(counter.slot), counter.generation, of)
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        let out = self.peers[with.0].out.as_ref();
        out.is_none_or(|out| pieces::is_begun(out.tx.mem().pieces(counter.slot), counter.generation))
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        if let Some(out) = &mut self.peers[with.0].out {
            out.pieces.close(counter.slot, counter.generation, |slot| out.tx.mem().pieces(slot));
        }
    }

    fn allow(&mut self, what: Allow<'_>) {
        match what {
            Allow::Region(region) => self.access.publish(region),
            Allow::Request(to, request) => self.peers[to.0].renew_request(request),
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        match what {
            Revoke::Region(key) => self.access.conceal(&self.own, &self.peers, key),
            Revoke::Request(from, request) => self.access.revoke(&self.own, &self.peers, from, request),
            Revoke::All => self.access.close(&self.own, &self.peers),
        }
    }

    fn published(&self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        let peer = &self.peers[by.0];
        if !self.options.cma || peer.no_cma.is_some() {
            return None;
        }
        peer.out.as_ref()?.mr_table.as_ref()?.find(key)
    }

    /// One device of two processes: within one process, no copy waits for its turn.
    fn devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> Devices {
        let peer = &self.peers[peer.0];
        if peer.devices.are_two(theirs, ours) {
            Devices::Two
        } else if peer.pid() != Some(self.own.pid() as i32) && peer.devices.are_one(theirs, ours) {
            Devices::One
        } else {
            Devices::Unknown
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        if !self.options.device_direct || !hmem::can(iov, hmem::Caps::DEVICE) {
            return None;
        }
        let peer = &mut self.peers[to.0];
        peer.devices.export(iov, format_args!("{} -> {}", self.own.addr(), peer.addr))
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        let peer = &mut self.peers[peer.0];
        match what {
            HandleNote::Exported(handle) => peer.devices.note_exported(handle),
            HandleNote::Imported(handle) if !peer.devices.note_imported(handle) => log::warn!(
                "{}: refused a handle from {}: kind {}, {} bytes at {:#x}; that peer has a defect or is no Strait",
                self.own.addr(),
                peer.addr,
                handle.how,
                handle.len,
                handle.base
            ),
            HandleNote::Imported(_) | HandleNote::Retired(_) => {}
        }
    }

    fn start(&mut self, way: Way, id: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let request = access.operation()?;
        let peer = &mut self.peers[id.0];
        let pid = peer.pid().filter(|_| peer.dying.is_none()).ok_or(NoDirect::Fault)?;
        if !self.options.device_direct {
            return Err(NoDirect::Never);
        }
        let (own, addr) = (self.own.addr(), peer.addr);
        let plan = peer.devices.plan(way, pid, access, format_args!("{own} -> {addr}"))?;
        peer.enter_flight(request)?;
        let pending = plan.start().map_err(|why| {
            peer.leave_flight();
            let why = || format!("the device does not copy ({why}): it is staged");
            peer.devices.refuse(format_args!("{own} -> {addr}"), why);
            NoDirect::Never
        })?;
        self.pace.be_slow();
        Ok(self.copies.add(id, pending))
    }

    fn cancel(&mut self, copy: OpId) {
        self.copies.cancel(copy);
        self.copy_is_over(copy);
    }
}

/// What a door without frames of its own uses beside that.
impl ShmLink {
    /// Reports that all pieces that this side took of a peer's transfer are done with: how many, and whether
    /// all could be copied.
    pub fn pieces_report(&mut self, to: PeerId, counter: PieceCounter, done: u16, good: bool) {
        if let Some(inb) = &self.peers[to.0].inb {
            pieces::report(inb.rx.mem().report(counter.slot), counter.generation, done, good);
        }
    }

    /// What the peer reports: how many pieces it did, and whether all could be copied.
    pub fn pieces_reported(&self, by: PeerId, counter: PieceCounter) -> Option<(u16, bool)> {
        let out = self.peers[by.0].out.as_ref()?;
        pieces::reported(out.tx.mem().report(counter.slot), counter.generation)
    }
}
