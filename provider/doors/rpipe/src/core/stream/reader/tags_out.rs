//! What the reader has freed, on its way to the writer.

use crate::core::context::Ready;
use crate::core::control::STATE;
use crate::core::settings::Sync;
use crate::core::stream::port::Port;
use crate::core::stream::stats::Counts;
use crate::core::stream::{Mode, Patience};
use crate::core::tags::{self, Cursor, Frees, Range};
use crate::{Error, Memory};

#[derive(Debug)]
pub(super) struct TagsOut {
    frees: Frees,
    cursor: Cursor,
    /// Freed blocks are published once there are so many of them, or of their granules.
    blocks_most: u32,
    granules_most: u32,
    /// The writer's state and tags, if they are mapped.
    mapped: Option<Memory>,
    /// Tags are stored there.
    direct: bool,
}

impl TagsOut {
    pub(super) fn new(ready: &Ready) -> TagsOut {
        let (shape, manner) = (ready.met.shape, ready.met.manner);
        let mapped = ready.theirs.mapped.clone().filter(|_| manner.mode == Mode::Store);
        TagsOut {
            frees: Frees::default(),
            cursor: Cursor::new(shape.slots),
            blocks_most: (shape.slots / 4).max(1) as u32,
            granules_most: (shape.heap / shape.granule() / 4).max(1) as u32,
            direct: mapped.is_some() && manner.sync == Sync::Deferred,
            mapped,
        }
    }

    /// The writer's state, if it is mapped.
    pub(super) fn writer(&self) -> Option<&Memory> {
        self.mapped.as_ref()
    }

    /// Whether a tag is stored to the writer's memory.
    #[inline(always)]
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// So much was freed that the writer is to know.
    #[inline(always)]
    fn has_many(&self) -> bool {
        self.frees.blocks() >= self.blocks_most || self.frees.granules() >= self.granules_most
    }

    /// Adds a block; whether the writer is to know now.
    #[inline]
    pub(super) fn add(&mut self, range: Range) -> bool {
        self.frees.add(range);
        self.has_many()
    }

    /// The same where tags are stored to the writer's memory: it gets them at once if nothing is to be read,
    /// since it may be waiting.
    #[inline(always)]
    pub(super) fn add_direct(&mut self, counts: &mut Counts, range: Range, is_last: bool) {
        let Some(writer) = &self.mapped else { return };
        if is_last && self.frees.is_empty() {
            tags::publish(writer, STATE, &mut self.cursor, range);
            counts.add_tags(1);
            counts.add_sync();
            return;
        }
        self.frees.add(range);
        if is_last || self.has_many() {
            store(&mut self.frees, &mut self.cursor, (writer, STATE), counts);
        }
    }

    /// Gives the writer all that was freed.
    pub(super) fn publish(&mut self, port: &Port, ready: &Ready, counts: &mut Counts) -> Result<(), Error> {
        if self.frees.is_empty() {
            return Ok(());
        }
        if ready.met.manner.sync == Sync::Immediate || self.mapped.is_some() {
            let to = match &self.mapped {
                Some(writer) if self.direct => (writer, STATE),
                _ => (&ready.mine.memory, ready.met.shape.tags()),
            };
            store(&mut self.frees, &mut self.cursor, to, counts);
            return Ok(());
        }
        counts.add_sync();
        let TagsOut { frees, cursor, .. } = self;
        // One put for as many tags as lie behind each other.
        let mut bytes = Vec::new();
        let (mut first, most) = (cursor.place(), (ready.promise.inject / 8).max(1));
        let put = |first: usize, bytes: &[u8]| {
            let to = (ready.theirs.remote, STATE + 8 * first);
            match port.put_bytes(Patience::Forever, to, bytes, None) {
                // A writer that is gone needs no tags.
                Err(Error::Gone(_)) => Ok(()),
                posted => posted,
            }
        };
        for range in frees.drain() {
            counts.add_tags(1);
            bytes.extend(cursor.tag(range).to_ne_bytes());
            cursor.advance();
            if bytes.len() / 8 == most || cursor.place() == 0 {
                put(first, &bytes)?;
                bytes.clear();
                first = cursor.place();
            }
        }
        if bytes.is_empty() { Ok(()) } else { put(first, &bytes) }
    }
}

/// Stores the tags of all that was freed: to the writer's memory, or to where the writer gets them.
fn store(frees: &mut Frees, cursor: &mut Cursor, (to, at): (&Memory, usize), counts: &mut Counts) {
    counts.add_sync();
    for range in frees.drain() {
        counts.add_tags(1);
        tags::publish(to, at, cursor, range);
    }
}
