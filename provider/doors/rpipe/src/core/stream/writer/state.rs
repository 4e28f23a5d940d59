//! A writer's end as one of several: what it can do without waiting.

use super::{INLINE, Writer};
use crate::core::stream::{Patience, Stats};
use crate::{Block, Error, Rank};

impl Writer {
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
        self.fold_in_time(Patience::Look)?;
        self.alloc_known(len, 1)
    }

    /// Sets the end up, if the reader's is known by now, and raises flags that are due. An error if the
    /// reader has ended.
    pub(crate) fn connect_now(&mut self) -> Result<bool, Error> {
        match self.connect(Patience::Look) {
            Err(Error::Again) => return Ok(false),
            other => other?,
        }
        self.tend()?;
        Ok(true)
    }

    /// Whether what the reader frees is seen without progress.
    pub(crate) fn polls(&self) -> bool {
        self.up.as_deref().is_some_and(|up| up.mapped.is_some())
    }

    /// Bytes of the reader's heap and its slots, once they are known.
    pub(crate) fn room(&self) -> Option<(usize, usize)> {
        self.up.as_deref().map(|up| (up.shape.heap, up.shape.slots))
    }

    /// What this end has done, and has.
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
        let usage = up.heap.usage();
        (stats.used, stats.free, stats.largest) = (usage.used, usage.free, usage.largest);
        stats.fragmentation = usage.fragmentation;
        (stats.in_slot, stats.injected) = (INLINE, up.inject.most);
        stats.injected_why.clone_from(&up.inject.why);
        if up.direct.is_some() {
            stats.path_why.push_str(&format!("; blocks of more than {INLINE} bytes are the reader's memory"));
        }
        if let Some(on_device) = &up.on_device {
            stats.path_why.push_str(&on_device.told());
        }
        stats
    }

    /// Tells the reader that the group of this end is over for this rank.
    pub(crate) fn say_over(&self, rank: Rank) {
        self.context.lock().say_over(self.no, rank);
    }

    /// The rank for which the reader has said so.
    pub(crate) fn over_for(&self) -> Option<Rank> {
        self.context.lock().over_for(self.no)
    }

    /// Whether the reader has asked to be woken.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn sees_sleep(&self) -> bool {
        use crate::core::slot::Words as _;
        self.up
            .as_deref()
            .is_some_and(|up| up.ready.mine.memory.load(0, std::sync::atomic::Ordering::Relaxed) != 0)
    }
}
