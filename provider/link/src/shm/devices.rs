//! Devices' memory: which allocations of ours a peer knows, and which of its own it has told of.
//!
//! A peer tells of an allocation by a handle, in a frame ahead of the first one that names an address
//! in it. Handles are opened when they are first needed, and stay open (`hmem::share`): an allocation
//! that comes after another one at its place has another number, so it is told of anew, and what was
//! known of the place is forgotten.

use std::collections::HashSet;

use hmem::share::{Export, HandleType, Owner};
use hmem::{Span, registry};
use wire::Handle;

/// Most allocations a peer is told of before all of them are told anew; what is remembered of a peer
/// is four times as much.
pub(super) const TOLD: usize = 4096;

/// How many allocations a peer was told of are known at a glance.
const LATELY: usize = 4;

/// Of one peer.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// By number and place.
    pub(super) told: HashSet<(u64, u64, u64)>,
    /// The last of them that their number alone tells, for which a driver is quick to be asked: number, and from
    /// where to where.
    pub(super) lately: Vec<(u64, u64, u64)>,
    known: Vec<Export>,
    pub(super) owner: Option<Owner>,
}

pub(super) fn to_wire(e: &Export) -> Handle {
    Handle {
        how: e.handle_type as u8,
        zero: [0; 3],
        fd: (e.fd as u32).into(),
        id: e.id.into(),
        base: e.base.into(),
        len: e.len.into(),
        device: e.device,
        token: e.token,
    }
}

pub(super) fn from_wire(h: &Handle) -> Option<Export> {
    Some(Export {
        handle_type: HandleType::from_u8(h.how)?,
        fd: h.fd.get() as i32,
        id: h.id.get(),
        base: h.base.get(),
        len: h.len.get(),
        device: h.device,
        token: h.token,
    })
}

impl Devices {
    /// The allocation that `addr` of the peer is in.
    pub(super) fn find(&self, addr: u64) -> Option<&Export> {
        self.known.iter().rev().find(|e| addr.wrapping_sub(e.base) < e.len)
    }

    /// Whether the peer was told of the memory, as far as that can be said quickly.
    pub(super) fn knows(&self, s: &Span) -> bool {
        let end = s.addr().saturating_add(s.len() as u64);
        let inside = |&&(_, from, to): &&(u64, u64, u64)| from <= s.addr() && end <= to;
        let Some((id, ..)) = self.lately.iter().find(inside) else { return false };
        registry::of(s.kind()).number(s.addr() as usize) == Some(*id)
    }

    /// That it is told of memory, all of which is in these allocations.
    pub(super) fn note(&mut self, s: &Span, exports: &[Export]) {
        // Pieces of one mapping may share their number.
        let &[Export { handle_type: HandleType::Legacy, id, base, len, .. }] = exports else { return };
        if self.told.contains(&(id, base, len)) && registry::of(s.kind()).number(base as usize) == Some(id) {
            self.lately.truncate(LATELY - 1);
            self.lately.insert(0, (id, base, base.saturating_add(len)));
        }
    }

    pub(super) fn learn(&mut self, new: Export) {
        let end = new.base.saturating_add(new.len);
        self.known.retain(|e| e.base.saturating_add(e.len) <= new.base || end <= e.base);
        if self.known.len() >= 4 * TOLD {
            self.known.remove(0);
        }
        self.known.push(new);
    }
}
