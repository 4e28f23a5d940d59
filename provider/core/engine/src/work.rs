//! Operations that wait for a counter: FI_TRIGGER and the deferred work queue of fi_trigger(3).

use hmem::{AtomicOp, Datatype};

use crate::core::{Iov, RmaIov, Tally};
use crate::types::*;

/// An operation that starts once a counter reaches a threshold. Everything it names is copied in.
#[derive(Clone, Debug)]
pub struct Work {
    /// What it is cancelled by; zero if it never is.
    pub id: Ctx,
    /// The counter it waits for.
    pub trigger: CntrId,
    /// The value it waits for.
    pub threshold: u64,
    /// Counts when the operation is complete.
    pub completion: Option<CntrId>,
    /// The operation.
    pub op: WorkOp,
}

/// What to do then.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // Few are about at once, and nearly all carry spans.
#[allow(missing_docs)] // The fields are those of the operations' own types.
pub enum WorkOp {
    /// See [`Send`].
    Send { ep: EpId, to: FiAddr, iov: Iov, tag: Option<u64>, data: Option<u64>, ctx: Ctx, flags: OpFlags },
    /// See [`Recv`].
    Recv { rx: RxId, pattern: Pattern, iov: Iov, ctx: Ctx, flags: OpFlags },
    /// See [`Rma`].
    Rma {
        ep: EpId,
        to: FiAddr,
        write: bool,
        iov: Iov,
        remote: RmaIov,
        data: Option<u64>,
        ctx: Ctx,
        flags: OpFlags,
    },
    /// See [`Atomic`].
    Atomic {
        ep: EpId,
        to: FiAddr,
        op: AtomicOp,
        datatype: Datatype,
        operand: Iov,
        compare: Iov,
        result: Iov,
        remote: RmaIov,
        data: Option<u64>,
        ctx: Ctx,
        flags: OpFlags,
    },
    /// Adds to a counter.
    CntrAdd { cntr: CntrId, value: u64 },
    /// Sets a counter.
    CntrSet { cntr: CntrId, value: u64 },
}

impl Work {
    /// The counters that it changes.
    pub(crate) fn changed(&self) -> impl Iterator<Item = CntrId> + use<> {
        let sets = match self.op {
            WorkOp::CntrAdd { cntr, .. } | WorkOp::CntrSet { cntr, .. } => Some(cntr),
            _ => None,
        };
        sets.into_iter().chain(self.completion)
    }

    /// Whether it changes that counter: by what it does, or when it completes.
    pub(crate) fn changes(&self, of: CntrId) -> bool {
        self.changed().any(|cntr| cntr == of)
    }

    /// Deferred work counts in its own counter only, unless a completion of the endpoint is requested
    /// (fi_trigger(3)). An operation without a name is one that the application triggered itself.
    pub(crate) fn tally(&self) -> Tally {
        let flags = match &self.op {
            WorkOp::Send { flags, .. }
            | WorkOp::Recv { flags, .. }
            | WorkOp::Rma { flags, .. }
            | WorkOp::Atomic { flags, .. } => *flags,
            WorkOp::CntrAdd { .. } | WorkOp::CntrSet { .. } => OpFlags::empty(),
        };
        let endpoint = self.id == Ctx(0) || flags.contains(OpFlags::COMPLETION);
        Tally { endpoint, also: self.completion }
    }
}

impl WorkOp {
    /// The endpoint it is for, if it is for one.
    pub(crate) fn ep(&self) -> Option<EpId> {
        match self {
            WorkOp::Send { ep, .. } | WorkOp::Rma { ep, .. } | WorkOp::Atomic { ep, .. } => Some(*ep),
            WorkOp::Recv { .. } | WorkOp::CntrAdd { .. } | WorkOp::CntrSet { .. } => None,
        }
    }

    /// What its completion says of it.
    pub(crate) fn what(&self) -> What {
        match self {
            WorkOp::Send { tag, .. } => What::sent(tag.is_some()),
            WorkOp::Recv { pattern, .. } => {
                What::RECV | if pattern.tag.is_some() { What::TAGGED } else { What::MSG }
            }
            WorkOp::Rma { write, .. } => What::rma(*write),
            WorkOp::Atomic { result, .. } => What::atomic(!result.is_empty()),
            WorkOp::CntrAdd { .. } | WorkOp::CntrSet { .. } => What::empty(),
        }
    }
}
