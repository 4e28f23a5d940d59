//! Taking in what the reader has freed.

use super::Writer;
use crate::core::control::STATE;
use crate::core::settings::Sync;
use crate::core::stream::Patience;
use crate::core::stream::post::{await_op, post, token};
use crate::core::tags;
use crate::{Error, Get};

impl Writer {
    /// Takes in what the reader has freed.
    pub(super) fn fold(&mut self, patience: Patience) -> Result<(), Error> {
        if self.up.as_deref().is_some_and(|up| up.over) {
            self.context.lock().still_there(self.no)?;
        }
        if self.options.sync == Sync::Immediate && self.up()?.mapped.is_none() {
            self.fetch_tags(patience)?;
        }
        let immediate = self.options.sync == Sync::Immediate;
        let up = self.up.as_deref_mut().ok_or(Error::Again)?;
        let at = if immediate { up.shape.tags() } else { STATE };
        let mut taken = 0;
        loop {
            let range = match (&up.mapped, immediate) {
                (Some(theirs), true) => tags::take(theirs, at, &mut up.tag),
                _ => tags::take(&up.ready.mine.memory, STATE, &mut up.tag),
            };
            let Some(range) = range else { break };
            taken += 1;
            match up.heap.free_run(range.from, range.len) {
                Ok(blocks) => up.out -= blocks,
                Err(fault) => {
                    (up.over, up.quick) = (true, 0);
                    self.context.lock().break_off(self.no, &fault);
                    return Err(fault);
                }
            }
        }
        self.tags += taken;
        self.syncs += u64::from(taken > 0);
        Ok(())
    }

    /// The same; what is not known within the time is taken in by a later call, and what is known may do.
    pub(super) fn fold_in_time(&mut self, patience: Patience) -> Result<(), Error> {
        match self.fold(patience) {
            Err(Error::Again) => Ok(()),
            other => other,
        }
    }

    /// Gets the reader's tags into the place of those that would be put.
    fn fetch_tags(&mut self, patience: Patience) -> Result<(), Error> {
        if self.up()?.fetching.is_some() {
            // Of a call whose time was over.
            self.await_tags(patience)?;
        }
        let (no, peer) = (self.no, self.peer);
        let up = self.up()?;
        let op = up.next_op();
        let get = Get {
            from: peer,
            remote: (up.ready.theirs.remote, up.shape.tags()),
            to: (up.ready.mine.id, STATE),
            len: 8 * up.shape.slots,
            token: token(no, op),
        };
        post(&self.context, no, patience, |inner| inner.backend.get(&get))?;
        self.up()?.fetching = Some(op);
        self.await_tags(patience)
    }

    /// Waits for what may still come to this end's memory.
    pub(super) fn await_begun(&mut self, patience: Patience) -> Result<(), Error> {
        while let Some(op) = self.up()?.inject.begun.last().copied() {
            // Also one that has failed has ended.
            if await_op(&self.context, self.no, op, patience) == Err(Error::Again) {
                return Err(Error::Again);
            }
            self.up()?.inject.begun.pop();
        }
        self.await_tags(patience)
    }

    fn await_tags(&mut self, patience: Patience) -> Result<(), Error> {
        let Some(op) = self.up()?.fetching else { return Ok(()) };
        let ended = await_op(&self.context, self.no, op, patience);
        if ended != Err(Error::Again) {
            self.up()?.fetching = None;
        }
        ended.map(drop)
    }
}
