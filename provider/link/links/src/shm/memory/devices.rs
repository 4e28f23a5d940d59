//! Devices' memory: which allocations were exported to a peer, and which it has exported to this process.
//!
//! An allocation is exported by a handle, in a frame ahead of the first one that names an address
//! in it. Handles are opened when they are first needed, and stay open (`hmem::share`): an allocation
//! that comes after another one at its place has another number, so it is exported anew, and what was
//! known of the place is forgotten.

use std::collections::HashSet;
use std::fmt;

use hmem::share::{self, Export, HandleType, NoPlan, Owner, Plan, plan};
use hmem::{Kind, Span, registry};
use link_api::{Direct, NoDirect, Way};
use wire::{Handle, Seg};
use xfer::handle::{from_wire, to_wire};

/// Most allocations exported to a peer before all of them are exported anew; what is remembered of a peer
/// is four times as much.
const MOST_EXPORTED: usize = 4096;

/// Most allocations one buffer may lie in.
const PIECES: usize = 256;

/// How many allocations are known to be exported without asking for their handles.
const RECENT: usize = 4;

/// Of one peer.
#[derive(Debug, Default)]
pub(in crate::shm) struct Devices {
    /// By number and place.
    exported: HashSet<(u64, u64, u64)>,
    /// The last of them that their number alone identifies, for which a driver is quick to be asked: number,
    /// and from where to where.
    recent: Vec<(u64, u64, u64)>,
    imported: Vec<Export>,
    owner: Option<Owner>,
    /// Why such memory does not go from device to device, once that was tried.
    refusal: Option<String>,
}

impl Devices {
    /// The allocation that `addr` of the peer is in.
    fn find(&self, addr: u64) -> Option<&Export> {
        self.imported.iter().rev().find(|e| addr.wrapping_sub(e.base) < e.len)
    }

    /// Whether the memory was exported to the peer, as far as that can be said quickly.
    fn has_exported(&self, s: &Span) -> bool {
        let end = s.addr().saturating_add(s.len() as u64);
        let inside = |&&(_, from, to): &&(u64, u64, u64)| from <= s.addr() && end <= to;
        let Some((id, ..)) = self.recent.iter().find(inside) else { return false };
        registry::of(s.kind()).number(s.addr() as usize) == Some(*id)
    }

    /// Memory was exported, all of which is in these allocations.
    fn note(&mut self, s: &Span, exports: &[Export]) {
        // Pieces of one mapping may share their number.
        let &[Export { handle_type: HandleType::Legacy, id, base, len, .. }] = exports else { return };
        if self.exported.contains(&(id, base, len))
            && registry::of(s.kind()).number(base as usize) == Some(id)
        {
            self.recent.truncate(RECENT - 1);
            self.recent.insert(0, (id, base, base.saturating_add(len)));
        }
    }

    fn import(&mut self, new: Export) {
        let end = new.base.saturating_add(new.len);
        self.imported.retain(|e| e.base.saturating_add(e.len) <= new.base || end <= e.base);
        if self.imported.len() >= 4 * MOST_EXPORTED {
            self.imported.remove(0);
        }
        self.imported.push(new);
    }

    /// Handles of the allocations that these buffers are in and that were not exported to the peer; `None` if
    /// one has none. `pair`: whose the buffers are and to whom, for the log.
    pub(in crate::shm) fn export(&mut self, iov: &[Span], pair: impl fmt::Display) -> Option<Vec<Handle>> {
        let mut out = Vec::new();
        for s in iov {
            if self.has_exported(s) {
                continue;
            }
            let exports = match registry::of(s.kind()).export_ipc(s.addr() as usize, s.len(), PIECES) {
                Ok(exports) => exports,
                Err(why) => {
                    self.refuse(pair, || {
                        format!("{s:?} cannot be shared ({why}): by bounce buffers, or staged")
                    });
                    return None;
                }
            };
            if self.exported.len() > MOST_EXPORTED {
                self.exported.clear();
                self.recent.clear();
            }
            self.note(s, &exports);
            let new = |e: &&Export| !self.exported.contains(&(e.id, e.base, e.len));
            out.extend(exports.iter().filter(new).map(to_wire));
        }
        Some(out)
    }

    /// A handle has gone to the peer.
    pub(in crate::shm) fn note_exported(&mut self, h: &Handle) {
        let (base, len) = (h.base.get(), h.len.get());
        // It forgets what else was there.
        self.exported.retain(|(_, at, n)| at.saturating_add(*n) <= base || base.saturating_add(len) <= *at);
        self.exported.insert((h.id.get(), base, len));
    }

    /// A handle has come from the peer; `false` if it is none.
    pub(in crate::shm) fn note_imported(&mut self, handle: &Handle) -> bool {
        let export = from_wire(handle);
        let good = export.is_some();
        if let Some(export) = export {
            self.import(export);
        }
        good
    }

    /// Whether both sides' memory begins on devices that are known, and not the same.
    pub(in crate::shm) fn are_two(&self, theirs: &[Seg], ours: &[Span]) -> bool {
        let (Some(there), Some(here)) = (theirs.first(), ours.first()) else { return false };
        let there = self.find(there.addr.get());
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

    /// Whether both sides' memory begins on a device that is known, the same, and that processes have in
    /// turns.
    pub(in crate::shm) fn are_one(&self, theirs: &[Seg], ours: &[Span]) -> bool {
        let (Some(there), Some(here)) = (theirs.first(), ours.first()) else { return false };
        // Other runtimes' handles do not say which device it is.
        let there = self.find(there.addr.get());
        there.filter(|e| e.handle_type.kind() == here.kind()).is_some_and(|there| {
            registry::of(here.kind()).device_in_turns(here.addr() as usize) == Some(there.device)
        })
    }

    /// Plans a copy from or to memory of the peer, which has this pid.
    pub(in crate::shm) fn plan<'a>(
        &mut self,
        way: Way,
        pid: i32,
        access: &Direct<'a>,
        pair: impl fmt::Display,
    ) -> Result<Plan<'a>, NoDirect> {
        let owner = *self.owner.get_or_insert_with(|| Owner::now(pid));
        let segs = access.remote.iter().map(|s| (s.addr.get(), s.len.get()));
        let find = |at| self.find(at);
        plan(way == Way::Put, owner, find, segs, access.local, access.len).map_err(|why| match why {
            NoPlan::Fault => NoDirect::Fault,
            NoPlan::Open(why) => {
                self.refuse(pair, || format!("its device memory cannot be opened ({why}): it is staged"));
                NoDirect::Never
            }
        })
    }

    /// Such memory does not go from device to device. The log says why, once for each peer.
    pub(in crate::shm) fn refuse(&mut self, pair: impl fmt::Display, why: impl FnOnce() -> String) {
        if self.refusal.is_none() {
            let why = why();
            log::info!("{pair}: {why}");
            self.refusal = Some(why);
        }
    }

    pub(in crate::shm) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// The peer is gone: nothing of it is reached any more.
    pub(in crate::shm) fn forget(&mut self) {
        if let Some(owner) = self.owner {
            share::forget(owner.id);
        }
        *self = Devices::default();
    }
}
