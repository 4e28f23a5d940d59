//! A pipe: one stream, or one in each direction; and addresses in it.

use std::sync::Arc;
use std::time::Instant;

use crate::core::context::Context;
use crate::core::control::{Class, Place, Shape};
use crate::core::memory::PRIVATE_ALIGN;
use crate::core::settings::Sync;
use crate::core::slot::HANDLERS;
use crate::core::stream::{Mode, OnDevice, Options, Patience, Reader, Stats, Writer};
use crate::{ALIGN_MOST, Block, Device, Error, Policy, Rank, device};

const _: () = assert!(PRIVATE_ALIGN % ALIGN_MOST == 0);

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The writer's of a half-duplex pipe.
    Writer,
    /// The reader's of a half-duplex pipe.
    Reader,
    /// Both: of a full-duplex pipe.
    Both,
}

/// A poll of an end that is one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Visit {
    /// Whether the flag of its next message is raised; `false` also where a load does not suffice.
    Flag,
    /// Whether a read would end at once, with a message or an error. `begin`: sets the end up; else it may
    /// not be, as long as nothing comes.
    Ask { begin: bool },
    /// Asks the writer to wake this process; whether it will. A heavy barrier has to follow, before the next
    /// poll.
    Arm,
    /// Whether the flag shows all that comes, without progress.
    Polls,
}

/// How a pipe is to be. The two ends have to agree on `width` and on the kind of `side`.
#[derive(Clone, Copy, Debug)]
pub struct PipeOptions {
    pub side: Side,
    /// The longest message; `None`: as long as the heap.
    pub width: Option<u64>,
    /// Reader: bytes of the heap; the width at least.
    pub heap: Option<usize>,
    /// Reader: the most messages under way.
    pub slots: Option<usize>,
    /// Writer.
    pub policy: Option<Policy>,
    /// Writer.
    pub sync: Option<Sync>,
    /// Writer: this flag mode.
    pub mode: Option<Mode>,
    /// Writer: the reader gets the bytes, instead of the writer putting them.
    pub pull: bool,
    /// Sets the pipe up now, and not at its first use.
    pub eager: bool,
    /// Memory of this device: reader: the heap is; writer: the blocks are.
    pub device: Option<Device>,
    /// Reader, with `device`: numbers of messages are there too, for kernels that wait for messages.
    pub numbers: bool,
}

impl PipeOptions {
    /// Of this end, and else as the environment says.
    pub fn new(side: Side) -> PipeOptions {
        let (heap, slots, policy, sync, mode) = (None, None, None, None, None);
        let (pull, eager, device, numbers) = (false, false, None, false);
        PipeOptions { side, width: None, heap, slots, policy, sync, mode, pull, eager, device, numbers }
    }
}

/// A block of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// It was read; else it was allocated.
    pub read: bool,
    pub granule: u32,
    pub generation: u16,
}

impl Address {
    fn new(read: bool, block: Block) -> Address {
        Address { read, granule: block.granule, generation: block.generation }
    }

    fn block(self) -> Block {
        Block { granule: self.granule, generation: self.generation }
    }
}

/// An end of a pipe, or both ends of a full-duplex one.
#[derive(Debug)]
pub struct Pipe {
    writer: Option<Writer>,
    reader: Option<Reader>,
}

impl Pipe {
    /// Opens an end of a pipe to a peer. Nothing is sent before it is used, unless it is eager: the peer
    /// opens its end at any time, and of several pipes between two processes the first that one opens leads
    /// to the first that the other does.
    pub fn open(context: &Arc<Context>, peer: Rank, options: &PipeOptions) -> Result<Pipe, Error> {
        if peer >= context.size() {
            return Err(Error::Invalid(format!(
                "there is no rank {peer}: the job has {} processes",
                context.size()
            )));
        }
        if peer == context.rank() {
            return Err(Error::Invalid(format!("rank {peer} is this process: a pipe leads to another one")));
        }
        let settings = context.settings();
        let width = options.width.unwrap_or(u64::MAX);
        let class = if options.side == Side::Both { Class::Full } else { Class::Half };
        let device = options.device.map(|device| settings.device.unwrap_or(device).find()).transpose()?;
        if options.numbers && (device.is_none() || options.side == Side::Writer) {
            return Err(Error::Invalid(
                "numbers for kernels are for a reader's heap in memory of a device".into(),
            ));
        }
        let (heap, slots) = (options.heap.unwrap_or(settings.heap), options.slots.unwrap_or(settings.slots));
        // What is refused is no pipe: it has no place among those that the peer's ends lead to.
        let shape = (options.side != Side::Writer).then(|| Shape::new(width, heap, slots)).transpose()?;
        let mut pipe = Pipe { writer: None, reader: None };
        if options.side != Side::Reader {
            let policy = options.policy.or(settings.policy).unwrap_or_default();
            let by_policy = match policy {
                Policy::NextFit | Policy::FirstFit => Sync::Deferred,
                Policy::BestFit | Policy::WorstFit => Sync::Immediate,
            };
            let sync = options.sync.or(settings.sync).unwrap_or(by_policy);
            let mode = options.mode.or(settings.flag);
            pipe.writer = Some(Writer::new(
                context,
                class,
                peer,
                Options { width, policy, sync, mode, pull: options.pull, device },
            )?);
        }
        if let Some(shape) = shape {
            let numbers = options.numbers;
            let place = if device.is_some() { Place::Device { numbers } } else { Place::Host };
            pipe.reader = Some(Reader::new(context, class, peer, Shape { place, ..shape }, device)?);
        }
        if options.eager {
            pipe.begin()?;
        }
        Ok(pipe)
    }

    /// Begins to set the pipe up.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.writer.as_mut().map_or(Ok(()), Writer::begin)?;
        self.reader.as_mut().map_or(Ok(()), Reader::begin)
    }

    #[inline]
    fn writer(&mut self) -> Result<&mut Writer, Error> {
        self.writer
            .as_mut()
            .ok_or_else(|| Error::Invalid("this is the reader's end: it neither allocates nor writes".into()))
    }

    #[inline]
    fn reader(&mut self) -> Result<&mut Reader, Error> {
        self.reader
            .as_mut()
            .ok_or_else(|| Error::Invalid("this is the writer's end: it does not read".into()))
    }

    /// What mostly happens of [`Pipe::alloc`], and so on below: `None` has changed nothing, and says nothing
    /// of why.
    #[inline(always)]
    pub(crate) fn alloc_quickly(&mut self, len: usize) -> Option<Address> {
        Some(Address::new(false, self.writer.as_mut()?.alloc_quickly(len, 1)?))
    }

    #[inline(always)]
    pub(crate) fn address_quickly(&self, address: Address) -> Option<*mut u8> {
        if address.read {
            self.reader.as_ref()?.address_quickly(address.block())
        } else {
            self.writer.as_ref()?.address_quickly(address.block())
        }
    }

    /// `true`: [`Pipe::see_to_it`] is to be called.
    #[inline(always)]
    pub(crate) fn write_quickly(&mut self, address: Address) -> Option<bool> {
        self.writer.as_mut().filter(|_| !address.read)?.send_quickly(address.block(), None, 0)
    }

    #[cold]
    pub(crate) fn see_to_it(&mut self) -> Result<(), Error> {
        self.writer()?.see_to_it()
    }

    /// Of active messages none.
    #[inline(always)]
    pub(crate) fn read_quickly(&mut self, most: usize) -> Option<Address> {
        Some(Address::new(true, self.reader.as_mut()?.read_quickly(most)?.block))
    }

    #[inline(always)]
    pub(crate) fn free_quickly(&mut self, address: Address) -> Option<()> {
        if address.read {
            self.reader.as_mut()?.free_quickly(address.block())
        } else {
            self.writer.as_mut()?.free_quickly(address.block())
        }
    }

    /// Allocates a block on a multiple of `align`.
    #[inline]
    pub fn alloc(&mut self, len: usize, align: usize, patience: Patience) -> Result<Address, Error> {
        Ok(Address::new(false, self.writer()?.alloc(len, align, patience)?))
    }

    /// Where a block is: memory of this process, for the program to use until it sends the block or frees it.
    /// The peer may write there too.
    #[inline]
    pub fn address(&mut self, address: Address) -> Result<*mut u8, Error> {
        if address.read {
            self.reader()?.address(address.block())
        } else {
            self.writer()?.address(address.block())
        }
    }

    /// The bytes of a block.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&mut self, address: Address) -> Result<usize, Error> {
        if address.read { self.reader()?.len(address.block()) } else { self.writer()?.len(address.block()) }
    }

    /// Sends the first `len` bytes of a block, or all of it.
    #[inline]
    pub fn write(&mut self, address: Address, len: Option<usize>) -> Result<(), Error> {
        self.write_timed(address, len, Patience::Forever)
    }

    /// As [`Pipe::write`]. `Again`: the path has not taken it within the time, and the block is still this
    /// end's.
    #[inline]
    pub fn write_timed(
        &mut self,
        address: Address,
        len: Option<usize>,
        patience: Patience,
    ) -> Result<(), Error> {
        if address.read {
            return Err(Error::Stale(
                "this block was read; what is written was allocated in the same pipe".into(),
            ));
        }
        self.writer()?.send(address.block(), len, 0, patience)
    }

    /// Sends a block as an active message: where it is read, the handler of this number gets it.
    pub fn write_for(&mut self, address: Address, handler: u16) -> Result<(), Error> {
        if address.read || handler == 0 || handler >= HANDLERS {
            return Err(Error::Invalid(format!("handler {handler}: numbers are 1 to {}", HANDLERS - 1)));
        }
        self.writer()?.send(address.block(), None, handler, Patience::Forever)
    }

    /// Sends `len` bytes of memory of any kind, the host's or a device's, as a message: without a block of
    /// the program's, and over a path that allows it without another copy. The memory may be used again when
    /// this returns.
    ///
    /// # Safety
    /// So many bytes are readable there, by the processor or by the device whose memory it is.
    pub unsafe fn write_from(
        &mut self,
        from: *const u8,
        len: usize,
        patience: Patience,
    ) -> Result<(), Error> {
        self.writer()?.send_from(device::written(from, len), patience)
    }

    /// The reader's heap in memory of a device, for kernels, once the pipe is set up; waits for that.
    pub fn on_device(&mut self, patience: Patience) -> Result<OnDevice, Error> {
        self.reader()?.on_device(patience)
    }

    /// The next message, of `most` bytes at most, and its length. It is no active message: those are for
    /// [`Pipe::read_any`].
    #[inline]
    pub fn read(&mut self, most: usize, patience: Patience) -> Result<(Address, usize), Error> {
        let (address, len, handler) = self.read_any(most, patience)?;
        if handler != 0 {
            self.free(address)?;
            return Err(Error::Invalid(format!(
                "an active message for handler {handler} came, which nothing handles here"
            )));
        }
        Ok((address, len))
    }

    /// The next message, or active message, of any length, with the number of its handler or 0.
    #[inline]
    pub fn read_any(&mut self, most: usize, patience: Patience) -> Result<(Address, usize, u16), Error> {
        let taken = self.reader()?.read(most, patience)?;
        Ok((Address::new(true, taken.block), taken.len, taken.handler))
    }

    /// The next message, as [`Pipe::read_any`], if one is there; the time is for its bytes. `None`: there is
    /// none.
    pub(crate) fn read_if_any(
        &mut self,
        most: usize,
        patience: Patience,
    ) -> Result<Option<(Address, usize, u16)>, Error> {
        let is_there = matches!(self.peek_now(), Ok(Some(_)));
        match self.read_any(most, if is_there { patience } else { Patience::Poll }) {
            Err(Error::Again) if !is_there && patience != Patience::Poll => Ok(None),
            read => read.map(Some),
        }
    }

    /// Allocates a block, if there is room by what is known and what the reader has put; `None`: not now, or
    /// the end is not set up.
    pub(crate) fn alloc_now(&mut self, len: usize) -> Result<Option<Address>, Error> {
        Ok(self.writer()?.alloc_now(len)?.map(|block| Address::new(false, block)))
    }

    /// Sets the writer's end up, if the reader's is known by now; an error if nothing comes of it.
    pub(crate) fn connect_writer(&mut self) -> Result<bool, Error> {
        self.writer()?.connect_now()
    }

    /// Whether the reader has asked to be woken.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn sees_sleep(&self) -> bool {
        self.writer.as_ref().is_some_and(Writer::sees_sleep)
    }

    /// Sends the peer that the group of this pipe is over for this rank.
    pub(crate) fn say_over(&mut self, rank: Rank) {
        if let Some(writer) = &self.writer {
            writer.say_over(rank);
        }
        if let Some(reader) = &self.reader {
            reader.say_over(rank);
        }
    }

    /// The rank for which the peer has said so.
    pub(crate) fn over_for(&self) -> Option<Rank> {
        let by_writer = self.writer.as_ref().and_then(Writer::over_for);
        by_writer.or_else(|| self.reader.as_ref().and_then(Reader::over_for))
    }

    /// Whether what the reader frees is seen without progress.
    pub(crate) fn writer_polls(&self) -> bool {
        self.writer.as_ref().is_some_and(Writer::polls)
    }

    /// Whether what the writer writes is.
    pub(crate) fn reader_polls(&self) -> bool {
        self.reader.as_ref().is_some_and(Reader::polls)
    }

    /// Bytes of the reader's heap and its slots, once they are known.
    pub(crate) fn room(&self) -> Option<(usize, usize)> {
        self.writer.as_ref()?.room()
    }

    /// The length of the next message, if it is there. Looks alone find each message, and an end:
    /// [`Error::Gone`].
    pub fn peek(&mut self) -> Result<Option<usize>, Error> {
        Ok(self.reader()?.peek_on(usize::MAX)?.map(|notice| notice.len as usize))
    }

    /// The same, of what is known now.
    pub(crate) fn peek_now(&mut self) -> Result<Option<usize>, Error> {
        Ok(self.reader()?.peek(usize::MAX)?.map(|notice| notice.len as usize))
    }

    /// Has the writer wake this process's descriptor with the next message; ask once more with [`Pipe::peek`]
    /// before sleeping.
    pub fn arm(&mut self) -> Result<(), Error> {
        if self.peek_now()?.is_some() { Ok(()) } else { self.reader()?.say_asleep().or(Ok(())) }
    }

    /// Whether nothing comes from the peer any more.
    pub fn is_over(&mut self) -> bool {
        self.reader.as_ref().is_some_and(|reader| reader.is_over())
    }

    /// Looks at the end, as one of several that are waited for.
    #[inline]
    pub(crate) fn visit(&mut self, visit: Visit) -> bool {
        // An end that does not read says so when it is read.
        let Some(reader) = &mut self.reader else { return !matches!(visit, Visit::Polls) };
        match visit {
            Visit::Flag => reader.is_raised(),
            Visit::Ask { begin } => {
                (begin || reader.is_begun())
                    && (!matches!(reader.peek(usize::MAX), Ok(None))
                        || reader.is_over() && !reader.is_raised())
            }
            Visit::Arm => reader.mark_asleep().is_ok() && reader.wakes() || reader.may_begin(),
            Visit::Polls => reader.polls(),
        }
    }

    /// Frees a block: one that was read, or one that was allocated and not written.
    #[inline]
    pub fn free(&mut self, address: Address) -> Result<(), Error> {
        if address.read { self.reader()?.free(address.block()) } else { self.writer()?.free(address.block()) }
    }

    /// Waits until all that was written has left.
    pub fn flush(&mut self, patience: Patience) -> Result<(), Error> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.flush(patience))
    }

    /// Chooses blocks by another policy from now on.
    pub fn set_policy(&mut self, policy: Policy) -> Result<(), Error> {
        self.writer()?.set_policy(policy)
    }

    /// What the writing end has done, with its policy and its synchronization.
    pub fn writer_stats(&self) -> Option<(Stats, Policy, Sync)> {
        let writer = self.writer.as_ref()?;
        let options = writer.options();
        Some((writer.stats(), options.policy, options.sync))
    }

    /// What the reading end has done.
    pub fn reader_stats(&self) -> Option<Stats> {
        self.reader.as_ref().map(Reader::stats)
    }

    /// Closes the end, after what was written has left, or the time that a process waits for that
    /// (`STRAIT_RPIPE_LINGER`): [`Error::TimedOut`].
    pub fn close(&mut self) -> Result<(), Error> {
        let until = self.context().map_or_else(Instant::now, |context| context.leaves_by());
        self.close_by(until)
    }

    fn context(&self) -> Option<&Context> {
        let writer = self.writer.as_ref().map(Writer::context);
        writer.or_else(|| self.reader.as_ref().map(Reader::context))
    }

    /// Closes both ends as [`Pipe::close`] does, with this limit.
    pub(crate) fn close_by(&mut self, until: Instant) -> Result<(), Error> {
        if crate::core::forked::is_child() {
            // It is the parent's.
            (self.writer, self.reader) = (None, None);
            return Ok(());
        }
        let mut outcome = match self.flush(Patience::Until(until)) {
            Err(Error::Gone(_)) => Ok(()),
            Err(Error::Again) => Err(Error::TimedOut(
                "the reader has not taken in what was written within STRAIT_RPIPE_LINGER: it is lost".into(),
            )),
            flushed => flushed,
        };
        if let Some(mut writer) = self.writer.take() {
            outcome = outcome.and(writer.close());
        }
        if let Some(mut reader) = self.reader.take() {
            outcome = outcome.and(reader.close());
        }
        outcome
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let _ = self.close();
    }
}
