//! Places that long messages are sent from. Short ones are inline: they need none.

use below::{Message, NotSent};
use rdma_sys::{Pd, ibv_sge};

use crate::memory::Memory;

/// Places that are registered together: once, and again where all are in use.
const CHUNK: usize = 8;

/// The places, and which message each has.
#[derive(Debug)]
pub(crate) struct Sends {
    chunks: Vec<Memory>,
    pd: Pd,
    each: usize,
    /// Most places.
    most: usize,
    /// Places that no request has; the last one is used next.
    free: Vec<usize>,
    /// By place, of a frame that the device has: its [`Message::who`].
    kept: Vec<Option<u64>>,
    keeps: usize,
}

impl Sends {
    /// At most so many places, of which some are there from now on.
    pub(crate) fn new(pd: &Pd, most: usize, each: usize) -> Result<Sends, String> {
        let (chunks, free, kept) = Default::default();
        let mut sends = Sends { chunks, pd: pd.clone(), each, most, free, kept, keeps: 0 };
        if most > 0 {
            sends.grow()?;
        }
        Ok(sends)
    }

    /// More places, of which none is in use.
    fn grow(&mut self) -> Result<(), String> {
        self.chunks.push(Memory::new(&self.pd, CHUNK, self.each)?);
        let n = self.kept.len();
        self.free.extend((n..n + CHUNK).rev());
        self.kept.resize(n + CHUNK, None);
        Ok(())
    }

    /// A place that is free; all were in use before.
    #[cold]
    fn another(&mut self) -> Result<usize, NotSent> {
        if self.kept.len() + CHUNK > self.most {
            return Err(NotSent::Busy);
        }
        if let Err(why) = self.grow() {
            log::debug!("long messages are sent from {} places: {why}", self.kept.len());
            self.most = self.kept.len();
        }
        self.free.last().copied().ok_or(NotSent::Busy)
    }

    /// Copies a message to a place, which [`Sends::take`] takes once it is posted.
    pub(crate) fn fill(&mut self, message: &Message<'_>) -> Result<(usize, ibv_sge), NotSent> {
        let place = self.free.last().copied().map_or_else(|| self.another(), Ok)?;
        let (memory, at) = (&mut self.chunks[place / CHUNK], place % CHUNK);
        let total = message.total();
        if !message.copy_to(&mut memory.bytes_mut(at)[..total]) {
            return Err(NotSent::Fault);
        }
        Ok((place, memory.sge(at, total)))
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
