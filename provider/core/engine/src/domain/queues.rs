//! Completion queues and counters.

use hmem::{Span, Words};

use super::Domain;
use crate::core::{Cntr, Cq, Number};
use crate::types::*;
use crate::work::WorkOp;
use link_api::RmaLink;

impl<L: RmaLink> Domain<L> {
    /// Opens a completion queue: posts are refused while `size` entries stand unread, and what
    /// completes all the same is kept.
    pub fn cq_open(&mut self, size: usize) -> CqId {
        CqId(self.core.cqs.insert(Cq::new(size)))
    }

    /// Closes a queue that no endpoint is bound to.
    pub fn cq_close(&mut self, cq: CqId) -> Result<(), Error> {
        match self.core.cqs.get(cq.at()) {
            None => Err(Error::NotFound),
            Some(q) if q.users > 0 => Err(Error::Busy),
            Some(_) => {
                self.core.cqs.remove(cq.at());
                Ok(())
            }
        }
    }

    /// Takes up to `most` successes off a queue, each shown with its number from 0 on; returns how
    /// many. A failure is in the way of what is behind it until [`Domain::cq_error`] removes it.
    /// Makes no progress.
    #[inline(always)]
    pub fn cq_take(&mut self, cq: CqId, most: usize, mut each: impl FnMut(usize, &Completion)) -> usize {
        let Some(cq) = self.core.cqs.get_mut(cq.at()) else { return 0 };
        let mut n = 0;
        while n < most {
            match cq.entries.front() {
                Some(c) if c.err.is_none() => each(n, c),
                _ => break,
            }
            cq.entries.drop_front();
            n += 1;
        }
        n
    }

    /// Takes the failure off the head of a queue, if one is there.
    pub fn cq_error(&mut self, cq: CqId) -> Option<Completion> {
        let entries = &mut self.core.cqs.get_mut(cq.at())?.entries;
        let failed = *entries.front()?;
        failed.err?;
        entries.drop_front();
        Some(failed)
    }

    /// Whether a queue has nothing to tell.
    #[inline]
    pub fn cq_is_empty(&self, cq: CqId) -> bool {
        self.core.cqs.get(cq.at()).is_none_or(|q| q.entries.len() == 0)
    }

    /// Opens a counter.
    pub fn cntr_open(&mut self) -> CntrId {
        CntrId(self.core.cntrs.insert(Cntr::new()))
    }

    /// Opens a counter whose numbers lie in memory that others may write, too: completions in the first 8
    /// bytes, failures in the second, with what they are. The memory stays until the counter is closed.
    /// [`Error::Invalid`]: it is not 16 bytes that are aligned to 8 and that the CPU can load and store.
    ///
    /// What others write is noticed by a look, and by progress where operations wait for the counter; it
    /// wakes nothing.
    pub fn cntr_open_at(&mut self, memory: Span) -> Result<CntrId, Error> {
        let words = Words::of(memory).ok_or(Error::Invalid)?;
        Ok(CntrId(self.core.cntrs.insert(Cntr::at(words))))
    }

    /// Whether others may write a counter, so that none can sleep until it changes.
    pub fn cntr_is_shared(&self, c: CntrId) -> bool {
        self.core.cntrs.get(c.at()).is_some_and(Cntr::is_shared)
    }

    /// Closes a counter that nothing is bound to.
    pub fn cntr_close(&mut self, c: CntrId) -> Result<(), Error> {
        let waited = self.work.iter().any(|w| {
            let changes =
                matches!(w.op, WorkOp::CntrAdd { cntr, .. } | WorkOp::CntrSet { cntr, .. } if cntr == c);
            changes || w.trigger == c || w.completion == Some(c)
        });
        match self.core.cntrs.get(c.at()) {
            None => Err(Error::NotFound),
            Some(q) if q.users > 0 || waited => Err(Error::Busy),
            Some(_) => {
                self.core.cntrs.remove(c.at());
                Ok(())
            }
        }
    }

    /// How many operations have completed. Makes no progress.
    pub fn cntr_read(&self, c: CntrId) -> u64 {
        self.core.cntrs.get(c.at()).map_or(0, |c| c.get(Number::Value))
    }

    /// How many have failed.
    pub fn cntr_readerr(&self, c: CntrId) -> u64 {
        self.core.cntrs.get(c.at()).map_or(0, |c| c.get(Number::Errors))
    }

    fn cntr_edit(&mut self, c: CntrId, edit: impl FnOnce(&mut Cntr)) {
        if let Some(c) = self.core.cntrs.get_mut(c.at()) {
            edit(c);
            self.core.counted = true;
        }
        self.run_work();
    }

    /// Adds to a counter.
    pub fn cntr_add(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.add(Number::Value, v));
    }

    /// Sets a counter.
    pub fn cntr_set(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.set(Number::Value, v));
    }

    /// Adds to a counter's failures.
    pub fn cntr_adderr(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.add(Number::Errors, v));
    }

    /// Sets a counter's failures.
    pub fn cntr_seterr(&mut self, c: CntrId, v: u64) {
        self.cntr_edit(c, |c| c.set(Number::Errors, v));
    }
}
