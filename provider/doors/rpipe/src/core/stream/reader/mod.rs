//! The reader's end.

mod device;
mod fetch;
mod inbox;
mod tags_out;
mod taken;

pub use device::OnDevice;
pub use taken::Taken;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::port::Port;
use super::stats::{Counts, Stats};
use super::wait::{WaitStep, Waiting};
use super::{CLOSING, Mode, Patience};
use crate::core::context::{Context, End, Fate, Ready};
use crate::core::control::{Class, Shape};
use crate::core::slot::{Notice, Words as _};
use crate::{Block, Error, Rank};

use fetch::Fetch;
use inbox::Inbox;
use tags_out::TagsOut;

/// Of so many polls that a program makes by itself one makes progress, where the others need none to find a
/// message.
const PEEKS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Reader {
    port: Port,
    up: Option<Box<Up>>,
    counts: Counts,
    peeks: u32,
}

/// What there is once the writer's end is known.
#[derive(Debug)]
struct Up {
    ready: Ready,
    inbox: Inbox,
    tags: TagsOut,
    fetch: Fetch,
}

impl Reader {
    pub(crate) fn new(
        context: &Arc<Context>,
        class: Class,
        peer: Rank,
        shape: Shape,
        device: Option<i32>,
    ) -> Result<Reader, Error> {
        let port = Port::open(context, class, peer, End::Reader { shape, device })?;
        Ok(Reader { port, up: None, counts: Counts::default(), peeks: 0 })
    }

    pub(crate) fn context(&self) -> &Context {
        self.port.context()
    }

    /// Begins to set the stream up, without waiting.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.port.begin()
    }

    #[cold]
    fn connect(&mut self, patience: Patience) -> Result<(), Error> {
        let ready = self.port.until_ready(patience)?;
        let (inbox, tags) = (Inbox::new(&ready)?, TagsOut::new(&ready));
        self.up = Some(Box::new(Up { ready, inbox, tags, fetch: Fetch::new() }));
        Ok(())
    }

    fn up(&mut self) -> Result<&mut Up, Error> {
        self.up.as_deref_mut().ok_or_else(|| Error::Stale("nothing was read from this pipe yet".into()))
    }

    /// The next message, of `most` bytes at most: a longer one stays.
    #[inline]
    pub(crate) fn read(&mut self, most: usize, patience: Patience) -> Result<Taken, Error> {
        match self.read_quickly(most) {
            Some(taken) => Ok(taken),
            None => self.slow_read(most, patience),
        }
    }

    /// The next message, if it is there, is to be had without a word to the backend, is of `most` bytes at
    /// most and no active one, and nothing is wrong with it.
    #[inline(always)]
    pub(crate) fn read_quickly(&mut self, most: usize) -> Option<Taken> {
        let taken = self.up.as_deref_mut()?.inbox.read_quickly(most)?;
        self.counts.add_message(taken.len);
        Some(taken)
    }

    #[cold]
    fn slow_read(&mut self, most: usize, patience: Patience) -> Result<Taken, Error> {
        if self.up.is_none() {
            self.connect(patience)?;
        }
        if let Some(taken) = self.take_if_there(most, patience)? {
            return Ok(taken);
        }
        self.read_later(most, patience)
    }

    fn read_later(&mut self, most: usize, patience: Patience) -> Result<Taken, Error> {
        // What was freed is published now: there is time.
        self.publish()?;
        let (wakes, polls) = (self.wakes(), self.polls());
        let plain = self.up()?.inbox.is_plain();
        let mut waiting = Waiting::new(patience, polls);
        loop {
            let step = waiting.step(self.port.context());
            if let Some(taken) = self.read_quickly(most) {
                return Ok(taken);
            }
            // What is wrong with a message is found at the next turn that is another.
            if plain && step == Ok(WaitStep::Poll) {
                continue;
            }
            if let Some(taken) = self.take_if_there(most, patience)? {
                return Ok(taken);
            }
            match step? {
                WaitStep::Poll => {}
                WaitStep::Ask => self.ask(most)?,
                WaitStep::Sleep => {
                    self.ask(most)?;
                    self.say_asleep()?;
                    if let Some(taken) = self.take_if_there(most, patience)? {
                        return Ok(taken);
                    }
                    waiting.sleep(self.port.context(), wakes);
                }
            }
        }
    }

    /// Whether the writer is there. What it has sent before it went is read first.
    fn ask(&mut self, most: usize) -> Result<(), Error> {
        match self.port.still_comes() {
            Err(_) if self.peek(most)?.is_some() => Ok(()),
            other => other,
        }
    }

    /// What the next message is, if it is there.
    pub(crate) fn peek(&mut self, most: usize) -> Result<Option<Notice>, Error> {
        if self.up.is_none() {
            match self.connect(Patience::Poll) {
                Err(Error::Again) => return Ok(None),
                other => other?,
            }
        }
        // Each poll comes here: the context is borrowed, not counted.
        let Some(up) = self.up.as_deref_mut() else { return Ok(None) };
        let Some(notice) = up.inbox.peek(&self.port) else { return Ok(None) };
        // A handler takes a message of any length.
        if notice.len as usize > most && notice.handler == 0 {
            return Err(Error::too_long(notice.len as usize, most));
        }
        Ok(Some(notice))
    }

    /// As [`Reader::peek`], with progress: where the message comes by a store, in some calls only.
    pub(crate) fn peek_on(&mut self, most: usize) -> Result<Option<Notice>, Error> {
        let notice = self.peek(most)?;
        self.peeks = self.peeks.wrapping_add(1);
        if notice.is_some() || self.polls() && self.peeks % PEEKS != 0 {
            return Ok(notice);
        }
        self.port.context().progress()?;
        let there = self.port.still_comes();
        match self.peek(most)? {
            None => there.map(|()| None),
            notice => Ok(notice),
        }
    }

    /// Takes the next message, if it is there.
    #[inline]
    fn take_if_there(&mut self, most: usize, patience: Patience) -> Result<Option<Taken>, Error> {
        let Some(notice) = self.peek(most)? else { return Ok(None) };
        // What the slot says may have changed since its message began to be got.
        let under_way = self.up()?.fetch.taken();
        if let Some(taken) = under_way.filter(|taken| taken.len > most && taken.handler == 0) {
            return Err(Error::too_long(taken.len, most));
        }
        match self.take(notice, patience) {
            Ok(taken) => Ok(Some(taken)),
            Err(fault) => {
                if matches!(fault, Error::Broken(_)) {
                    self.port.break_off(&fault);
                }
                Err(fault)
            }
        }
    }

    fn take(&mut self, notice: Notice, patience: Patience) -> Result<Taken, Error> {
        let Some(Up { ready, inbox, fetch, .. }) = self.up.as_deref_mut() else { return Err(Error::Again) };
        if fetch.taken().is_none() {
            let (taken, offset) = inbox.begin_to_take(notice)?;
            fetch.begin(taken);
            if !notice.is_inline && ready.met.manner.pull && taken.len > 0 {
                fetch.get(&self.port, ready, (offset, taken.len))?;
            }
        }
        fetch.settle(&self.port, ready, patience)?;
        let taken = fetch.finish().ok_or(Error::Again)?;
        inbox.advance();
        self.counts.add_message(taken.len);
        Ok(taken)
    }

    /// Where a block is.
    #[inline]
    pub(crate) fn address(&mut self, block: Block) -> Result<*mut u8, Error> {
        self.up()?.inbox.address(block)
    }

    /// The bytes of a block.
    pub(crate) fn len(&mut self, block: Block) -> Result<usize, Error> {
        self.up()?.inbox.received().find(block).map(|(_, len)| len)
    }

    /// Where a block is, if it is one.
    #[inline(always)]
    pub(crate) fn address_quickly(&self, block: Block) -> Option<*mut u8> {
        self.up.as_deref()?.inbox.address_quickly(block)
    }

    /// Frees a block: it is the writer's again, which learns of it now or with others.
    #[inline]
    pub(crate) fn free(&mut self, block: Block) -> Result<(), Error> {
        match self.free_quickly(block) {
            Some(()) => Ok(()),
            None => self.slow_free(block),
        }
    }

    /// Frees a block of a writer whose memory is mapped, and which takes tags from there.
    #[inline(always)]
    pub(crate) fn free_quickly(&mut self, block: Block) -> Option<()> {
        let Up { inbox, tags, .. } = self.up.as_deref_mut().filter(|up| up.tags.is_direct())?;
        let range = inbox.received_mut().free_held(block)?;
        tags.add_direct(&mut self.counts, range, inbox.is_empty());
        Some(())
    }

    #[cold]
    fn slow_free(&mut self, block: Block) -> Result<(), Error> {
        let Up { inbox, tags, .. } = self.up()?;
        let range = inbox.received_mut().free(block)?;
        if tags.add(range) || !inbox.is_raised() { self.publish() } else { Ok(()) }
    }

    /// Gives the writer all that was freed.
    fn publish(&mut self) -> Result<(), Error> {
        let Some(Up { ready, tags, .. }) = self.up.as_deref_mut() else { return Ok(()) };
        tags.publish(&self.port, ready, &mut self.counts)
    }

    /// Has the writer wake this process, and the next poll see what the writer did not see that for.
    pub(crate) fn say_asleep(&mut self) -> Result<(), Error> {
        if self.mark_asleep()? {
            // The writer may leave its fence to this.
            self.port.context().barrier().heavy();
        }
        Ok(())
    }

    /// Stores the word that has the writer wake this process; `true`: a heavy barrier has to follow, before
    /// the next poll.
    pub(crate) fn mark_asleep(&mut self) -> Result<bool, Error> {
        let Some(writer) = self.up()?.tags.writer() else { return Ok(false) };
        writer.store(0, 1, Relaxed);
        Ok(true)
    }

    /// Whether nothing comes from the writer any more.
    pub(crate) fn is_over(&self) -> bool {
        self.port.still_there().is_err()
    }

    /// Whether the flag of the next message is raised, by a load alone; `false` also where that does not
    /// suffice.
    #[inline(always)]
    pub(crate) fn is_raised(&self) -> bool {
        self.up.as_deref().is_some_and(|up| up.inbox.is_raised())
    }

    /// Whether [`Reader::is_raised`] finds all that comes, without progress.
    pub(crate) fn polls(&self) -> bool {
        self.up.as_deref().is_some_and(|up| up.ready.met.manner.mode == Mode::Store)
    }

    /// Whether the writer makes the descriptor readable, once it was asked to.
    pub(crate) fn wakes(&self) -> bool {
        let up = self.up.as_deref();
        up.is_none_or(|up| up.ready.promise.mapped || up.ready.promise.wakes)
    }

    /// Whether the writer has begun to set the stream up, or will not.
    pub(crate) fn is_begun(&self) -> bool {
        self.up.is_some() || self.port.has_begun()
    }

    /// Whether the writer may begin yet; one that has left the job before counts as one that has begun, and
    /// failed.
    pub(crate) fn may_begin(&self) -> bool {
        self.up.is_none() && self.port.may_begin()
    }

    /// Sends the writer that the group of this end is over for this rank.
    pub(crate) fn say_over(&self, rank: Rank) {
        self.port.say_over(rank);
    }

    /// The rank for which the writer has said so.
    pub(crate) fn over_for(&self) -> Option<Rank> {
        self.port.over_for()
    }

    /// The heap in memory of a device, for kernels; waits for the writer.
    pub(crate) fn on_device(&mut self, patience: Patience) -> Result<OnDevice, Error> {
        if self.up.is_none() {
            self.connect(patience)?;
        }
        let Up { ready, inbox, .. } = self.up()?;
        let (memory, shape) = (ready.on_device.as_ref(), ready.met.shape);
        let memory = memory.ok_or_else(|| Error::Invalid("the heap of this pipe is host memory".into()))?;
        Ok(OnDevice {
            device: memory.device(),
            heap: inbox.heap_base(),
            heap_len: shape.heap,
            granule: shape.granule(),
            numbers: shape.number(0).map(|at| memory.addr() + at),
            slots: shape.slots,
            next: inbox.next(),
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.counts.stats();
        let Some(up) = self.up.as_deref() else { return stats };
        stats.set_up(&up.ready, up.ready.met.manner.mode);
        stats.used = up.inbox.received().bytes();
        stats.free = stats.heap.saturating_sub(stats.used);
        if let Some(heap) = &up.ready.on_device {
            stats.path_why.push_str(&format!("; the heap is memory of device {}", heap.device()));
        }
        stats
    }

    /// Closes the end: the writer's calls fail from now on.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        let _ = self.publish();
        let fetched = match self.up.take() {
            Some(mut up) => up.fetch.settle(&self.port, &up.ready, Patience::for_a(CLOSING)),
            None => Ok(()),
        };
        let fate = if fetched == Err(Error::Again) { Fate::InUse } else { Fate::Back };
        self.port.leave(fate)
    }
}
