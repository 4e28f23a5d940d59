//! Operations that a counter did not count in time.

use super::deferred_work::{DeferredWork, fail};
use super::opened::Opened;
use crate::core::{Number, RecvOp, Tally};
use crate::types::*;
use crate::work::WorkOp;
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

/// See [`super::Domain::cntr_expire`].
pub(super) fn expire<L: RmaLink>(
    opened: &mut Opened<L>,
    deferred: &mut DeferredWork,
    cntr: CntrId,
) -> Expired {
    let errors = |opened: &Opened<L>| opened.core.cntrs.get(cntr.at()).map(|c| c.get(Number::Errors));
    let before = errors(opened);
    let mut expired = Expired::default();
    end_deferred(opened, deferred, cntr, &mut expired);
    end_receives(opened, cntr, &mut expired);
    end_sends(opened, cntr, &mut expired);
    if errors(opened) == before {
        opened.core.count(Some(cntr), true);
    }
    expired
}

fn end_deferred<L: RmaLink>(
    opened: &mut Opened<L>,
    deferred: &mut DeferredWork,
    cntr: CntrId,
    expired: &mut Expired,
) {
    for work in deferred.take_behind(cntr) {
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
                let (iov, len) = (iov[..].into(), hmem::total(iov));
                let (pattern, ctx, flags, tally) = (*pattern, *ctx, *flags, work.tally());
                fail_receive(opened, *rx, RecvOp { pattern, iov, len, ctx, flags, multi: None, tally });
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

fn fail_receive<L: RmaLink>(opened: &mut Opened<L>, rx: RxId, recv: RecvOp) {
    let ep = opened.completes_calls(rx, None).and_then(|ep| opened.eps.get_mut(ep.at()));
    if let Some(ep) = ep {
        ep.net.link.hint(Hint::ReceiveFrom(None));
        ep.bind.fail_recv(&mut opened.core, recv, Error::Overdue);
    }
}

fn end_receives<L: RmaLink>(opened: &mut Opened<L>, cntr: CntrId, expired: &mut Expired) {
    let all: Vec<RxId> = opened.core.rxs.all().map(|(at, _)| RxId(at)).collect();
    for rx in all {
        // Any endpoint of a shared context may get the message: it counts there.
        let counts = |ep: &EpId| opened.eps.get(ep.at()).is_some_and(|ep| ep.bind.cntrs().recv == Some(cntr));
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
            fail_receive(opened, rx, recv);
        }
    }
}

fn end_sends<L: RmaLink>(opened: &mut Opened<L>, cntr: CntrId, expired: &mut Expired) {
    for (_, ep) in opened.eps.iter_mut() {
        let (sends, left) = ep.counted_in(cntr);
        expired.left += left;
        for send in sends {
            let Some((what, to, ctx)) = ep.sending(send) else { continue };
            // One that its receiver is inside of stays under way, and so does one that is wholly on its way.
            match ep.cancel(&mut opened.core, ctx, &mut Some(send), Error::Overdue) {
                Ok(()) if ep.sending(send).is_none() => expired.note(what, to, ctx),
                _ => expired.left += 1,
            }
        }
    }
}
