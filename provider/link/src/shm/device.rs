//! Devices' memory: what peers were told of ours, what they told of theirs, and copies in flight.
//!
//! A peer tells of an allocation by a handle, in a frame ahead of the first one that names an address
//! in it. Handles are opened when they are first needed, and stay open (`hmem::share`): an allocation
//! that comes after another one at its place has another number, so it is told of anew, and what was
//! known of the place is forgotten.

use std::collections::HashSet;

use hmem::flight;
use hmem::share::{self, Export, HandleType, NoPlan, Owner, plan};
use hmem::{Kind, Span, registry};
use link_api::{Event, NoDirect, OpId, PeerId, Way};
use wire::{Handle, Seg};
use xfer::handle::{from_wire, to_wire};

use super::ShmLink;

/// Most allocations a peer is told of before all of them are told anew; what is remembered of a peer
/// is four times as much.
const TOLD: usize = 4096;

/// How many allocations a peer was told of are known at a glance.
const LATELY: usize = 4;

/// How often frames come first before a driver is asked for its copies.
const PATIENCE: u32 = 8;

/// Most allocations one buffer may lie in.
const PIECES: usize = 256;

/// Of one peer.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// By number and place.
    told: HashSet<(u64, u64, u64)>,
    /// The last of them that their number alone tells, for which a driver is quick to be asked: number, and from
    /// where to where.
    lately: Vec<(u64, u64, u64)>,
    known: Vec<Export>,
    owner: Option<Owner>,
}

impl Devices {
    /// The allocation that `addr` of the peer is in.
    fn find(&self, addr: u64) -> Option<&Export> {
        self.known.iter().rev().find(|e| addr.wrapping_sub(e.base) < e.len)
    }

    /// Whether the peer was told of the memory, as far as that can be said quickly.
    fn knows(&self, s: &Span) -> bool {
        let end = s.addr().saturating_add(s.len() as u64);
        let inside = |&&(_, from, to): &&(u64, u64, u64)| from <= s.addr() && end <= to;
        let Some((id, ..)) = self.lately.iter().find(inside) else { return false };
        registry::of(s.kind()).number(s.addr() as usize) == Some(*id)
    }

    /// That it is told of memory, all of which is in these allocations.
    fn note(&mut self, s: &Span, exports: &[Export]) {
        // Pieces of one mapping may share their number.
        let &[Export { handle_type: HandleType::Legacy, id, base, len, .. }] = exports else { return };
        if self.told.contains(&(id, base, len)) && registry::of(s.kind()).number(base as usize) == Some(id) {
            self.lately.truncate(LATELY - 1);
            self.lately.insert(0, (id, base, base.saturating_add(len)));
        }
    }

    fn learn(&mut self, new: Export) {
        let end = new.base.saturating_add(new.len);
        self.known.retain(|e| e.base.saturating_add(e.len) <= new.base || end <= e.base);
        if self.known.len() >= 4 * TOLD {
            self.known.remove(0);
        }
        self.known.push(new);
    }
}

impl ShmLink {
    /// Whether devices may copy from and to peers' memory, from now on: by default as it was opened.
    pub fn set_device_direct(&mut self, on: bool) {
        self.options.device_direct = on;
    }

    pub(super) fn untold_handles(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        if !self.options.device_direct || !hmem::can(iov, hmem::Caps::DEVICE) {
            return None;
        }
        let mut out = Vec::new();
        for s in iov {
            if self.peers[to.0 as usize].devices.knows(s) {
                continue;
            }
            let exports = match registry::of(s.kind()).export_ipc(s.addr() as usize, s.len(), PIECES) {
                Ok(exports) => exports,
                Err(why) => {
                    self.tell_once(to, || format!("{s:?} cannot be shared ({why}): it is staged"));
                    return None;
                }
            };
            let devices = &mut self.peers[to.0 as usize].devices;
            if devices.told.len() > TOLD {
                devices.told.clear();
                devices.lately.clear();
            }
            devices.note(s, &exports);
            let new = |e: &&Export| !devices.told.contains(&(e.id, e.base, e.len));
            out.extend(exports.iter().filter(new).map(to_wire));
        }
        Some(out)
    }

    /// Whether both sides' memory begins on devices that are known, and not the same.
    pub(super) fn on_two_devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        let (Some(there), Some(here)) = (theirs.first(), ours.first()) else { return false };
        let there = self.peers[peer.0 as usize].devices.find(there.addr.get());
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

    pub(super) fn told_handle(&mut self, to: PeerId, h: &Handle) {
        let (base, len) = (h.base.get(), h.len.get());
        let told = &mut self.peers[to.0 as usize].devices.told;
        // It forgets what else was there.
        told.retain(|(_, at, n)| at.saturating_add(*n) <= base || base.saturating_add(len) <= *at);
        told.insert((h.id.get(), base, len));
    }

    pub(super) fn learn_handle(&mut self, from: PeerId, handle: &Handle) {
        match from_wire(handle) {
            Some(export) => self.peers[from.0 as usize].devices.learn(export),
            None => log::warn!(
                "{}: refused a handle from {}: kind {}, {} bytes at {:#x}; that peer has a defect or is no Strait",
                self.addr,
                self.peers[from.0 as usize].addr,
                handle.how,
                handle.len,
                handle.base
            ),
        }
    }

    /// Why a peer's device memory is not reached, once for each peer.
    fn tell_once(&mut self, peer: PeerId, why: impl FnOnce() -> String) {
        let peer = &mut self.peers[peer.0 as usize];
        if peer.no_device.is_none() {
            let why = why();
            log::info!("{} -> {}: {why}", self.addr, peer.addr);
            peer.no_device = Some(why);
        }
    }

    pub(super) fn start_copy(
        &mut self,
        way: Way,
        id: PeerId,
        request: u64,
        remote: &[Seg],
        local: &[Span],
        len: usize,
    ) -> Result<OpId, NoDirect> {
        let peer = &mut self.peers[id.0 as usize];
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
        let segs = remote.iter().map(|s| (s.addr.get(), s.len.get()));
        let (parts, keep) = match plan(way == Way::Put, owner, |at| peer.devices.find(at), segs, local, len) {
            Ok(plan) => plan,
            Err(NoPlan::Fault) => return Err(NoDirect::Fault),
            Err(NoPlan::Open(why)) => {
                self.tell_once(id, || format!("its device memory cannot be opened ({why}): it is staged"));
                return Err(NoDirect::Never);
            }
        };
        self.enter_flight(id, request)?;
        // SAFETY: local parts are of spans, valid until the operation completes, which is after the
        // copy is over or cancelled; remote ones are in mappings that are kept.
        let pending = unsafe { flight::start(&parts, keep, local, way == Way::Put) }.map_err(|why| {
            self.leave_flight(id);
            self.tell_once(id, || format!("the device does not copy ({why}): it is staged"));
            NoDirect::Never
        })?;
        self.copies_started += 1;
        let copy = OpId(self.copies_started);
        self.flying.add(copy, pending);
        self.flown.push((copy, id));
        Ok(copy)
    }

    /// The next event while copies are in flight. A driver takes longer to tell whether one is over than
    /// a peer's frame takes, so those come first, and the driver is asked when there is none or it was
    /// not asked for a while.
    #[cold]
    pub(super) fn poll_flying(&mut self) -> Option<Event> {
        if let Some(done) = self.flying.over() {
            self.has_flown(done);
            return Some(Event::Done(done, true));
        }
        self.unasked += 1;
        if self.unasked < PATIENCE {
            let frame = self.poll_frames();
            if frame.is_some() {
                return frame;
            }
        }
        self.unasked = 0;
        let landed = self.landed();
        if landed.is_some() { landed } else { self.poll_frames() }
    }

    /// A copy that is over, if there is one.
    fn landed(&mut self) -> Option<Event> {
        let Some((done, how)) = self.flying.poll_done() else {
            if self.flying.held() {
                log::warn!("{}: {}", self.addr, flight::HELD);
            }
            return None;
        };
        self.has_flown(done);
        if let Err(why) = &how {
            log::warn!("{}: a device's copy failed: {why}", self.addr);
        }
        Some(Event::Done(done, how.is_ok()))
    }

    pub(super) fn cancel_copy(&mut self, copy: OpId) {
        self.flying.cancel(|name| *name == copy);
        self.has_flown(copy);
    }

    /// A copy is over: its peer may have its memory back.
    fn has_flown(&mut self, copy: OpId) {
        if let Some(at) = self.flown.iter().position(|(c, _)| *c == copy) {
            let (_, peer) = self.flown.swap_remove(at);
            self.leave_flight(peer);
        }
    }

    /// A peer is gone: nothing of it is reached any more.
    pub(super) fn forget_devices(&mut self, id: u32) {
        let peer = &mut self.peers[id as usize];
        if let Some(owner) = peer.devices.owner {
            share::forget(owner.id);
        }
        peer.devices = Devices::default();
        peer.no_device = None;
    }
}
