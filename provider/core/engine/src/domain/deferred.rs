//! Operations that wait for a counter.

use super::Domain;
use crate::core::Number;
use crate::types::*;
use crate::work::{Work, WorkOp};
use link_api::RmaLink;

impl<L: RmaLink> Domain<L> {
    /// Queues an operation for when its counter is there, which may be now.
    pub fn queue_work(&mut self, work: Work) {
        self.work.push(work);
        self.run_work();
    }

    /// Takes back an operation that has not started.
    pub fn cancel_work(&mut self, id: Ctx) -> Result<(), Error> {
        let at = self.work.iter().position(|w| w.id == id).ok_or(Error::NotFound)?;
        self.work.remove(at);
        Ok(())
    }

    /// Takes back all operations that have not started.
    pub fn flush_work(&mut self) {
        self.work.clear();
    }

    /// Starts every operation whose counter is there, by threshold and then by age. Each may make
    /// another's.
    pub(super) fn run_work(&mut self) {
        loop {
            self.core.counted = false;
            let mut ready = Vec::new();
            let mut at = 0;
            while let Some(work) = self.work.get(at) {
                let reached = self.cntr_read(work.trigger).saturating_add(self.cntr_readerr(work.trigger));
                if reached < work.threshold {
                    at += 1;
                } else {
                    ready.push(self.work.remove(at));
                }
            }
            ready.sort_by_key(|work| work.threshold);
            ready.retain(|work| match self.start(work) {
                Ok(()) => false,
                Err(Error::Again) => true,
                Err(err) => {
                    log::warn!("a deferred operation failed to start: {err}");
                    self.fail_work(work, err);
                    false
                }
            });
            // What found no room stays first.
            ready.append(&mut self.work);
            self.work = ready;
            if !self.core.counted {
                return;
            }
        }
    }

    /// Completes an operation that could not be started: no call is there to return the error.
    fn fail_work(&mut self, work: &Work, err: Error) {
        let (ep, to, ctx, what, tag) = match &work.op {
            WorkOp::Send { ep, to, ctx, tag, .. } => (
                ep,
                *to,
                *ctx,
                What::SEND | if tag.is_some() { What::TAGGED } else { What::MSG },
                tag.unwrap_or(0),
            ),
            WorkOp::Rma { ep, to, ctx, write, .. } => {
                (ep, *to, *ctx, What::RMA | if *write { What::WRITE } else { What::READ }, 0)
            }
            WorkOp::Atomic { ep, to, ctx, result, .. } => {
                (ep, *to, *ctx, What::ATOMIC | if result.is_empty() { What::WRITE } else { What::READ }, 0)
            }
            _ => return self.core.count(work.completion, true),
        };
        if let Some(ep) = self.eps.get_mut(ep.at()) {
            ep.bind.fail_start(&mut self.core, ctx, what, tag, work.tally(), err);
            ep.directed().not_started(&mut self.core, to, err);
        }
    }

    fn start(&mut self, work: &Work) -> Result<(), Error> {
        let tally = work.tally();
        let core = &mut self.core;
        match &work.op {
            WorkOp::Send { ep, to, iov, tag, data, ctx, flags } => {
                let op = Send { to: *to, iov, tag: *tag, data: *data, ctx: *ctx, flags: *flags };
                let ep = self.eps.get_mut(ep.at()).ok_or(Error::NotFound)?;
                ep.send(core, &op, tally)?;
                // No call is there to go on with it later.
                if let Some(mut leaving) = ep.take_leaving() {
                    while !ep.has_left(core, &mut leaving) {}
                }
                Ok(())
            }
            WorkOp::Recv { rx, pattern, iov, ctx, flags } => {
                let op = Recv { pattern: *pattern, iov, ctx: *ctx, flags: *flags };
                self.post_recv(*rx, &op, tally)
            }
            WorkOp::Rma { ep, to, write, iov, remote, data, ctx, flags } => {
                let op = Rma { to: *to, write: *write, iov, remote, data: *data, ctx: *ctx, flags: *flags };
                self.eps.get_mut(ep.at()).ok_or(Error::NotFound)?.rma(core, &op, tally)
            }
            WorkOp::Atomic { ep, to, op, datatype, operand, compare, result, remote, data, ctx, flags } => {
                let op = Atomic {
                    to: *to,
                    op: *op,
                    datatype: *datatype,
                    operand,
                    compare,
                    result,
                    remote,
                    data: *data,
                    ctx: *ctx,
                    flags: *flags,
                };
                self.eps.get_mut(ep.at()).ok_or(Error::NotFound)?.atomic(core, &op, tally)
            }
            WorkOp::CntrAdd { cntr, value } => {
                core.cntrs.get_mut(cntr.at()).ok_or(Error::NotFound)?.add(Number::Value, *value);
                core.counted = true;
                core.count(work.completion, false);
                Ok(())
            }
            WorkOp::CntrSet { cntr, value } => {
                core.cntrs.get_mut(cntr.at()).ok_or(Error::NotFound)?.set(Number::Value, *value);
                core.counted = true;
                core.count(work.completion, false);
                Ok(())
            }
        }
    }
}
