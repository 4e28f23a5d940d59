//! Notices: messages without bytes, which members of a group send each other beside the parts of operations.

use super::group::NOTICE;
use super::operation::NOTICE_SENT;
use crate::types::*;

/// A notice that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) ep: EpId,
    pub(super) to: FiAddr,
    pub(super) tag: u64,
    /// [`FAILED`], [`RESET`], [`WAKE`], or a member that has ended, from [`ENDED`] on.
    pub(super) data: u64,
}

/// A notice: its operation has failed, for another reason than the end of a member, or for that.
pub(super) const FAILED: u64 = 0;
pub(super) const RESET: u64 = 1;
/// The sender has published a step of shared memory.
pub(super) const WAKE: u64 = 2;
/// A member has ended, whose number is what is above this.
pub(super) const ENDED: u64 = 3;

/// What receives of notices are posted as.
pub(super) fn notices_of(group: GroupId) -> Ctx {
    Ctx(NOTICE_SENT.0 - 1 - group.at())
}

/// What receives are posted as that fail when their member ends.
pub(super) fn watches_of(group: GroupId) -> Ctx {
    Ctx(NOTICE_SENT.0 - (1 << 33) + group.at())
}

/// The group whose notice, or watch, is posted so.
pub(super) fn group_of(ctx: Ctx) -> Option<(GroupId, bool)> {
    let of = |at: usize| u32::try_from(at).ok().map(GroupId);
    match of((NOTICE_SENT.0 - 1).wrapping_sub(ctx.0)) {
        Some(group) => Some((group, false)),
        None => of(ctx.0.wrapping_sub(watches_of(GroupId(0)).0)).map(|group| (group, true)),
    }
}

/// Whether this is a notice that no member gets before it has joined.
pub(super) fn is_of_joined(tag: u64, data: Option<u64>) -> bool {
    tag & NOTICE != 0 && data.is_some_and(|data| data >= WAKE)
}
