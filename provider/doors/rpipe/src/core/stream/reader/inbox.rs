//! The next message: its slot, and where its bytes are.

use std::sync::atomic::Ordering::Relaxed;

use super::taken::Taken;
use crate::core::context::Ready;
use crate::core::control::Shape;
use crate::core::memory::Line;
use crate::core::received::Received;
use crate::core::slot::{self, INLINE, Notice, Words as _};
use crate::core::stream::Mode;
use crate::core::stream::port::Port;
use crate::{Block, Error, Memory};

#[derive(Debug)]
pub(super) struct Inbox {
    shape: Shape,
    mode: Mode,
    /// Slots, tags and heap.
    memory: Memory,
    /// Where the heap begins, in memory of whatever kind.
    heap_base: usize,
    /// The number of the next message, from 0.
    next: u64,
    /// Notified mode: messages that are there.
    notified: u64,
    /// A message is where its flag is, or where the flag says.
    plain: bool,
    /// Blocks that were read and not freed.
    received: Received,
}

impl Inbox {
    pub(super) fn new(ready: &Ready) -> Result<Inbox, Error> {
        let (shape, manner) = (ready.met.shape, ready.met.manner);
        let heap_base = match &ready.on_device {
            Some(device) => device.addr() + shape.device_heap_at(),
            None => ready.mine.memory.address(shape.heap_at()).expose_provenance(),
        };
        Ok(Inbox {
            shape,
            mode: manner.mode,
            memory: ready.mine.memory.clone(),
            heap_base,
            next: 0,
            notified: 0,
            plain: manner.mode != Mode::Notified && !manner.pull && !shape.is_on_device(),
            received: Received::new(shape.heap / shape.granule(), shape.granule())?,
        })
    }

    pub(super) fn heap_base(&self) -> usize {
        self.heap_base
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether a message that is there is found by its flag, and read where it is.
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    /// The slot of the next message, if its flag is raised.
    #[inline(always)]
    fn raised(&self) -> Option<&Line> {
        let slot = self.memory.line(self.shape.slot(self.next))?;
        slot::is_raised(slot, 0, self.next + 1).then_some(slot)
    }

    /// Whether the flag of the next message is raised, by a load alone; `false` also where that does not
    /// suffice.
    #[inline(always)]
    pub(super) fn is_raised(&self) -> bool {
        self.mode != Mode::Notified && self.raised().is_some()
    }

    /// Whether it is not, and that is known: there is nothing to read.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.raised().is_none()
    }

    /// Whether the next message is there. Notifications come in order: each says how many there are.
    pub(super) fn peek(&mut self, port: &Port) -> Option<Notice> {
        if self.mode == Mode::Notified {
            while self.notified <= self.next {
                let ahead = port.take_notified()?.wrapping_sub(self.notified as u16);
                self.notified += u64::from(ahead);
            }
        } else if self.raised().is_none() {
            return None;
        }
        Some(slot::read(&self.memory, self.shape.slot(self.next)))
    }

    /// The next message, if it is there, is plain, is of `most` bytes at most and no active one, and nothing
    /// is wrong with it.
    #[inline(always)]
    pub(super) fn read_quickly(&mut self, most: usize) -> Option<Taken> {
        if !self.plain {
            return None;
        }
        let slot = self.memory.line(self.shape.slot(self.next))?;
        if !slot::is_raised(slot, 0, self.next + 1) {
            return None;
        }
        let notice = slot::read(slot, 0);
        let len = notice.len as usize;
        let is_short = !notice.is_inline || len <= INLINE;
        if len > most || u64::from(notice.len) > self.shape.width || !is_short || notice.handler != 0 {
            return None;
        }
        let block = Block { granule: notice.granule, generation: notice.generation };
        let offset = self.received.take_quickly(block, notice.len, notice.granules)?;
        if notice.is_inline {
            copy_words(slot, &self.memory, self.shape.heap_at() + offset, len);
        }
        self.next += 1;
        Some(Taken { block, len, handler: notice.handler })
    }

    /// Begins to take the next message, whose notice is checked, and whose bytes are copied from its slot if
    /// they are there; its offset in the heap.
    pub(super) fn begin_to_take(&mut self, notice: Notice) -> Result<(Taken, usize), Error> {
        let block = Block { granule: notice.granule, generation: notice.generation };
        let len = notice.len as usize;
        let inline_most = if self.shape.is_on_device() { 0 } else { INLINE };
        if u64::from(notice.len) > self.shape.width || notice.is_inline && len > inline_most {
            return Err(Error::Broken(
                "the writer has sent a message that is longer than the pipe is wide".into(),
            ));
        }
        let offset = self.received.take(block, notice.len, notice.granules)?;
        let slot = self.memory.line(self.shape.slot(self.next));
        if let Some(slot) = slot.filter(|_| notice.is_inline) {
            copy_words(slot, &self.memory, self.shape.heap_at() + offset, len);
        }
        Ok((Taken { block, len, handler: notice.handler }, offset))
    }

    /// The message was taken: the one behind it is the next.
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    pub(super) fn received(&self) -> &Received {
        &self.received
    }

    #[inline(always)]
    pub(super) fn received_mut(&mut self) -> &mut Received {
        &mut self.received
    }

    /// Where a block is, if it is one.
    #[inline(always)]
    pub(super) fn address_quickly(&self, block: Block) -> Option<*mut u8> {
        let (offset, _) = self.received.held(block)?;
        Some(std::ptr::with_exposed_provenance_mut(self.heap_base + offset))
    }

    /// The same, or what is wrong.
    #[inline]
    pub(super) fn address(&self, block: Block) -> Result<*mut u8, Error> {
        let (offset, _) = self.received.find(block)?;
        Ok(std::ptr::with_exposed_provenance_mut(self.heap_base + offset))
    }
}

/// A message's bytes from its slot to its block, whose last granule is inside of the heap and has whole
/// words.
#[inline(always)]
fn copy_words(slot: &Line, heap: &Memory, to: usize, len: usize) {
    for n in 0..len.div_ceil(8) {
        heap.store(to + 8 * n, slot::word(slot, 0, n), Relaxed);
    }
}
