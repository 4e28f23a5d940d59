//! Access to memory of peers on this host: by the kernel (CMA), or by a device.

use hmem::Span;
use ipc::pieces;
use link_api::{
    Direct, InUse, NoDirect, OpId, Patience, PeerId, PieceCounter, Region, RegionVersion, RmaLink, Way,
};
use wire::{Handle, Seg};

use crate::shm::link::ShmLink;

impl RmaLink for ShmLink {
    fn get(&mut self, from: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        self.peer_memory().transfer(Way::Get, from, access)
    }

    fn put(&mut self, to: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        self.peer_memory().transfer(Way::Put, to, access)
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        let out = self.channels.peers[with.0].out.as_mut()?;
        let (slot, generation) = out.pieces.open(|slot| out.tx.mem().pieces(slot))?;
        Some(PieceCounter { slot, generation })
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        let peer = &self.channels.peers[with.0];
        let mem = match mine {
            true => peer.out.as_ref()?.tx.mem(),
            false => peer.inb.as_ref()?.rx.mem(),
        };
        pieces::claim(mem.pieces(counter.slot), counter.generation, of)
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        let out = self.channels.peers[with.0].out.as_ref();
        out.is_none_or(|out| pieces::is_begun(out.tx.mem().pieces(counter.slot), counter.generation))
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        if let Some(out) = &mut self.channels.peers[with.0].out {
            out.pieces.close(counter.slot, counter.generation, |slot| out.tx.mem().pieces(slot));
        }
    }

    fn publish(&mut self, memory: &Region) {
        self.channels.access.publish(memory);
    }

    fn unpublish(&mut self, key: u64) -> Result<(), InUse> {
        self.channels.access.conceal(&self.channels.own, &self.channels.peers, key)
    }

    fn revoke(&mut self, from: PeerId, request: u64) -> Result<(), InUse> {
        self.channels.access.revoke(&self.channels.own, &self.channels.peers, from, request)
    }

    fn renew(&mut self, to: PeerId, request: u64) {
        self.channels.peers[to.0].renew_request(request);
    }

    fn set_patience(&mut self, patience: Patience) {
        self.channels.access.set_patience(patience);
    }

    fn close(&mut self) -> Result<(), InUse> {
        self.channels.access.close(&self.channels.own, &self.channels.peers)
    }

    fn published(&self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        let peer = &self.channels.peers[by.0];
        if !self.channels.options.cma || peer.no_cma.is_some() {
            return None;
        }
        peer.out.as_ref()?.mr_table.as_ref()?.find(key)
    }

    fn on_distinct_devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        self.channels.peers[peer.0].devices.are_two(theirs, ours)
    }

    /// Of two processes: within one, no copy waits for its turn.
    fn on_one_device(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        let peer = &self.channels.peers[peer.0];
        peer.pid() != Some(self.channels.own.pid() as i32) && peer.devices.are_one(theirs, ours)
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        if !self.channels.options.device_direct || !hmem::can(iov, hmem::Caps::DEVICE) {
            return None;
        }
        let peer = &mut self.channels.peers[to.0];
        peer.devices.export(iov, format_args!("{} -> {}", self.channels.own.addr(), peer.addr))
    }

    fn mark_exported(&mut self, to: PeerId, handle: &Handle) {
        self.channels.peers[to.0].devices.note_exported(handle);
    }

    fn import_handle(&mut self, from: PeerId, handle: &Handle) {
        let peer = &mut self.channels.peers[from.0];
        if !peer.devices.note_imported(handle) {
            log::warn!(
                "{}: refused a handle from {}: kind {}, {} bytes at {:#x}; that peer has a defect or is no Strait",
                self.channels.own.addr(),
                peer.addr,
                handle.how,
                handle.len,
                handle.base
            );
        }
    }

    fn start(&mut self, way: Way, id: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let request = access.operation()?;
        let peer = &mut self.channels.peers[id.0];
        let pid = peer.pid().filter(|_| peer.dying.is_none()).ok_or(NoDirect::Fault)?;
        if !self.channels.options.device_direct {
            return Err(NoDirect::Never);
        }
        let (own, addr) = (self.channels.own.addr(), peer.addr);
        let plan = peer.devices.plan(way, pid, access, format_args!("{own} -> {addr}"))?;
        peer.enter_flight(request)?;
        let pending = plan.start().map_err(|why| {
            peer.leave_flight();
            let why = || format!("the device does not copy ({why}): it is staged");
            peer.devices.refuse(format_args!("{own} -> {addr}"), why);
            NoDirect::Never
        })?;
        self.channels.pace.be_slow();
        Ok(self.copies.add(id, pending))
    }

    fn cancel(&mut self, copy: OpId) {
        self.copies.cancel(copy);
        self.polls().copy_is_over(copy);
    }
}
