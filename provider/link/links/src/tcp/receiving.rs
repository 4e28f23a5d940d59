//! What frames are received into, and the one at hand.

use link_api::{Budget, OpId, PeerId};

use crate::tcp::channel::pool::Pool;

/// The frame at hand.
#[derive(Debug)]
pub(super) enum Held {
    /// Of a channel, and its bytes.
    Of(PeerId, usize),
    /// Of this endpoint itself.
    Own(Vec<u8>),
}

#[derive(Debug, Default)]
pub(super) struct Receiving {
    pool: Pool,
    held: Option<Held>,
    /// Frames are reported when they begin; and how many were to land.
    early: bool,
    landings: u64,
}

impl Receiving {
    #[inline]
    pub(super) fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Whether a peer has found no buffer.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.pool.is_short()
    }

    /// From now on buffers count here.
    pub(super) fn set_budget(&mut self, budget: &Budget) {
        self.pool.set_budget(budget);
    }

    /// The frame at hand.
    #[inline]
    pub(super) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    #[inline]
    pub(super) fn hold(&mut self, frame: Held) {
        self.held = Some(frame);
    }

    /// The frame at hand is given back.
    #[inline]
    pub(super) fn take_held(&mut self) -> Option<Held> {
        self.held.take()
    }

    /// Whether frames are reported when they begin.
    pub(super) fn is_early(&self) -> bool {
        self.early
    }

    pub(super) fn set_early(&mut self) {
        self.early = true;
    }

    /// The number of an operation by which a frame lands.
    pub(super) fn number(&mut self) -> OpId {
        self.landings += 1;
        OpId(self.landings - 1)
    }
}
