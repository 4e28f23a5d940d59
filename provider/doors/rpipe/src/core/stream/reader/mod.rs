//! The reader's end.

mod device;
mod fetch;
mod idle;
mod state;

pub use device::OnDevice;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::post::post;
use super::wait::{self, Turn, Waiting};
use super::{CLOSING, Mode, Patience, Stats};
use crate::core::context::{Context, End, Fate, Ready};
use crate::core::control::{Class, STATE, Shape};
use crate::core::memory::Line;
use crate::core::received::Received;
use crate::core::settings::Sync;
use crate::core::slot::{self, INLINE, Notice, Words as _};
use crate::core::tags::{self, Frees, Turn as TagTurn};
use crate::{Block, Error, Memory, Rank};

/// A message that was read: its block is the reader's until it is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub block: Block,
    /// Bytes.
    pub len: usize,
    /// Active message: the handler's number; else 0.
    pub handler: u16,
}

/// Of so many looks that a program makes by itself one makes progress, where the others need none to find a
/// message.
const PEEKS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) context: Arc<Context>,
    no: u32,
    peer: Rank,
    up: Option<Box<Up>>,
    messages: u64,
    bytes: u64,
    tags: u64,
    syncs: u64,
    peeks: u32,
}

/// What there is once the writer's end is known.
#[derive(Debug)]
struct Up {
    ready: Ready,
    shape: Shape,
    mode: Mode,
    /// Slots, tags and heap, and where that begins.
    memory: Memory,
    heap_at: usize,
    /// Where the heap begins, in memory of whatever kind.
    heap_base: usize,
    /// The writer's state and tags, if they are mapped.
    mapped: Option<Memory>,
    /// The number of the next message, from 0.
    next: u64,
    received: Received,
    frees: Frees,
    tag: TagTurn,
    /// Tells of freed blocks once there are so many of them, or of their granules.
    blocks_most: u32,
    granules_most: u32,
    op: u32,
    /// Notified mode: messages that are there.
    notified: u64,
    /// A message is where its flag is, or where the flag says.
    plain: bool,
    /// Tags are stored to the writer's memory.
    direct: bool,
    /// The next message, of which something is got, or was, in a call whose time was over.
    fetching: Option<Fetching>,
}

/// A message that is being taken.
#[derive(Debug)]
struct Fetching {
    taken: Taken,
    /// Operations that have not ended.
    ops: Vec<u32>,
    /// Where the word is to be stored that one of them fetches.
    word: Option<usize>,
    /// Of one that has failed.
    fault: Option<Error>,
}

impl Reader {
    pub(crate) fn new(
        context: &Arc<Context>,
        class: Class,
        peer: Rank,
        shape: Shape,
        device: Option<i32>,
    ) -> Result<Reader, Error> {
        let mut inner = context.lock();
        let key = inner.next_key(class, peer, context.rank());
        let no = inner.enter(key, End::Reader { shape, device })?;
        drop(inner);
        let context = context.clone();
        Ok(Reader { context, no, peer, up: None, messages: 0, bytes: 0, tags: 0, syncs: 0, peeks: 0 })
    }

    /// Begins to set the stream up, without waiting.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        self.context.lock().begin(self.no)
    }

    #[cold]
    fn connect(&mut self, patience: Patience) -> Result<(), Error> {
        let ready = wait::until_ready(&self.context, self.no, patience)?;
        self.up = Some(Box::new(Up::new(ready)?));
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
        let up = self.up.as_deref_mut()?;
        let slot = up.memory.line(up.shape.slot(up.next)).filter(|_| up.plain)?;
        if !slot::is_raised(slot, 0, up.next + 1) {
            return None;
        }
        let notice = slot::read(slot, 0);
        let len = notice.len as usize;
        let is_short = !notice.is_inline || len <= INLINE;
        if len > most || u64::from(notice.len) > up.shape.width || !is_short || notice.handler != 0 {
            return None;
        }
        let block = Block { granule: notice.granule, generation: notice.generation };
        let offset = up.received.take_quickly(block, notice.len, notice.granules)?;
        if notice.is_inline {
            copy_words(slot, &up.memory, up.heap_at + offset, len);
        }
        up.next += 1;
        self.messages += 1;
        self.bytes += u64::from(notice.len);
        Some(Taken { block, len, handler: notice.handler })
    }

    #[cold]
    fn slow_read(&mut self, most: usize, patience: Patience) -> Result<Taken, Error> {
        if self.up.is_none() {
            self.connect(patience)?;
        }
        if let Some(taken) = self.look(most, patience)? {
            return Ok(taken);
        }
        self.read_later(most, patience)
    }

    fn read_later(&mut self, most: usize, patience: Patience) -> Result<Taken, Error> {
        // What was freed is told now: there is time.
        self.tell()?;
        let wakes = self.up()?.ready.promise.mapped || self.up()?.ready.promise.wakes;
        let plain = self.up()?.plain;
        let polls = self.up()?.mode == Mode::Store;
        let mut waiting = Waiting::new(patience, polls);
        loop {
            let turn = waiting.turn(&self.context);
            if let Some(taken) = self.read_quickly(most) {
                return Ok(taken);
            }
            // What is wrong with a message is found at the next turn that is another.
            if plain && turn == Ok(Turn::Look) {
                continue;
            }
            if let Some(taken) = self.look(most, patience)? {
                return Ok(taken);
            }
            match turn? {
                Turn::Look => {}
                Turn::Ask => self.ask(most)?,
                Turn::Sleep => {
                    self.ask(most)?;
                    self.say_asleep()?;
                    if let Some(taken) = self.look(most, patience)? {
                        return Ok(taken);
                    }
                    waiting.sleep(&self.context, wakes);
                }
            }
        }
    }

    /// Whether the writer is there. What it has sent before it went is read first.
    fn ask(&mut self, most: usize) -> Result<(), Error> {
        let there = self.context.lock().still_comes(self.no);
        match there {
            Err(_) if self.peek(most)?.is_some() => Ok(()),
            other => other,
        }
    }

    /// What the next message is, if it is there.
    pub(crate) fn peek(&mut self, most: usize) -> Result<Option<Notice>, Error> {
        if self.up.is_none() {
            match self.connect(Patience::Look) {
                Err(Error::Again) => return Ok(None),
                other => other?,
            }
        }
        // Each poll comes here: the context is borrowed, not counted.
        let Some(up) = self.up.as_deref_mut() else { return Ok(None) };
        let at = up.shape.slot(up.next);
        let is_there = match up.mode {
            Mode::Notified => up.is_notified(&self.context, self.no),
            _ => slot::is_raised(&up.memory, at, up.next + 1),
        };
        if !is_there {
            return Ok(None);
        }
        let notice = slot::read(&up.memory, at);
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
        self.context.progress()?;
        let there = self.context.lock().still_comes(self.no);
        match self.peek(most)? {
            None => there.map(|()| None),
            notice => Ok(notice),
        }
    }

    /// Takes the next message, if it is there.
    #[inline]
    fn look(&mut self, most: usize, patience: Patience) -> Result<Option<Taken>, Error> {
        let Some(notice) = self.peek(most)? else { return Ok(None) };
        // What the slot says may have changed since its message began to be got.
        let under_way = self.up()?.fetching.as_ref().map(|fetching| &fetching.taken);
        if let Some(taken) = under_way.filter(|taken| taken.len > most && taken.handler == 0) {
            return Err(Error::too_long(taken.len, most));
        }
        match self.take(notice, patience) {
            Ok(taken) => Ok(Some(taken)),
            Err(fault) => {
                if matches!(fault, Error::Broken(_)) {
                    self.context.lock().break_off(self.no, &fault);
                }
                Err(fault)
            }
        }
    }

    fn take(&mut self, notice: Notice, patience: Patience) -> Result<Taken, Error> {
        if self.up()?.fetching.is_none() {
            self.begin_to_take(notice)?;
        }
        self.await_fetched(patience)?;
        let up = self.up()?;
        let Some(Fetching { taken, .. }) = up.fetching.take() else { return Err(Error::Again) };
        up.next += 1;
        self.messages += 1;
        self.bytes += taken.len as u64;
        Ok(taken)
    }

    fn begin_to_take(&mut self, notice: Notice) -> Result<(), Error> {
        let up = self.up()?;
        let at = up.shape.slot(up.next);
        let block = Block { granule: notice.granule, generation: notice.generation };
        let len = notice.len as usize;
        let inline_most = if up.shape.is_on_device() { 0 } else { INLINE };
        if u64::from(notice.len) > up.shape.width || notice.is_inline && len > inline_most {
            return Err(Error::Broken(
                "the writer has sent a message that is longer than the pipe is wide".into(),
            ));
        }
        let offset = up.received.take(block, notice.len, notice.granules)?;
        let to = up.heap_at + offset;
        let taken = Taken { block, len, handler: notice.handler };
        up.fetching = Some(Fetching { taken, ops: Vec::new(), word: None, fault: None });
        if let Some(slot) = up.memory.line(at).filter(|_| notice.is_inline) {
            copy_words(slot, &up.memory, to, len);
        } else if up.ready.met.manner.pull && len > 0 {
            return self.fetch(offset, len);
        }
        Ok(())
    }

    /// Where a block is.
    #[inline]
    pub(crate) fn address(&mut self, block: Block) -> Result<*mut u8, Error> {
        let up = self.up()?;
        let (offset, _) = up.received.find(block)?;
        Ok(std::ptr::with_exposed_provenance_mut(up.heap_base + offset))
    }

    /// The bytes of a block.
    pub(crate) fn len(&mut self, block: Block) -> Result<usize, Error> {
        self.up()?.received.find(block).map(|(_, len)| len)
    }

    /// Where a block is, if it is one.
    #[inline(always)]
    pub(crate) fn address_quickly(&self, block: Block) -> Option<*mut u8> {
        let up = self.up.as_deref()?;
        let (offset, _) = up.received.held(block)?;
        Some(std::ptr::with_exposed_provenance_mut(up.heap_base + offset))
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
        let up = self.up.as_deref_mut().filter(|up| up.direct)?;
        let writer = up.mapped.as_ref()?;
        let range = up.received.free_held(block)?;
        // With nothing to read the writer may be waiting.
        let is_last =
            up.memory.line(up.shape.slot(up.next)).is_some_and(|slot| !slot::is_raised(slot, 0, up.next + 1));
        if is_last && up.frees.is_empty() {
            tags::publish(writer, STATE, &mut up.tag, range);
            self.tags += 1;
            self.syncs += 1;
            return Some(());
        }
        up.frees.add(range);
        if is_last || up.has_many() {
            self.publish();
        }
        Some(())
    }

    #[cold]
    fn slow_free(&mut self, block: Block) -> Result<(), Error> {
        let up = self.up()?;
        let range = up.received.free(block)?;
        up.frees.add(range);
        let (many, at) = (up.has_many(), up.shape.slot(up.next));
        if many || up.mode == Mode::Notified || !slot::is_raised(&up.memory, at, up.next + 1) {
            return self.tell();
        }
        Ok(())
    }

    /// Tells the writer of all that was freed.
    fn tell(&mut self) -> Result<(), Error> {
        let (no, peer) = (self.no, self.peer);
        let Some(up) = self.up.as_deref_mut().filter(|up| !up.frees.is_empty()) else { return Ok(()) };
        if up.ready.met.manner.sync == Sync::Immediate || up.mapped.is_some() {
            self.publish();
            return Ok(());
        }
        let mut frees = std::mem::take(&mut up.frees);
        self.syncs += 1;
        // One put for as many tags as lie behind each other.
        let mut bytes = Vec::new();
        let (mut first, most) = (up.tag.place(), (up.ready.promise.inject / 8).max(1));
        let remote = up.ready.theirs.remote;
        let put = |first: usize, bytes: &[u8]| {
            let to = (remote, STATE + 8 * first);
            let posted = post(&self.context, no, Patience::Forever, |inner| {
                inner.backend.put_bytes(peer, to, bytes, None)
            });
            // Of a writer that is gone nothing more is to be told.
            if matches!(posted, Err(Error::Gone(_))) { Ok(()) } else { posted }
        };
        for range in frees.drain() {
            self.tags += 1;
            bytes.extend(up.tag.tag(range).to_ne_bytes());
            up.tag.advance();
            if bytes.len() / 8 == most || up.tag.place() == 0 {
                put(first, &bytes)?;
                bytes.clear();
                first = up.tag.place();
            }
        }
        up.frees = frees;
        if bytes.is_empty() { Ok(()) } else { put(first, &bytes) }
    }

    /// Stores the tags of all that was freed, to the writer's memory, or to where the writer gets them.
    fn publish(&mut self) {
        let Some(up) = self.up.as_deref_mut() else { return };
        let (to, at) = match &up.mapped {
            Some(writer) if up.direct => (writer, STATE),
            _ => (&up.memory, up.shape.tags()),
        };
        self.syncs += 1;
        for range in up.frees.drain() {
            self.tags += 1;
            tags::publish(to, at, &mut up.tag, range);
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        let mut stats = Stats {
            messages: self.messages,
            bytes: self.bytes,
            tags: self.tags,
            syncs: self.syncs,
            ..Stats::default()
        };
        let Some(up) = self.up.as_deref() else { return stats };
        stats.set_up(&up.ready, up.mode);
        stats.used = up.received.bytes;
        stats.free = stats.heap.saturating_sub(stats.used);
        if let Some(heap) = &up.ready.on_device {
            stats.path_why.push_str(&format!("; the heap is memory of device {}", heap.device()));
        }
        stats
    }

    /// Closes the end: the writer's calls fail from now on.
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        let _ = self.tell();
        let fetched = if self.up.is_some() { self.await_fetched(Patience::for_a(CLOSING)) } else { Ok(()) };
        self.up = None;
        let fate = if fetched == Err(Error::Again) { Fate::InUse } else { Fate::Back };
        self.context.lock().leave(self.no, fate)
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
