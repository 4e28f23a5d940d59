//! What a thread sleeps for, and what a blocking call finds before it sleeps.

use engine::{CntrId, CqId, Domain};
use link_api::RmaLink;

/// What a sleeper sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// An entry of the queue.
    Cq(CqId),
    /// A change from these values of the counter and its errors.
    Cntr(CntrId, u64, u64),
}

impl Watched {
    /// A change of the counter from what it is now.
    pub fn cntr<L: RmaLink>(engine: &Domain<L>, id: CntrId) -> Watched {
        Watched::Cntr(id, engine.cntr_read(id), engine.cntr_readerr(id))
    }

    /// Whether it may come without waking: others write the counter.
    pub(crate) fn is_silent<L: RmaLink>(self, engine: &Domain<L>) -> bool {
        matches!(self, Watched::Cntr(c, ..) if engine.cntr_is_shared(c))
    }

    /// Whether it has not come yet.
    pub(crate) fn is_awaited<L: RmaLink>(self, engine: &Domain<L>) -> bool {
        match self {
            Watched::Cq(cq) => engine.cq_is_empty(cq),
            Watched::Cntr(c, n, errs) => engine.cntr_read(c) == n && engine.cntr_readerr(c) == errs,
        }
    }
}

/// What a poll in [`Runtime::block`](crate::Runtime::block) finds.
#[derive(Clone, Copy, Debug)]
pub enum Step<T> {
    /// The call is over.
    Done(T),
    /// Nothing before this.
    Wait(Watched),
}

/// What a blocking call does once it has polled for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Sleeps.
    Sleep,
    /// Goes on polling, and yields the core in between.
    Yield,
}
