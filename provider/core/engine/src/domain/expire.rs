//! Operations that a counter did not count in time.

use super::deferred_work::{DeferredWork, fail};
use super::opened::Opened;
use crate::core::{Number, RecvOp, Tally};
use crate::types::*;
use crate::work::{Work, WorkOp};
use link_api::{Hint, RmaLink};

/// What became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// So many have failed with [`Error::Overdue`].
    pub failed: usize,
    /// So many are under way: only their peers end them.
    pub left: usize,
    /// One of those that have failed: what it is, its peer and its context. Of several the first that was to
    /// start, or else a receive, or else a send.
    pub first: Option<(What, FiAddr, Ctx)>,
}

impl Expired {
    fn note(&mut self, what: What, to: FiAddr, ctx: Ctx) {
        self.failed += 1;
        self.first.get_or_insert((what, to, ctx));
    }
}

/// Operations of a counter that are being ended, by calls of [`super::Domain::cntr_expire`].
#[derive(Debug)]
pub struct Expiring {
    cntr: CntrId,
    /// The counter's failures before. `None`: there is no such counter.
    errors: Option<u64>,
    /// Sends that are to be taken back.
    sends: Vec<(EpId, Cancelling)>,
    expired: Expired,
}

/// Ends what no peer is inside of.
pub(super) fn begin<L: RmaLink>(
    opened: &mut Opened<L>,
    deferred: &mut DeferredWork,
    cntr: CntrId,
) -> Expiring {
    let errors = opened.core.cntrs.get(cntr.at()).map(|c| c.get(Number::Errors));
    let mut expired = Expired::default();
    end_deferred(opened, deferred, cntr, &mut expired);
    end_receives(opened, cntr, &mut expired);
    let mut sends = Vec::new();
    for (_, ep) in opened.eps.iter_mut() {
        let (of, left) = ep.counted_in(cntr);
        expired.left += left;
        sends.extend(of.into_iter().map(|send| (ep.id, send)));
    }
    Expiring { cntr, errors, sends, expired }
}

impl Expiring {
    /// Takes sends back. [`Error::Busy`]: receivers of some are inside an access, and they stay for the next
    /// call.
    pub(super) fn end_sends<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> Result<(), Error> {
        let Expiring { sends, expired, .. } = self;
        sends.retain(|&(id, send)| {
            let Some(ep) = opened.eps.get_mut(id.at()) else { return false };
            let Some((what, to, ctx)) = ep.sending(send) else { return false };
            match ep.cancel(&mut opened.core, ctx, &mut Some(send), Error::Overdue) {
                Ok(true) => expired.note(what, to, ctx),
                Err(Error::Busy) => return true,
                // One that its receiver is inside of stays under way, and so does one that is wholly on its
                // way. It may have ended in the call.
                _ if ep.sending(send).is_some() => expired.left += 1,
                _ => {}
            }
            false
        });
        if sends.is_empty() { Ok(()) } else { Err(Error::Busy) }
    }

    /// Has every wait for the counter pass. `left`: how much else is under way.
    pub(super) fn finish<L: RmaLink>(mut self, opened: &mut Opened<L>, until: u64, left: usize) -> Expired {
        let now = opened.core.cntrs.get(self.cntr.at());
        let now = now.map(|c| (c.get(Number::Errors), c.get(Number::Value)));
        if now.is_some_and(|(errors, value)| Some(errors) == self.errors && value < until) {
            opened.core.count(Some(self.cntr), true);
        }
        self.expired.left += left;
        self.expired
    }
}

/// The counters in which an operation counts.
fn counted_by<L: RmaLink>(opened: &Opened<L>, work: &Work) -> Vec<CntrId> {
    let mut all: Vec<CntrId> = work.changed().collect();
    if work.tally().endpoint {
        let bound = |ep: &EpId| opened.eps.get(ep.at()).and_then(|ep| ep.bind.cntr_of(work.op.what()));
        match &work.op {
            // Any endpoint of a shared context may get the message: it counts there.
            WorkOp::Recv { rx, .. } => {
                let eps = opened.core.rxs.get(rx.at()).map_or(&[][..], |rx| &rx.eps);
                all.extend(eps.iter().filter_map(bound));
            }
            op => all.extend(op.ep().as_ref().and_then(bound)),
        }
    }
    all
}

fn end_deferred<L: RmaLink>(
    opened: &mut Opened<L>,
    deferred: &mut DeferredWork,
    cntr: CntrId,
    expired: &mut Expired,
) {
    for work in deferred.take_behind(cntr, |work| counted_by(opened, work)) {
        let (to, ctx) = match &work.op {
            WorkOp::Send { to, ctx, .. } | WorkOp::Rma { to, ctx, .. } | WorkOp::Atomic { to, ctx, .. } => {
                (*to, *ctx)
            }
            WorkOp::Recv { pattern, ctx, .. } => (pattern.src, *ctx),
            WorkOp::CntrAdd { .. } | WorkOp::CntrSet { .. } => (ADDR_UNSPEC, work.id),
        };
        expired.note(work.op.what(), to, ctx);
        match &work.op {
            WorkOp::Recv { rx, pattern, iov, ctx, flags } => {
                let (pattern, ctx, flags, tally) = (*pattern, *ctx, *flags, work.tally());
                let recv = RecvOp { pattern, iov: iov[..].into(), ctx, flags, multi: None, tally };
                fail_receive(opened, *rx, recv, cntr);
            }
            WorkOp::CntrAdd { cntr, .. } | WorkOp::CntrSet { cntr, .. } => {
                // A device may wait for the counter that it would have changed.
                opened.core.forget(Tally { endpoint: false, also: Some(*cntr) }, None);
                fail(opened, &work, Error::Overdue);
            }
            _ => fail(opened, &work, Error::Overdue),
        }
    }
}

/// Fails a receive, of a shared context at an endpoint with that counter if there is one.
fn fail_receive<L: RmaLink>(opened: &mut Opened<L>, rx: RxId, recv: RecvOp, cntr: CntrId) {
    let counts = |ep: &EpId| receives_in(opened, *ep, cntr);
    let eps = opened.core.rxs.get(rx.at()).map_or(&[][..], |rx| &rx.eps);
    let ep = eps.iter().copied().find(counts).or_else(|| opened.completes_calls(rx, None));
    if let Some(ep) = ep.and_then(|ep| opened.eps.get_mut(ep.at())) {
        ep.net.link.hint(Hint::ReceiveFrom(None));
        ep.bind.fail_recv(&mut opened.core, recv, Error::Overdue);
    }
}

/// Whether receives of that endpoint count in that counter.
fn receives_in<L: RmaLink>(opened: &Opened<L>, ep: EpId, cntr: CntrId) -> bool {
    opened.eps.get(ep.at()).is_some_and(|ep| ep.bind.cntrs().recv == Some(cntr))
}

fn end_receives<L: RmaLink>(opened: &mut Opened<L>, cntr: CntrId, expired: &mut Expired) {
    let all: Vec<RxId> = opened.core.rxs.all().map(|(at, _)| RxId(at)).collect();
    for rx in all {
        // Any endpoint of a shared context may get the message: it counts there.
        let counts = |ep: &EpId| receives_in(opened, *ep, cntr);
        let bound = opened.core.rxs.get(rx.at()).is_some_and(|rx| rx.eps.iter().any(counts));
        let is_counted = |recv: &RecvOp| {
            let tally = recv.tally;
            !recv.flags.contains(OpFlags::PART) && (tally.also == Some(cntr) || (tally.endpoint && bound))
        };
        let Some(context) = opened.core.rxs.get_mut(rx.at()) else { continue };
        let mut taken = context.tagged.unpost_all(is_counted);
        taken.extend(context.plain.unpost_all(is_counted));
        for recv in taken {
            let what = What::RECV | if recv.pattern.tag.is_some() { What::TAGGED } else { What::MSG };
            expired.note(what, recv.pattern.src, recv.ctx);
            fail_receive(opened, rx, recv, cntr);
        }
    }
}
