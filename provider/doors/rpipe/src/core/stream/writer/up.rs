//! What a writer's end has once the reader's is known.

use hmem::Span;

use super::bell::Bell;
use super::blocks::Blocks;
use super::freed::Freed;
use super::put::{Puts, Unraised};
use super::source::Source;
use crate::core::context::{Fate, Ready};
use crate::core::control::Shape;
use crate::core::settings::Sync;
use crate::core::slot::{self, INLINE, Notice};
use crate::core::stream::inject::Chosen;
use crate::core::stream::port::{OpNumbers, Port};
use crate::core::stream::stats::{Counts, Stats};
use crate::core::stream::{Mode, Patience};
use crate::{Block, Error, Memory, Policy, device};

#[derive(Debug)]
pub(super) struct Up {
    ready: Ready,
    shape: Shape,
    pub(super) blocks: Blocks,
    source: Source,
    bell: Bell,
    freed: Freed,
    /// The reader's region, if it is mapped.
    mapped: Option<Memory>,
    /// The next message's number.
    flag: u64,
    ops: OpNumbers,
    unraised: Unraised,
    inject: Chosen,
}

impl Up {
    pub(super) fn new(
        port: &Port,
        ready: Ready,
        policy: Policy,
        device: Option<i32>,
        inject: Chosen,
    ) -> Result<Up, Error> {
        let shape = ready.met.shape;
        let mapped = ready.theirs.mapped.clone().filter(|_| ready.met.manner.mode == Mode::Store);
        Ok(Up {
            shape,
            blocks: Blocks::new(shape, policy)?,
            source: Source::new(&ready, mapped.as_ref(), device)?,
            bell: Bell::new(port.context(), &ready),
            freed: Freed::new(shape),
            mapped,
            flag: 0,
            ops: OpNumbers::after(inject.last_op()),
            unraised: Unraised::default(),
            inject,
            ready,
        })
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// Whether a device has part: messages are copied by it.
    pub(super) fn has_device(&self) -> bool {
        self.source.on_device().is_some()
    }

    /// Whether this end's blocks are memory of a device.
    pub(super) fn has_device_blocks(&self) -> bool {
        self.source.on_device().is_some_and(|all| all.local().is_some())
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Where the program finds a block that this end holds.
    #[inline(always)]
    pub(super) fn address(&self, block: Block) -> Option<*mut u8> {
        let (len, _) = self.blocks.held(block)?;
        self.source.address(self.blocks.offset(block), len)
    }

    /// Sends over a path that is mapped: the bytes sent, and whether the reader is to be woken.
    #[inline(always)]
    pub(super) fn send_quickly(
        &mut self,
        block: Block,
        len: Option<usize>,
        handler: u16,
    ) -> Option<(usize, bool)> {
        let slot = self.source.slot(self.shape.slot(self.flag))?;
        let (all, granules) = self.blocks.held(block)?;
        let len = len.unwrap_or(all);
        if len > all {
            return None;
        }
        self.blocks.send_held(block);
        let notice = notice(block, all, len, granules, handler);
        let words = if notice.is_inline { len.div_ceil(8) } else { 0 };
        self.flag += 1;
        slot::publish(slot, 0, notice, self.source.words(self.blocks.offset(block), words), self.flag);
        Some((len, self.bell.is_due()))
    }

    /// Sends a block, or `from` in its place: the bytes sent, and how that has ended. An error, as also where
    /// a device has part: the block is this end's still.
    pub(super) fn send(
        &mut self,
        port: &Port,
        block: Block,
        (len, handler): (Option<usize>, u16),
        patience: Patience,
        from: Option<Span>,
    ) -> Result<(usize, Result<(), Error>), Error> {
        let (all, granules) = self.blocks.send(block)?;
        let len = len.unwrap_or(all);
        let refused = if len > all {
            Some(Error::TooLong(format!("{len} bytes of a block of {all}: allocate more")))
        } else if handler != 0 && self.shape.number(0).is_some() {
            Some(Error::Invalid("kernels wait for messages of this pipe, and handle no active ones".into()))
        } else {
            None
        };
        if let Some(fault) = refused {
            self.blocks.unsend(block);
            return Err(fault);
        }
        let mut notice = notice(block, all, len, granules, handler);
        let sent = if self.has_device() {
            notice.is_inline &= !self.shape.is_on_device();
            self.store(block, notice, from)
        } else {
            let offset = self.blocks.offset(block);
            self.puts(port).put(offset, notice, patience)
        };
        match sent {
            Err(fault) if fault == Error::Again || self.has_device() => {
                self.blocks.unsend(block);
                Err(fault)
            }
            sent => Ok((len, sent)),
        }
    }

    /// Copies a message's bytes, from its block or from `from`, and stores its slot. After an error nothing
    /// of it is seen.
    fn store(&mut self, block: Block, notice: Notice, from: Option<Span>) -> Result<(), Error> {
        let (Some(all), Some(mapped)) = (self.source.on_device(), &self.mapped) else {
            return Err(Error::Again);
        };
        let (offset, len) = (self.blocks.offset(block), notice.len as usize);
        let from = match (from, all.local()) {
            (Some(from), _) => from,
            (None, Some(local)) => local.span(offset, len)?,
            (None, None) => device::host(self.source.host(offset), len),
        };
        let words = all.copy(self.shape, mapped, (offset, from), notice, self.flag)?;
        let Some(slot) = mapped.line(self.shape.slot(self.flag)) else { return Err(Error::Again) };
        self.flag += 1;
        let inline = if notice.is_inline { len.div_ceil(8) } else { 0 };
        slot::publish(slot, 0, notice, words.into_iter().take(inline), self.flag);
        Ok(())
    }

    /// The puts of a path that is not mapped.
    pub(super) fn puts<'a>(&'a mut self, port: &'a Port) -> Puts<'a> {
        Puts {
            port,
            ready: &self.ready,
            source: &self.source,
            ops: &mut self.ops,
            unraised: &mut self.unraised,
            flag: &mut self.flag,
            inject_most: self.inject.most(),
        }
    }

    /// Takes in what the reader has freed.
    pub(super) fn fold(
        &mut self,
        port: &Port,
        sync: Sync,
        patience: Patience,
        counts: &mut Counts,
    ) -> Result<(), Error> {
        if self.blocks.has_failed() {
            port.still_there()?;
        }
        if sync == Sync::Immediate && self.mapped.is_none() {
            self.freed.fetch(port, &self.ready, &mut self.ops, patience)?;
        }
        match self.freed.take_in(&self.ready, self.mapped.as_ref(), sync, &mut self.blocks) {
            Ok(0) => Ok(()),
            Ok(tags) => {
                counts.add_tags(tags);
                counts.add_sync();
                Ok(())
            }
            Err(fault) => {
                self.blocks.fail();
                port.break_off(&fault);
                Err(fault)
            }
        }
    }

    /// Waits for what may still come to this end's memory.
    pub(super) fn await_begun(&mut self, port: &Port, patience: Patience) -> Result<(), Error> {
        self.inject.await_begun(port, patience)?;
        self.freed.settle(port, patience)
    }

    /// What becomes of this end's region when it is closed, with no operation under way.
    pub(super) fn fate(&self) -> Fate {
        match self.ready.met.manner {
            manner if manner.pull && self.blocks.has_sent() => Fate::Wanted,
            manner if manner.mode != Mode::Store => Fate::Reached,
            _ => Fate::Back,
        }
    }

    pub(super) fn add_stats(&self, stats: &mut Stats) {
        stats.set_up(&self.ready, self.ready.met.manner.mode);
        let usage = self.blocks.usage();
        (stats.used, stats.free, stats.largest) = (usage.used, usage.free, usage.largest);
        stats.fragmentation = usage.fragmentation;
        (stats.in_slot, stats.injected) = (INLINE, self.inject.most());
        self.inject.why().clone_into(&mut stats.injected_why);
        if self.source.is_direct() {
            stats.path_why.push_str(&format!("; blocks of more than {INLINE} bytes are the reader's memory"));
        }
        if let Some(on_device) = self.source.on_device() {
            stats.path_why.push_str(&on_device.description());
        }
    }
}

#[inline(always)]
fn notice(block: Block, all: usize, len: usize, granules: u32, handler: u16) -> Notice {
    let Block { granule, generation } = block;
    Notice { granule, generation, is_inline: all <= INLINE, handler, len: len as u32, granules }
}
