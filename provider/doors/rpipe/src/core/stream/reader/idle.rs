//! A reader's end with nothing to read: looks that change nothing, and the word that has the writer wake this
//! process.

use std::sync::atomic::Ordering::Relaxed;

use super::Reader;
use crate::core::slot::{self, Words as _};
use crate::core::stream::Mode;
use crate::{Error, Rank};

impl Reader {
    /// Tells the writer to wake this process, and has the next look see what the writer did not see that for.
    pub(crate) fn say_asleep(&mut self) -> Result<(), Error> {
        if self.mark_asleep()? {
            // The writer may leave its fence to this.
            self.context.barrier.heavy();
        }
        Ok(())
    }

    /// Stores the word that has the writer wake this process; `true`: a heavy barrier has to follow, before
    /// the next look.
    pub(crate) fn mark_asleep(&mut self) -> Result<bool, Error> {
        let Some(writer) = &self.up()?.mapped else { return Ok(false) };
        writer.store(0, 1, Relaxed);
        Ok(true)
    }

    /// Whether nothing comes from the writer any more.
    pub(crate) fn is_over(&self) -> bool {
        self.context.lock().still_there(self.no).is_err()
    }

    /// Whether the flag of the next message is raised, by a load alone; `false` also where that does not
    /// tell.
    #[inline(always)]
    pub(crate) fn is_raised(&self) -> bool {
        let Some(up) = self.up.as_deref() else { return false };
        up.mode != Mode::Notified
            && up
                .memory
                .line(up.shape.slot(up.next))
                .is_some_and(|slot| slot::is_raised(slot, 0, up.next + 1))
    }

    /// Whether [`Reader::is_raised`] finds all that comes, without progress.
    pub(crate) fn polls(&self) -> bool {
        self.up.as_deref().is_some_and(|up| up.mode == Mode::Store)
    }

    /// Whether the writer makes the descriptor readable, once it was told to.
    pub(crate) fn wakes(&self) -> bool {
        let up = self.up.as_deref();
        up.is_none_or(|up| up.ready.promise.mapped || up.ready.promise.wakes)
    }

    /// Whether the writer has begun to set the stream up, or will not.
    pub(crate) fn is_begun(&self) -> bool {
        self.up.is_some() || self.context.lock().has_begun(self.no)
    }

    /// Whether the writer may begin yet; one that has left the job before counts as one that has begun, and
    /// failed.
    pub(crate) fn may_begin(&self) -> bool {
        self.up.is_none() && self.context.lock().may_begin(self.no)
    }

    /// Tells the writer that the group of this end is over for this rank.
    pub(crate) fn say_over(&self, rank: Rank) {
        self.context.lock().say_over(self.no, rank);
    }

    /// The rank for which the writer has said so.
    pub(crate) fn over_for(&self) -> Option<Rank> {
        self.context.lock().over_for(self.no)
    }
}
