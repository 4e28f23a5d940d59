//! Places that long messages are sent from. Short ones are inline: they need none.

use below::{Message, NotSent};
use rdma_sys::{Pd, ibv_sge};

use crate::memory::Memory;

/// The places, and which message each has.
#[derive(Debug)]
pub(crate) struct Sends {
    memory: Memory,
    /// Places that no request has; the last one is used next.
    free: Vec<usize>,
    /// By place, of a frame that the device has: its [`Message::who`].
    kept: Vec<Option<u64>>,
    keeps: usize,
}

impl Sends {
    pub(crate) fn new(pd: &Pd, n: usize, each: usize) -> Result<Sends, String> {
        let memory = Memory::new(pd, n, each)?;
        Ok(Sends { memory, free: (0..n).rev().collect(), kept: vec![None; n], keeps: 0 })
    }

    /// Copies a message to a place, which [`Sends::take`] takes once it is posted.
    pub(crate) fn fill(&mut self, message: &Message<'_>) -> Result<(usize, ibv_sge), NotSent> {
        let &place = self.free.last().ok_or(NotSent::Busy)?;
        let total = message.total();
        if !message.copy_to(&mut self.memory.bytes_mut(place)[..total]) {
            return Err(NotSent::Fault);
        }
        Ok((place, self.memory.sge(place, total)))
    }

    /// The place that was filled last is the device's.
    pub(crate) fn take(&mut self, message: &Message<'_>) {
        let Some(place) = self.free.pop() else { return };
        if message.is_frame {
            self.kept[place] = Some(message.who);
            self.keeps += 1;
        }
    }

    /// A place is this side's again.
    pub(crate) fn give_back(&mut self, place: usize) {
        self.keeps -= usize::from(self.kept[place].take().is_some());
        self.free.push(place);
    }

    /// Whether the device has a frame with this [`Message::who`] in a place.
    pub(crate) fn keeps(&self, who: u64) -> bool {
        self.keeps > 0 && self.kept.contains(&Some(who))
    }
}
