//! The writer's end.

mod device;
mod fold;
mod state;
mod up;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::compiler_fence;

use super::on_device::OnDevice;
use super::wait::{self, Turn, Waiting};
use super::{CLOSING, Mode, Patience, inject};
use crate::core::context::{Context, End, Fate, Ready};
use crate::core::control::{Class, Shape};
use crate::core::settings::Sync;
use crate::core::slot::{self, INLINE, Notice, Words as _};
use crate::core::tags::Turn as TagTurn;
use crate::{ALIGN_MOST, Block, Error, Heap, Memory, Policy, Rank};
use hmem::Span;

/// Blocks that are allocated between two looks at what the reader has freed, of `QUICK_BYTES` or less; of
/// longer ones fewer.
const QUICK: usize = 16;
const QUICK_BYTES: usize = 1024;

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
    pub(crate) context: Arc<Context>,
    pub(super) no: u32,
    pub(super) peer: Rank,
    options: Options,
    pub(super) up: Option<Box<Up>>,
    messages: u64,
    bytes: u64,
    tags: u64,
    syncs: u64,
}

/// What there is once the reader's end is known.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) ready: Ready,
    pub(super) shape: Shape,
    pub(super) mode: Mode,
    pub(super) heap: Heap,
    /// Blocks that are held or sent.
    out: usize,
    /// Until 0 blocks are allocated without a look at what the reader has freed; there are slots for as many.
    /// Tags are taken in early, so that the same few blocks, which both processors have at hand, are used
    /// again; and not each time, for the line that they are in is the reader's.
    quick: usize,
    /// A call has failed for a reason that may hold for all that follow.
    over: bool,
    /// The longest block.
    most: usize,
    /// Where the program finds short blocks, and where all begin that are put: a heap of the same length.
    pub(super) local: Memory,
    pub(super) local_at: usize,
    /// Where the blocks that the program finds there begin, in memory of whatever kind.
    local_base: usize,
    /// What a device has part in.
    on_device: Option<Box<OnDevice>>,
    /// Where the heap begins in the reader's region.
    pub(super) heap_at: usize,
    /// The reader's region, if it is mapped; and if messages are all that has to be stored there.
    mapped: Option<Memory>,
    direct: Option<Memory>,
    /// The next message's number.
    pub(super) flag: u64,
    tag: TagTurn,
    /// This process takes part in membarrier(2), and the reader uses it: no fence is needed here.
    fenceless: bool,
    op: u32,
    /// Messages whose flag waits for puts, by the operations that they wait for.
    pub(super) waiting: VecDeque<Unflagged>,
    /// The operation that gets tags, if a call has not waited for its end.
    fetching: Option<u32>,
    /// Messages behind their slot of up to so many bytes are copied by the path.
    pub(super) inject: inject::Chosen,
}

/// A message whose bytes are not known to be visible yet.
#[derive(Debug)]
pub(super) struct Unflagged {
    pub(super) ops: Vec<u32>,
    pub(super) flag: u64,
}

impl Writer {
    pub(crate) fn new(
        context: &Arc<Context>,
        class: Class,
        peer: Rank,
        options: Options,
    ) -> Result<Writer, Error> {
        let mut inner = context.lock();
        let key = inner.next_key(class, context.rank(), peer);
        let Options { width, mode, sync, pull, .. } = options;
        let no = inner.enter(key, End::Writer { width, asked: mode, sync, pull })?;
        drop(inner);
        let context = context.clone();
        Ok(Writer { context, no, peer, options, up: None, messages: 0, bytes: 0, tags: 0, syncs: 0 })
    }

    /// Begins to set the stream up, without waiting.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.context.lock().begin(self.no)
    }

    /// Waits until the reader's end is known.
    #[inline]
    pub(crate) fn connect(&mut self, patience: Patience) -> Result<(), Error> {
        if self.up.is_some() { Ok(()) } else { self.slow_connect(patience) }
    }

    #[cold]
    fn slow_connect(&mut self, patience: Patience) -> Result<(), Error> {
        let ready = wait::until_ready(&self.context, self.no, patience)?;
        let inject = inject::choose(&self.context, self.no, self.peer, &ready, patience);
        self.up = Some(Box::new(Up::new(&self.context, ready, self.options, inject)?));
        Ok(())
    }

    fn up(&mut self) -> Result<&mut Up, Error> {
        self.up.as_deref_mut().ok_or_else(|| Error::Stale("nothing was allocated in this pipe yet".into()))
    }

    /// Allocates a block.
    #[inline]
    pub(crate) fn alloc(&mut self, len: usize, align: usize, patience: Patience) -> Result<Block, Error> {
        match self.alloc_quickly(len, align) {
            Some(block) => Ok(block),
            None => self.slow_alloc(len, align, patience),
        }
    }

    /// Allocates a block, if that takes no look at what the reader has freed.
    #[inline(always)]
    pub(crate) fn alloc_quickly(&mut self, len: usize, align: usize) -> Option<Block> {
        let up = self.up.as_deref_mut()?;
        let cost = 1 + len / QUICK_BYTES;
        if up.quick < cost || len > up.most || !align.is_power_of_two() || align > ALIGN_MOST {
            return None;
        }
        let block = up.heap.alloc(len, align)?;
        up.quick -= cost;
        up.out += 1;
        Some(block)
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
        let up = self.up()?;
        let room = up.shape.slots - up.out;
        if room == 0 {
            return Ok(None);
        }
        let Some(block) = up.heap.alloc(len, align) else { return Ok(None) };
        up.out += 1;
        up.quick = if deferred { QUICK.min(room - 1) } else { 0 };
        Ok(Some(block))
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
        let heap = self.up.as_deref().map_or(usize::MAX, |up| up.shape.heap);
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
        let mapped = self.up()?.mapped.is_some();
        let mut waiting = Waiting::new(patience, mapped);
        loop {
            self.fold_in_time(patience)?;
            let up = self.up()?;
            if up.out < up.shape.slots {
                if let Some(block) = up.heap.alloc(len, align) {
                    up.out += 1;
                    up.quick = 0;
                    return Ok(block);
                }
            }
            if !up.heap.has_sent() {
                let usage = up.heap.usage();
                return Err(Error::Full(format!(
                    "{len} bytes find no room, and the reader has none to free: {} of {} bytes are this end's, the longest \
                     free block has {}; send or free some, or make the heap longer (STRAIT_RPIPE_HEAP) or the slots more \
                     (STRAIT_RPIPE_SLOTS)",
                    usage.used, up.shape.heap, usage.largest
                )));
            }
            let turn = waiting.turn(&self.context).map_err(|e| match e {
                Error::Again if patience == Patience::Look => {
                    Error::Full("the reader has not freed enough yet; try again".into())
                }
                other => other,
            })?;
            match turn {
                Turn::Look => {}
                Turn::Ask => self.tend()?,
                Turn::Sleep => {
                    self.tend()?;
                    waiting.sleep(&self.context, false);
                }
            }
        }
    }

    /// Asks whether the peer is there, and raises flags that are due.
    fn tend(&mut self) -> Result<(), Error> {
        self.context.lock().still_there(self.no)?;
        match self.raise_due(Patience::Look) {
            Err(Error::Again) => Ok(()),
            other => other,
        }
    }

    /// Where the program finds a block: it may write there until it sends it.
    #[inline]
    pub(crate) fn address(&mut self, block: Block) -> Result<*mut u8, Error> {
        if let Some(address) = self.address_quickly(block) {
            return Ok(address);
        }
        let (state, _) = self.up()?.heap.find(block)?;
        Err(Error::Stale(format!("the block is {state:?} by this end's book: it is the reader's now")))
    }

    #[inline(always)]
    pub(crate) fn address_quickly(&self, block: Block) -> Option<*mut u8> {
        let up = self.up.as_deref()?;
        let (len, _) = up.heap.held(block)?;
        let offset = up.heap.offset(block.granule);
        match &up.direct {
            Some(theirs) if len > INLINE => theirs.place(up.heap_at + offset),
            _ => Some(std::ptr::with_exposed_provenance_mut(up.local_base + offset)),
        }
    }

    /// The bytes of a block that this end holds.
    pub(crate) fn len(&mut self, block: Block) -> Result<usize, Error> {
        self.up()?.heap.find(block).map(|(_, len)| len)
    }

    /// Frees a block that was not sent.
    #[inline]
    pub(crate) fn free(&mut self, block: Block) -> Result<(), Error> {
        match self.free_quickly(block) {
            Some(()) => Ok(()),
            None => self.up()?.heap.free(block),
        }
    }

    #[inline(always)]
    pub(crate) fn free_quickly(&mut self, block: Block) -> Option<()> {
        let up = self.up.as_deref_mut()?;
        up.heap.free_held(block)?;
        up.out -= 1;
        Some(())
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
        let up = self.up.as_deref_mut()?;
        let slot = up.direct.as_ref()?.line(up.shape.slot(up.flag))?;
        let (all, granules) = up.heap.held(block)?;
        let len = len.unwrap_or(all);
        if len > all {
            return None;
        }
        up.heap.send_held(block);
        let from = up.local_at + up.heap.offset(block.granule);
        let notice = notice(block, all, len, granules, handler);
        let words = if notice.is_inline { len.div_ceil(8) } else { 0 };
        up.flag += 1;
        slot::publish(slot, 0, notice, (0..words).map(|n| up.local.load(from + 8 * n, Relaxed)), up.flag);
        self.messages += 1;
        self.bytes += len as u64;
        if !up.fenceless {
            ipc::fence::full_fence();
        }
        // The reader's word that it sleeps is loaded behind the flag.
        compiler_fence(SeqCst);
        let sleeps = up.ready.mine.memory.line(0).is_some_and(|state| state.load(0, Relaxed) != 0);
        Some(sleeps || self.messages % 256 == 0)
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
        let up = self
            .up
            .as_deref_mut()
            .ok_or_else(|| Error::Stale("nothing was allocated in this pipe yet".into()))?;
        let (all, granules) = up.heap.send(block)?;
        let len = len.unwrap_or(all);
        if len > all {
            up.heap.unsend(block);
            return Err(Error::TooLong(format!("{len} bytes of a block of {all}: allocate more")));
        }
        if handler != 0 && up.shape.number(0).is_some() {
            up.heap.unsend(block);
            return Err(Error::Invalid(
                "kernels wait for messages of this pipe, and handle no active ones".into(),
            ));
        }
        let (on_device, mut notice) = (up.on_device.is_some(), notice(block, all, len, granules, handler));
        let put = if on_device {
            notice.is_inline &= !up.shape.is_on_device();
            self.store(notice, from)
        } else {
            self.put(block, notice, patience)
        };
        if put == Err(Error::Again) || on_device && put.is_err() {
            self.up()?.heap.unsend(block);
            return put;
        }
        self.messages += 1;
        self.bytes += len as u64;
        if on_device { self.see_whether_it_sleeps() } else { put }
    }

    /// The reader sleeps, or it is time to see what else there is.
    #[cold]
    pub(crate) fn see_to_it(&mut self) -> Result<(), Error> {
        let seen =
            if self.up()?.ready.mine.memory.load(0, Relaxed) != 0 { self.wake() } else { self.look_up() };
        if let (Err(_), Some(up)) = (&seen, self.up.as_deref_mut()) {
            (up.over, up.quick) = (true, 0);
        }
        seen
    }

    fn wake(&mut self) -> Result<(), Error> {
        self.up()?.ready.mine.memory.store(0, 0, Relaxed);
        let mut inner = self.context.lock();
        let _ = inner.backend.wake(self.peer);
        drop(inner);
        // What is written is written, also if the reader has read it and left by now: the next call tells.
        self.context.progress()
    }

    fn look_up(&mut self) -> Result<(), Error> {
        self.context.progress()?;
        self.context.lock().still_there(self.no)
    }

    /// From now on blocks are chosen by this policy.
    pub(crate) fn set_policy(&mut self, policy: Policy) -> Result<(), Error> {
        self.up.as_deref_mut().map_or(Ok(()), |up| up.heap.set_policy(policy))?;
        self.options.policy = policy;
        Ok(())
    }

    pub(crate) fn options(&self) -> Options {
        self.options
    }

    /// Closes the end: the reader gets what was sent, and then learns of it.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        let in_use = self.up.is_some() && self.await_begun(Patience::for_a(CLOSING)) == Err(Error::Again);
        if self.up.is_some() && self.options.sync == Sync::Deferred {
            let _ = self.fold(Patience::Look);
        }
        let up = self.up.take();
        let fate = match up.as_deref() {
            _ if in_use => Fate::InUse,
            Some(up) if up.ready.met.manner.pull && up.heap.has_sent() => Fate::Wanted,
            Some(up) if up.mode != Mode::Store => Fate::Reached,
            _ => Fate::Back,
        };
        drop(up);
        self.context.lock().leave(self.no, fate)
    }
}

#[inline(always)]
fn notice(block: Block, all: usize, len: usize, granules: u32, handler: u16) -> Notice {
    let Block { granule, generation } = block;
    Notice { granule, generation, is_inline: all <= INLINE, handler, len: len as u32, granules }
}
