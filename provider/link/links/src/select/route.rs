//! Which link each peer has, and how the numbers of further links are distinguished from those of shared
//! memory.

use std::fmt;

use link_api::{OpId, PeerId};

/// Why a peer has the link that it has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cause {
    /// This speaks for shared memory.
    Near(&'static str),
    /// This speaks against it.
    Far(&'static str),
    /// The peer has connected by that link.
    Connected,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Near(why) => f.write_str(why),
            Cause::Far(why) => write!(f, "not shm: {why}"),
            Cause::Connected => f.write_str("the peer connected by this link"),
        }
    }
}

/// The way to a peer.
#[derive(Debug)]
pub(super) struct Route {
    /// The further link, and its number of the peer; `None` is shared memory.
    far: Option<(usize, PeerId)>,
    cause: Cause,
}

impl Route {
    pub(super) fn shm(cause: Cause) -> Route {
        Route { far: None, cause }
    }

    pub(super) fn to(at: usize, id: PeerId, cause: Cause) -> Route {
        Route { far: Some((at, id)), cause }
    }

    pub(super) fn far(&self) -> Option<(usize, PeerId)> {
        self.far
    }

    /// Why it is this one.
    pub(super) fn cause(&self) -> Cause {
        self.cause
    }
}

/// The ways to all peers. Empty while there is one link only.
#[derive(Debug, Default)]
pub(super) struct Routes(Vec<Option<Route>>);

impl Routes {
    #[inline]
    pub(super) fn of(&self, peer: PeerId) -> Option<&Route> {
        self.0.get(peer.0 as usize)?.as_ref()
    }

    /// The further link of a peer, and what that calls it.
    #[inline]
    pub(super) fn far_of(&self, peer: PeerId) -> Option<(usize, PeerId)> {
        self.of(peer)?.far()
    }

    /// Why a peer has the link that it has.
    pub(super) fn cause_of(&self, peer: PeerId) -> Option<Cause> {
        self.of(peer).map(Route::cause)
    }

    pub(super) fn set(&mut self, peer: PeerId, route: Route) {
        let at = peer.0 as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(route);
    }

    pub(super) fn unset(&mut self, peer: PeerId) {
        if let Some(route) = self.0.get_mut(peer.0 as usize) {
            *route = None;
        }
    }
}

/// Frames of further links have the link's number, from 1 on, in these bits of their slot.
const SLOT: u32 = 24;
/// Operations of further links have the number in these bits.
const OP: u32 = 56;

#[inline(always)]
pub(super) fn is_far(slot: u32) -> bool {
    slot >> SLOT != 0
}

/// The further link that a slot names.
pub(super) fn of_slot(slot: u32) -> Option<usize> {
    (slot >> SLOT).checked_sub(1).map(|at| at as usize)
}

/// The slot as that link has it.
pub(super) fn slot(slot: u32) -> u32 {
    slot & ((1 << SLOT) - 1)
}

pub(super) fn tagged(at: usize, slot: u32) -> u32 {
    debug_assert!(slot >> SLOT == 0, "a slot that leaves no room for the link's number");
    (at as u32 + 1) << SLOT | slot
}

pub(super) fn tag_op(at: usize, op: OpId) -> OpId {
    debug_assert!(op.0 >> OP == 0, "an operation's number that leaves no room for the link's");
    OpId((at as u64 + 1) << OP | op.0)
}

/// The further link of an operation, if it is not shared memory's, and the operation's number there.
pub(super) fn untag_op(op: OpId) -> (Option<usize>, OpId) {
    let far = (op.0 >> OP).checked_sub(1).map(|at| at as usize);
    (far, OpId(op.0 & ((1 << OP) - 1)))
}
