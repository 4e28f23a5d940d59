//! What a registration is, and what a peer reaches by it.

use arrayvec::ArrayVec;
use wire::MAX_SEGS;

use super::Iov;
use crate::config::MrId;
use crate::types::*;

#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) iov: Iov,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) key: u64,
    pub(crate) remote_read: Option<CntrId>,
    pub(crate) remote_write: Option<CntrId>,
}

/// The registrations that an access of a peer's is to.
pub(crate) type Mrs = ArrayVec<MrId, MAX_SEGS>;

/// Counters of the registrations that one operation reaches, each once.
pub(crate) type Bound = ArrayVec<CntrId, { 2 * MAX_SEGS }>;

/// Memory a peer may reach.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) iov: Iov,
    pub(crate) len: usize,
    pub(crate) cntrs: Bound,
    pub(crate) mrs: Mrs,
}
