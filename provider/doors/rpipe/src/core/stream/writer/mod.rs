//! The writer's end.

mod bell;
mod blocks;
mod freed;
mod on_device;
mod put;
mod source;
mod up;

use std::sync::Arc;

use super::port::Port;
use super::stats::{Counts, Stats};
use super::wait::{WaitStep, Waiting};
use super::{CLOSING, Patience, inject};
use crate::core::context::{Context, End, Fate};
use crate::core::control::Class;
use crate::core::settings::Sync;
use crate::core::stream::Mode;
use crate::{ALIGN_MOST, Block, Error, Policy, Rank, device};
use hmem::{Kind, Span};

use up::Up;

/// How an end of a writer is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) width: u64,
    pub(crate) policy: Policy,
    pub(crate) sync: Sync,
    pub(crate) mode: Option<Mode>,
    pub(crate) pull: bool,
    /// Blocks are memory of this device.
    pub(crate) device: Option<i32>,
}

#[derive(Debug)]
pub(crate) struct Writer {
    port: Port,
    options: Options,
    up: Option<Box<Up>>,
    counts: Counts,
}

/// Of a block, before anything was allocated.
fn no_block() -> Error {
    Error::Stale("nothing was allocated in this pipe yet".into())
}

impl Writer {
    pub(crate) fn new(
        context: &Arc<Context>,
        class: Class,
        peer: Rank,
        options: Options,
    ) -> Result<Writer, Error> {
        let Options { width, mode, sync, pull, .. } = options;
        let port = Port::open(context, class, peer, End::Writer { width, asked: mode, sync, pull })?;
        Ok(Writer { port, options, up: None, counts: Counts::default() })
    }

    pub(crate) fn context(&self) -> &Context {
        self.port.context()
    }

    /// Begins to set the stream up, without waiting.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.port.begin()
    }

    /// Waits until the reader's end is known.
    #[inline]
    pub(crate) fn connect(&mut self, patience: Patience) -> Result<(), Error> {
        if self.up.is_some() { Ok(()) } else { self.slow_connect(patience) }
    }

    #[cold]
    fn slow_connect(&mut self, patience: Patience) -> Result<(), Error> {
        let ready = self.port.until_ready(patience)?;
        let inject = inject::choose(&self.port, &ready, patience);
        let Options { policy, device, .. } = self.options;
        self.up = Some(Box::new(Up::new(&self.port, ready, policy, device, inject)?));
        Ok(())
    }

    fn up(&mut self) -> Result<&mut Up, Error> {
        self.up.as_deref_mut().ok_or_else(no_block)
    }

    /// Allocates a block.
    #[inline]
    pub(crate) fn alloc(&mut self, len: usize, align: usize, patience: Patience) -> Result<Block, Error> {
        match self.alloc_quickly(len, align) {
            Some(block) => Ok(block),
            None => self.slow_alloc(len, align, patience),
        }
    }

    /// Allocates a block, if that takes no poll of what the reader has freed.
    #[inline(always)]
    pub(crate) fn alloc_quickly(&mut self, len: usize, align: usize) -> Option<Block> {
        self.up.as_deref_mut()?.blocks.alloc_quickly(len, align)
    }

    #[cold]
    fn slow_alloc(&mut self, len: usize, align: usize, patience: Patience) -> Result<Block, Error> {
        self.check(len, align)?;
        if self.up.is_none() {
            self.connect(patience)?;
            self.check(len, align)?;
        }
        self.fold_in_time(patience)?;
        match self.alloc_known(len, align)? {
            Some(block) => Ok(block),
            None => self.alloc_later(len, align, patience),
        }
    }

    /// Allocates a block, if the book has room.
    fn alloc_known(&mut self, len: usize, align: usize) -> Result<Option<Block>, Error> {
        let deferred = self.options.sync == Sync::Deferred;
        Ok(self.up()?.blocks.alloc(len, align, deferred))
    }

    /// Allocates a block, if there is room by what is known and what the reader has put; `None`: not now, or
    /// the end is not set up.
    #[inline]
    pub(crate) fn alloc_now(&mut self, len: usize) -> Result<Option<Block>, Error> {
        if let Some(block) = self.alloc_quickly(len, 1) {
            return Ok(Some(block));
        }
        if self.up.is_none() {
            return Ok(None);
        }
        self.check(len, 1)?;
        self.fold_in_time(Patience::Poll)?;
        self.alloc_known(len, 1)
    }

    /// Whether there may be such a block; and what is wrong, if not.
    fn check(&self, len: usize, align: usize) -> Result<(), Error> {
        if len as u64 > self.options.width {
            return Err(Error::TooLong(format!(
                "{len} bytes, and the pipe is {} wide: open both ends wider, or with RPIPE_UNBOUNDED",
                self.options.width
            )));
        }
        // Not known before the reader is.
        let heap = self.up.as_deref().map_or(usize::MAX, |up| up.shape().heap);
        if len > heap || u32::try_from(len).is_err() {
            let heap = if heap == usize::MAX { "fewer".into() } else { heap.to_string() };
            return Err(Error::TooLong(format!(
                "{len} bytes, and the heap has {heap}: make it longer (STRAIT_RPIPE_HEAP); a message has less than 4 GiB"
            )));
        }
        if !align.is_power_of_two() || align > ALIGN_MOST {
            return Err(Error::Invalid(format!(
                "an alignment of {align}: it has to be a power of two, of 4096 at most"
            )));
        }
        Ok(())
    }

    /// There is no room now: it comes with what the reader frees.
    #[cold]
    fn alloc_later(&mut self, len: usize, align: usize, patience: Patience) -> Result<Block, Error> {
        let mut waiting = Waiting::new(patience, self.up()?.is_mapped());
        loop {
            self.fold_in_time(patience)?;
            let up = self.up()?;
            if let Some(block) = up.blocks.alloc(len, align, false) {
                return Ok(block);
            }
            if !up.blocks.has_sent() {
                let usage = up.blocks.usage();
                return Err(Error::Full(format!(
                    "{len} bytes find no room, and the reader has none to free: {} of {} bytes are this end's, the longest \
                     free block has {}; send or free some, or make the heap longer (STRAIT_RPIPE_HEAP) or the slots more \
                     (STRAIT_RPIPE_SLOTS)",
                    usage.used,
                    up.shape().heap,
                    usage.largest
                )));
            }
            let step = waiting.step(self.port.context()).map_err(|e| match e {
                Error::Again if patience == Patience::Poll => {
                    Error::Full("the reader has not freed enough yet; try again".into())
                }
                other => other,
            })?;
            match step {
                WaitStep::Poll => {}
                WaitStep::Ask => self.tend()?,
                WaitStep::Sleep => {
                    self.tend()?;
                    waiting.sleep(self.port.context(), false);
                }
            }
        }
    }

    /// Takes in what the reader has freed.
    fn fold(&mut self, patience: Patience) -> Result<(), Error> {
        let Writer { port, up, counts, options } = self;
        up.as_deref_mut().ok_or_else(no_block)?.fold(port, options.sync, patience, counts)
    }

    /// The same; what is not known within the time is taken in by a later call, and what is known may do.
    fn fold_in_time(&mut self, patience: Patience) -> Result<(), Error> {
        match self.fold(patience) {
            Err(Error::Again) => Ok(()),
            other => other,
        }
    }

    /// Asks whether the peer is there, and raises flags that are due.
    fn tend(&mut self) -> Result<(), Error> {
        self.port.still_there()?;
        let Some(up) = self.up.as_deref_mut() else { return Ok(()) };
        match up.puts(&self.port).raise_due(Patience::Poll) {
            Err(Error::Again) => Ok(()),
            other => other,
        }
    }

    /// Sets the end up, if the reader's is known by now, and raises flags that are due. An error if the
    /// reader has ended.
    pub(crate) fn connect_now(&mut self) -> Result<bool, Error> {
        match self.connect(Patience::Poll) {
            Err(Error::Again) => return Ok(false),
            other => other?,
        }
        self.tend()?;
        Ok(true)
    }

    /// Where the program finds a block: it may write there until it sends it.
    #[inline]
    pub(crate) fn address(&mut self, block: Block) -> Result<*mut u8, Error> {
        match self.address_quickly(block) {
            Some(address) => Ok(address),
            None => Err(self.up()?.blocks.not_held(block)),
        }
    }

    #[inline(always)]
    pub(crate) fn address_quickly(&self, block: Block) -> Option<*mut u8> {
        self.up.as_deref()?.address(block)
    }

    /// The bytes of a block that this end holds.
    pub(crate) fn len(&mut self, block: Block) -> Result<usize, Error> {
        self.up()?.blocks.len(block)
    }

    /// Frees a block that was not sent.
    #[inline]
    pub(crate) fn free(&mut self, block: Block) -> Result<(), Error> {
        match self.free_quickly(block) {
            Some(()) => Ok(()),
            None => self.up()?.blocks.free(block),
        }
    }

    #[inline(always)]
    pub(crate) fn free_quickly(&mut self, block: Block) -> Option<()> {
        self.up.as_deref_mut()?.blocks.free_quickly(block)
    }

    /// Sends the first `len` bytes of a block, or all of it: it is the reader's from now on. `handler`: 0, or
    /// that of an active message.
    #[inline]
    pub(crate) fn send(
        &mut self,
        block: Block,
        len: Option<usize>,
        handler: u16,
        patience: Patience,
    ) -> Result<(), Error> {
        match self.send_quickly(block, len, handler) {
            Some(false) => Ok(()),
            Some(true) => self.see_to_it(),
            None => self.slow_send(block, len, handler, patience, None),
        }
    }

    /// Sends over a path that is mapped. `true`: [`Writer::see_to_it`] is to be called.
    #[inline(always)]
    pub(crate) fn send_quickly(&mut self, block: Block, len: Option<usize>, handler: u16) -> Option<bool> {
        let (len, sleeps) = self.up.as_deref_mut()?.send_quickly(block, len, handler)?;
        self.counts.add_message(len);
        Some(sleeps || self.counts.messages() % 256 == 0)
    }

    #[cold]
    fn slow_send(
        &mut self,
        block: Block,
        len: Option<usize>,
        handler: u16,
        patience: Patience,
        from: Option<Span>,
    ) -> Result<(), Error> {
        let up = self.up.as_deref_mut().ok_or_else(no_block)?;
        let (len, sent) = up.send(&self.port, block, (len, handler), patience, from)?;
        self.counts.add_message(len);
        if up.has_device() && (up.bell().is_due() || self.counts.messages() % 256 == 0) {
            return self.see_to_it();
        }
        sent
    }

    /// Sends bytes of any memory of this process, without a block of the program's.
    pub(crate) fn send_from(&mut self, from: Span, patience: Patience) -> Result<(), Error> {
        let block = self.alloc(from.len(), 1, patience)?;
        let sent = self.send_block_from(block, from, patience);
        if sent.is_err() {
            // Whether it was sent all the same the book knows.
            let _ = self.free(block);
        }
        sent
    }

    fn send_block_from(&mut self, block: Block, from: Span, patience: Patience) -> Result<(), Error> {
        if self.up()?.has_device() && (from.kind() == Kind::System || from.kind() == Kind::Cuda) {
            return self.slow_send(block, None, 0, patience, Some(from));
        }
        let to = self.address(block)?;
        let to = match self.up()?.has_device_blocks() {
            true => device::named(to, from.len()),
            false => device::host(to, from.len()),
        };
        device::copy(to, from)?;
        self.send(block, None, 0, patience)
    }

    /// The reader sleeps, or it is time for progress.
    #[cold]
    pub(crate) fn see_to_it(&mut self) -> Result<(), Error> {
        let seen = match self.up()?.bell().is_set() {
            true => self.wake(),
            false => self.port.context().progress().and_then(|()| self.port.still_there()),
        };
        if let (Err(_), Some(up)) = (&seen, self.up.as_deref_mut()) {
            up.blocks.fail();
        }
        seen
    }

    fn wake(&mut self) -> Result<(), Error> {
        self.up()?.bell().clear();
        self.port.wake();
        // What is written is written, also if the reader has read it and left by now: the next call finds
        // that.
        self.port.context().progress()
    }

    /// Waits until all that was sent has left: its flags are raised.
    pub(crate) fn flush(&mut self, patience: Patience) -> Result<(), Error> {
        match self.up.as_deref_mut() {
            Some(up) => up.puts(&self.port).flush(patience),
            None => Ok(()),
        }
    }

    /// From now on blocks are chosen by this policy.
    pub(crate) fn set_policy(&mut self, policy: Policy) -> Result<(), Error> {
        self.up.as_deref_mut().map_or(Ok(()), |up| up.blocks.set_policy(policy))?;
        self.options.policy = policy;
        Ok(())
    }

    pub(crate) fn options(&self) -> Options {
        self.options
    }

    /// Whether what the reader frees is seen without progress.
    pub(crate) fn polls(&self) -> bool {
        self.up.as_deref().is_some_and(Up::is_mapped)
    }

    /// Bytes of the reader's heap and its slots, once they are known.
    pub(crate) fn room(&self) -> Option<(usize, usize)> {
        self.up.as_deref().map(|up| (up.shape().heap, up.shape().slots))
    }

    /// What this end has done, and has.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.counts.stats();
        if let Some(up) = self.up.as_deref() {
            up.add_stats(&mut stats);
        }
        stats
    }

    /// Sends the reader that the group of this end is over for this rank.
    pub(crate) fn say_over(&self, rank: Rank) {
        self.port.say_over(rank);
    }

    /// The rank for which the reader has said so.
    pub(crate) fn over_for(&self) -> Option<Rank> {
        self.port.over_for()
    }

    /// Whether the reader has asked to be woken.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn sees_sleep(&self) -> bool {
        self.up.as_deref().is_some_and(|up| up.bell().is_set())
    }

    /// Closes the end: the reader gets what was sent, and then learns of it.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        let begun = match self.up.as_deref_mut() {
            Some(up) => up.await_begun(&self.port, Patience::for_a(CLOSING)),
            None => Ok(()),
        };
        if self.up.is_some() && self.options.sync == Sync::Deferred {
            let _ = self.fold(Patience::Poll);
        }
        let fate = match self.up.take() {
            _ if begun == Err(Error::Again) => Fate::InUse,
            Some(up) => up.fate(),
            None => Fate::Back,
        };
        self.port.leave(fate)
    }
}
