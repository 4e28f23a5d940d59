//! Devices' memory: which allocations were exported to a peer, and which it has exported to this process.
//!
//! An allocation is exported by a handle, in a frame ahead of the first one that names an address
//! in it. Handles are opened when they are first needed, and stay open (`hmem::share`): an allocation
//! that comes after another one at its place has another number, so it is exported anew, and what was
//! known of the place is forgotten.

use std::collections::HashSet;

use hmem::share::{Export, HandleType, Owner};
use hmem::{Span, registry};

/// Most allocations exported to a peer before all of them are exported anew; what is remembered of a peer
/// is four times as much.
pub(super) const MOST_EXPORTED: usize = 4096;

/// How many allocations are known to be exported without asking for their handles.
const RECENT: usize = 4;

/// Of one peer.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// By number and place.
    pub(super) exported: HashSet<(u64, u64, u64)>,
    /// The last of them that their number alone identifies, for which a driver is quick to be asked: number, and from
    /// where to where.
    pub(super) recent: Vec<(u64, u64, u64)>,
    imported: Vec<Export>,
    pub(super) owner: Option<Owner>,
}

impl Devices {
    /// The allocation that `addr` of the peer is in.
    pub(super) fn find(&self, addr: u64) -> Option<&Export> {
        self.imported.iter().rev().find(|e| addr.wrapping_sub(e.base) < e.len)
    }

    /// Whether the memory was exported to the peer, as far as that can be said quickly.
    pub(super) fn has_exported(&self, s: &Span) -> bool {
        let end = s.addr().saturating_add(s.len() as u64);
        let inside = |&&(_, from, to): &&(u64, u64, u64)| from <= s.addr() && end <= to;
        let Some((id, ..)) = self.recent.iter().find(inside) else { return false };
        registry::of(s.kind()).number(s.addr() as usize) == Some(*id)
    }

    /// Memory was exported, all of which is in these allocations.
    pub(super) fn note(&mut self, s: &Span, exports: &[Export]) {
        // Pieces of one mapping may share their number.
        let &[Export { handle_type: HandleType::Legacy, id, base, len, .. }] = exports else { return };
        if self.exported.contains(&(id, base, len))
            && registry::of(s.kind()).number(base as usize) == Some(id)
        {
            self.recent.truncate(RECENT - 1);
            self.recent.insert(0, (id, base, base.saturating_add(len)));
        }
    }

    pub(super) fn import(&mut self, new: Export) {
        let end = new.base.saturating_add(new.len);
        self.imported.retain(|e| e.base.saturating_add(e.len) <= new.base || end <= e.base);
        if self.imported.len() >= 4 * MOST_EXPORTED {
            self.imported.remove(0);
        }
        self.imported.push(new);
    }
}
