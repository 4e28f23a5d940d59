//! Deferred work: operations that start when a counter reaches a threshold (FI_QUEUE_WORK and FI_TRIGGER of
//! fi_trigger(3)).

use std::collections::{BTreeMap, BTreeSet};

use super::opened::Opened;
use crate::core::{Cntr, Core, Number};
use crate::endpoint::Failed;
use crate::types::*;
use crate::work::{Work, WorkOp};
use link_api::RmaLink;

/// Where an operation stands: by threshold, and then by age.
type Place = (u64, u64);

/// The operations that have not started.
#[derive(Debug, Default)]
pub(super) struct DeferredWork {
    /// By triggering counter.
    waiting: BTreeMap<CntrId, BTreeMap<Place, Work>>,
    /// Counters that the next run reads whether a call has changed them or not: work was queued for them, an
    /// operation found no room, or others may write them.
    polled: Vec<CntrId>,
    /// How many operations were queued so far.
    age: u64,
    /// How many operations runs have compared with their counters.
    #[cfg(test)]
    compared: usize,
}

impl DeferredWork {
    /// Whether no operation waits.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues an operation for the next run.
    pub(super) fn queue(&mut self, work: Work) {
        self.age += 1;
        self.insert((work.threshold, self.age), work);
    }

    fn insert(&mut self, place: Place, work: Work) {
        self.polled.push(work.trigger);
        self.waiting.entry(work.trigger).or_default().insert(place, work);
    }

    /// Takes back the oldest operation of that name.
    pub(super) fn cancel(&mut self, id: Ctx) -> Result<Work, Error> {
        let named = self.waiting.values().flatten().filter(|(_, work)| work.id == id);
        let oldest = named.min_by_key(|((_, age), _)| *age).map(|(place, work)| (work.trigger, *place));
        let (trigger, place) = oldest.ok_or(Error::NotFound)?;
        let of = self.waiting.get_mut(&trigger).ok_or(Error::NotFound)?;
        let taken = of.remove(&place).ok_or(Error::NotFound)?;
        if of.is_empty() {
            self.waiting.remove(&trigger);
        }
        Ok(taken)
    }

    /// Takes back all operations.
    pub(super) fn clear(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.waiting).into_values().flat_map(BTreeMap::into_values).collect()
    }

    /// Takes back operations that are not to stay.
    pub(super) fn retain(&mut self, stays: impl Fn(&Work) -> bool) -> Vec<Work> {
        let mut taken = Vec::new();
        self.waiting.retain(|_, of| {
            let places: Vec<Place> = of.iter().filter(|(_, w)| !stays(w)).map(|(at, _)| *at).collect();
            taken.extend(places.iter().filter_map(|at| of.remove(at)));
            !of.is_empty()
        });
        taken
    }

    /// Takes back the operations that wait for that counter or count in it, and all that wait for a counter
    /// in which one of these counts, also where other operations count in it. `counts`: the counters in which
    /// an operation counts.
    pub(super) fn take_behind(&mut self, cntr: CntrId, counts: impl Fn(&Work) -> Vec<CntrId>) -> Vec<Work> {
        let mut taken = self.retain(|work| work.trigger != cntr && !counts(work).contains(&cntr));
        let mut seen = BTreeSet::from([cntr]);
        let mut at = 0;
        while let Some(work) = taken.get(at) {
            for next in counts(work) {
                if seen.insert(next) {
                    let of = self.waiting.remove(&next).into_iter();
                    taken.extend(of.flat_map(BTreeMap::into_values));
                }
            }
            at += 1;
        }
        taken
    }

    /// Whether an operation waits for that counter, or changes it.
    pub(super) fn names(&self, cntr: CntrId) -> bool {
        self.waiting.contains_key(&cntr)
            || self.waiting.values().flatten().any(|(_, work)| work.changes(cntr))
    }

    /// Takes the operations whose counters have reached their thresholds, by threshold and then by age. It
    /// reads the counters that have changed since the last call, and of each compares the operations that
    /// start and one more.
    fn take_due(&mut self, core: &mut Core) -> Vec<(Place, Work)> {
        let mut due = Vec::new();
        let mut read = std::mem::take(&mut self.polled);
        read.append(&mut core.changed);
        read.sort_unstable();
        read.dedup();
        for id in read {
            let Some(of) = self.waiting.get_mut(&id) else { continue };
            let cntr = core.cntrs.get_mut(id.at());
            let reached =
                cntr.as_ref().map_or(0, |c| c.get(Number::Value).saturating_add(c.get(Number::Errors)));
            while let Some(first) = of.first_entry() {
                #[cfg(test)]
                {
                    self.compared += 1;
                }
                if first.key().0 > reached {
                    break;
                }
                due.push(first.remove_entry());
            }
            if of.is_empty() {
                self.waiting.remove(&id);
            } else if let Some(cntr) = cntr {
                cntr.arm();
                if cntr.is_shared() {
                    self.polled.push(id);
                }
            }
        }
        due.sort_by_key(|(place, _)| *place);
        due
    }

    /// Starts every operation whose counter has reached its threshold, by threshold and then by age. Each may
    /// change the counter of another. What finds no room is tried again by the next run.
    pub(super) fn run<L: RmaLink>(&mut self, opened: &mut Opened<L>) {
        loop {
            for (place, work) in self.take_due(&mut opened.core) {
                match start(opened, &work) {
                    Ok(()) => {}
                    Err(Error::Again) => {
                        opened.core.cntrs.get_mut(work.trigger.at()).into_iter().for_each(Cntr::arm);
                        self.insert(place, work);
                    }
                    Err(err) => {
                        log::warn!("a deferred operation failed to start: {err}");
                        fail(opened, &work, err);
                    }
                }
            }
            if opened.core.changed.is_empty() {
                return;
            }
        }
    }
}

/// Completes an operation that could not be started: no call is there to return the error.
pub(super) fn fail<L: RmaLink>(opened: &mut Opened<L>, work: &Work, err: Error) {
    let (to, ctx, tag) = match &work.op {
        WorkOp::Send { to, ctx, tag, .. } => (*to, *ctx, tag.unwrap_or(0)),
        WorkOp::Rma { to, ctx, .. } | WorkOp::Atomic { to, ctx, .. } => (*to, *ctx, 0),
        _ => return opened.core.count(work.completion, true),
    };
    if let Some(ep) = work.op.ep().and_then(|ep| opened.eps.get_mut(ep.at())) {
        let failed = Failed { ctx, what: work.op.what(), tag, to };
        ep.bind.fail_start(&mut opened.core, failed, work.tally(), err);
        ep.directed().not_started(&mut opened.core, to, err);
    }
}

/// Starts an operation.
fn start<L: RmaLink>(opened: &mut Opened<L>, work: &Work) -> Result<(), Error> {
    let tally = work.tally();
    let core = &mut opened.core;
    match &work.op {
        WorkOp::Send { ep, to, iov, tag, data, ctx, flags } => {
            let op = Send { to: *to, iov, tag: *tag, data: *data, ctx: *ctx, flags: *flags };
            let ep = opened.eps.get_mut(ep.at()).ok_or(Error::NotFound)?;
            ep.send(core, &op, tally)?;
            // No call is there to go on with it later.
            if let Some(mut leaving) = ep.take_leaving() {
                while !ep.has_left(core, &mut leaving) {}
            }
            Ok(())
        }
        WorkOp::Recv { rx, pattern, iov, ctx, flags } => {
            let op = Recv { pattern: *pattern, iov, ctx: *ctx, flags: *flags };
            opened.recv(*rx, &op, tally)
        }
        WorkOp::Rma { ep, to, write, iov, remote, data, ctx, flags } => {
            let op = Rma { to: *to, write: *write, iov, remote, data: *data, ctx: *ctx, flags: *flags };
            opened.eps.get_mut(ep.at()).ok_or(Error::NotFound)?.rma(core, &op, tally)
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
            opened.eps.get_mut(ep.at()).ok_or(Error::NotFound)?.atomic(core, &op, tally)
        }
        WorkOp::CntrAdd { cntr, value } => {
            core.change(*cntr, |c| c.add(Number::Value, *value)).ok_or(Error::NotFound)?;
            core.count(work.completion, false);
            Ok(())
        }
        WorkOp::CntrSet { cntr, value } => {
            core.change(*cntr, |c| c.set(Number::Value, *value)).ok_or(Error::NotFound)?;
            core.count(work.completion, false);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// As many operations as `works`, for so many counters, are queued; one counter is raised by 1. Which
    /// thresholds that reached, and how many operations were compared for it.
    fn raise(works: usize, counters: usize) -> (Vec<u64>, usize) {
        let mut core = Core::new(Config { virt_addr: true, rma_order: false });
        let all: Vec<CntrId> = (0..counters).map(|_| CntrId(core.cntrs.insert(Cntr::new()))).collect();
        let mut deferred = DeferredWork::default();
        // The largest threshold is queued first.
        for n in (0..works).rev() {
            let (trigger, threshold) = (all[n % counters], 1 + (n / counters) as u64);
            let op = WorkOp::CntrAdd { cntr: trigger, value: 1 };
            deferred.queue(Work { id: Ctx(0), trigger, threshold, completion: None, op });
            assert!(deferred.take_due(&mut core).is_empty());
        }
        let before = deferred.compared;
        core.count(Some(all[counters / 2]), false);
        let due = deferred.take_due(&mut core);
        assert!(due.iter().all(|(_, work)| work.trigger == all[counters / 2]));
        // What does not change is not read.
        let after = deferred.compared;
        assert!(deferred.take_due(&mut core).is_empty());
        assert_eq!(deferred.compared, after);
        (due.iter().map(|(place, _)| place.0).collect(), after - before)
    }

    #[test]
    fn a_counter_that_is_raised_costs_the_same_however_much_work_is_queued() {
        for (works, counters) in [(10, 1), (10_000, 1), (20, 10), (10_000, 1_000)] {
            assert_eq!(raise(works, counters), (vec![1], 2), "{works} operations, {counters} counters");
        }
    }
}
