//! Copies that devices make from and to peers' memory, and the handles that go before them.

use hmem::share::{self, Export, NoPlan, Owner, plan};
use hmem::{Kind, Span, registry};
use link_api::{Direct, Event, NoDirect, OpId, PeerId, Way};
use wire::{Handle, Seg};
use xfer::handle::{from_wire, to_wire};

use super::devices::{Devices, MOST_EXPORTED};
use super::link::ShmLink;

/// Most allocations one buffer may lie in.
const PIECES: usize = 256;

impl ShmLink {
    /// Whether devices may copy from and to peers' memory, from now on: by default as it was opened.
    pub fn set_device_direct(&mut self, on: bool) {
        self.options.device_direct = on;
    }

    pub(super) fn handles_to_export(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        if !self.options.device_direct || !hmem::can(iov, hmem::Caps::DEVICE) {
            return None;
        }
        let mut out = Vec::new();
        for s in iov {
            if self.peers[to.0].devices.has_exported(s) {
                continue;
            }
            let exports = match registry::of(s.kind()).export_ipc(s.addr() as usize, s.len(), PIECES) {
                Ok(exports) => exports,
                Err(why) => {
                    self.tell_once(to, || {
                        format!("{s:?} cannot be shared ({why}): by bounce buffers, or staged")
                    });
                    return None;
                }
            };
            let devices = &mut self.peers[to.0].devices;
            if devices.exported.len() > MOST_EXPORTED {
                devices.exported.clear();
                devices.recent.clear();
            }
            devices.note(s, &exports);
            let new = |e: &&Export| !devices.exported.contains(&(e.id, e.base, e.len));
            out.extend(exports.iter().filter(new).map(to_wire));
        }
        Some(out)
    }

    /// Whether both sides' memory begins on devices that are known, and not the same.
    pub(super) fn on_two_devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        let (Some(there), Some(here)) = (theirs.first(), ours.first()) else { return false };
        let there = self.peers[peer.0].devices.find(there.addr.get());
        if !here.can(hmem::Caps::DEVICE) {
            return false;
        }
        let here = registry::of(here.kind()).export_ipc(here.addr() as usize, 1, 1);
        match (there, here.as_deref()) {
            // Other runtimes' handles do not say which device it is.
            (Some(there), Ok([here])) if here.handle_type.kind() == Kind::Cuda => there.device != here.device,
            _ => false,
        }
    }

    /// Whether both sides' memory begins on a device that is known, and the same, and belongs to two processes: within one, no copy
    /// waits for its turn.
    pub(super) fn on_the_same_device(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        let (Some(there), Some(here)) = (theirs.first(), ours.first()) else { return false };
        let peer = &self.peers[peer.0];
        let pid = peer.inb.as_ref().map(|inb| inb.pid).or(peer.out.as_ref().map(|out| out.pid));
        if pid == Some(self.own.pid() as i32) {
            return false;
        }
        // Other runtimes' handles do not say which device it is.
        let there = peer.devices.find(there.addr.get());
        there
            .filter(|e| e.handle_type.kind() == here.kind())
            .is_some_and(|there| registry::of(here.kind()).device(here.addr() as usize) == Some(there.device))
    }

    pub(super) fn note_exported(&mut self, to: PeerId, h: &Handle) {
        let (base, len) = (h.base.get(), h.len.get());
        let exported = &mut self.peers[to.0].devices.exported;
        // It forgets what else was there.
        exported.retain(|(_, at, n)| at.saturating_add(*n) <= base || base.saturating_add(len) <= *at);
        exported.insert((h.id.get(), base, len));
    }

    pub(super) fn note_imported(&mut self, from: PeerId, handle: &Handle) {
        match from_wire(handle) {
            Some(export) => self.peers[from.0].devices.import(export),
            None => log::warn!(
                "{}: refused a handle from {}: kind {}, {} bytes at {:#x}; that peer has a defect or is no Strait",
                self.own.addr(),
                self.peers[from.0].addr,
                handle.how,
                handle.len,
                handle.base
            ),
        }
    }

    /// Why a peer's device memory is not reached, once for each peer.
    fn tell_once(&mut self, peer: PeerId, why: impl FnOnce() -> String) {
        let peer = &mut self.peers[peer.0];
        if peer.no_device.is_none() {
            let why = why();
            log::info!("{} -> {}: {why}", self.own.addr(), peer.addr);
            peer.no_device = Some(why);
        }
    }

    pub(super) fn start_copy(&mut self, way: Way, id: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let request = access.operation()?;
        let peer = &mut self.peers[id.0];
        let pid = match (&peer.inb, &peer.out) {
            _ if peer.dying.is_some() => return Err(NoDirect::Fault),
            (Some(inb), _) => inb.pid,
            (None, Some(out)) => out.pid,
            (None, None) => return Err(NoDirect::Fault),
        };
        if !self.options.device_direct {
            return Err(NoDirect::Never);
        }
        let owner = *peer.devices.owner.get_or_insert_with(|| Owner::now(pid));
        let segs = access.remote.iter().map(|s| (s.addr.get(), s.len.get()));
        let find = |at| peer.devices.find(at);
        let plan = match plan(way == Way::Put, owner, find, segs, access.local, access.len) {
            Ok(plan) => plan,
            Err(NoPlan::Fault) => return Err(NoDirect::Fault),
            Err(NoPlan::Open(why)) => {
                self.tell_once(id, || format!("its device memory cannot be opened ({why}): it is staged"));
                return Err(NoDirect::Never);
            }
        };
        self.peers[id.0].enter_flight(request)?;
        let pending = plan.start().map_err(|why| {
            self.peers[id.0].leave_flight();
            self.tell_once(id, || format!("the device does not copy ({why}): it is staged"));
            NoDirect::Never
        })?;
        self.pace.be_slow();
        Ok(self.copies.add(id, pending))
    }

    /// The next event while copies are in flight. To ask a driver whether one is over takes longer than
    /// a peer's frame, so those come first, and the driver is asked when there is none or it was
    /// not asked for a while.
    #[cold]
    pub(super) fn poll_pending(&mut self) -> Option<Event> {
        if let Some(done) = self.copies.over() {
            self.copy_is_over(done);
            return Some(Event::Done(done, true));
        }
        if self.copies.are_frames_first() {
            let frame = self.poll_frames();
            if frame.is_some() {
                return frame;
            }
        }
        if let Some((done, good)) = self.copies.ask(self.own.addr()) {
            self.copy_is_over(done);
            return Some(Event::Done(done, good));
        }
        self.poll_frames()
    }

    pub(super) fn cancel_copy(&mut self, copy: OpId) {
        self.copies.cancel(copy);
        self.copy_is_over(copy);
    }

    /// A copy is over: its peer may have its memory back.
    fn copy_is_over(&mut self, copy: OpId) {
        if let Some(peer) = self.copies.end(copy) {
            self.peers[peer.0].leave_flight();
        }
    }

    /// A peer is gone: nothing of it is reached any more.
    pub(super) fn forget_devices(&mut self, id: u32) {
        let peer = &mut self.peers[id];
        if let Some(owner) = peer.devices.owner {
            share::forget(owner.id);
        }
        peer.devices = Devices::default();
        peer.no_device = None;
    }
}
