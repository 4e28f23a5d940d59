//! What calls of progress go on with, behind what the links bring: deferred work, and collective operations.

use crate::types::*;

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Waits: u8 {
        /// Operations wait for a counter.
        const DEFERRED = 1;
        /// Parts of collective operations have ended, or have yet to be posted.
        const COLLECTIVE = 2;
        /// Collective operations wait for words of shared memory.
        const SHARED = 4;
    }
}

/// See the module. In most domains there is nothing, which one byte says.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Later {
    waits: Waits,
    done: Vec<Completion>,
}

impl Later {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Whether collective operations have something to go on with.
    pub(crate) fn has_collective(&self) -> bool {
        self.waits.contains(Waits::COLLECTIVE)
    }

    /// Whether there is anything to do for collective operations.
    pub(crate) fn has_collectives(&self) -> bool {
        self.waits.intersects(Waits::COLLECTIVE | Waits::SHARED)
    }

    /// Whether operations wait for a counter.
    pub(crate) fn set_deferred(&mut self, on: bool) {
        self.waits.set(Waits::DEFERRED, on);
    }

    /// Whether collective operations have something to post, whatever the links bring.
    pub(crate) fn set_collective(&mut self, on: bool) {
        self.waits.set(Waits::COLLECTIVE, on || !self.done.is_empty());
    }

    /// Whether collective operations wait for words of shared memory, which are to be polled.
    pub(crate) fn set_shared(&mut self, on: bool) {
        self.waits.set(Waits::SHARED, on);
    }

    /// A part of a collective operation has ended.
    pub(crate) fn part_done(&mut self, entry: Completion) {
        self.waits |= Waits::COLLECTIVE;
        self.done.push(entry);
    }

    /// The parts that have ended since this was called last.
    pub(crate) fn take_done(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.done)
    }
}
