//! Notices: messages without bytes, which members of a group send each other beside the parts of operations.

use link_api::RmaLink;

use super::group::{Group, NOTICE};
use super::operation::{self, NOTICE_SENT};
use crate::domain::opened::Opened;
use crate::types::*;

/// A notice that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Notice {
    ep: EpId,
    to: FiAddr,
    tag: u64,
    /// [`FAILED`], [`RESET`], [`WAKE`], or a member from [`ENDED`] or [`REMOVED`] on.
    data: u64,
}

/// Notices that are to be sent.
#[derive(Debug, Default)]
pub(super) struct Notices(Vec<Notice>);

impl Notices {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, group: &Group, number: u64, data: u64, to: impl Fn(usize) -> bool) {
        let (ep, tag) = (group.ep, group.name.notice(number));
        let to = group.members.iter().enumerate().filter(|(rank, _)| *rank != group.rank && to(*rank));
        for (_, to) in to {
            let notice = Notice { ep, to: *to, tag, data };
            // One is enough for a member that takes none: it is stopped.
            if data != WAKE || !self.0.contains(&notice) {
                self.0.push(notice);
            }
        }
    }

    /// An operation has failed here.
    pub(super) fn add_failed(&mut self, group: &Group, number: u64, err: Error) {
        self.add(group, number, if err.gone().is_some() { RESET } else { FAILED }, |_| true);
    }

    /// An operation has failed here, since that member's address was removed. It may be too late to send to
    /// that one: the others do.
    pub(super) fn add_removed(&mut self, group: &Group, number: u64, member: usize) {
        self.add_failed_to(group, number, member);
        self.add(group, number, REMOVED + member as u64, |rank| rank != member);
    }

    /// An operation has failed, as one member alone is to be notified.
    pub(super) fn add_failed_to(&mut self, group: &Group, number: u64, member: usize) {
        self.add(group, number, FAILED, |rank| rank == member);
    }

    /// A member has ended.
    pub(super) fn add_ended(&mut self, group: &Group, member: usize) {
        self.add(group, 0, ENDED + member as u64, |rank| rank != member);
    }

    /// A member that sleeps has something to go on with.
    pub(super) fn add_wake(&mut self, group: &Group, member: usize) {
        self.add(group, 0, WAKE, |rank| rank == member);
    }

    /// Sends them as far as there is room. Returns how many.
    pub(super) fn send<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> usize {
        let before = self.0.len();
        self.0.retain(|n| operation::notify(opened, n.ep, n.to, n.tag, n.data) == Err(Error::Again));
        before - self.0.len()
    }

    /// The endpoint is closed.
    pub(super) fn forget(&mut self, ep: EpId) {
        self.0.retain(|notice| notice.ep != ep);
    }
}

/// A notice: its operation has failed, for another reason than the end of a member, or for that.
const FAILED: u64 = 0;
const RESET: u64 = 1;
/// The sender has published a step of shared memory.
const WAKE: u64 = 2;
/// A member has ended, whose number is what is above this.
const ENDED: u64 = 3;
/// The operation has failed at the sender, which has no address of a member any more, whose number is what is
/// above this.
const REMOVED: u64 = 1 << 32;

/// What a notice says.
pub(super) enum Said {
    /// An operation has failed; and a member that the sender may not have notified.
    Failed(Error, Option<usize>),
    Woken,
    Ended(usize),
}

impl Said {
    pub(super) fn by(data: u64) -> Said {
        let member = |from: u64| usize::try_from(data - from).unwrap_or(usize::MAX);
        match data {
            FAILED => Said::Failed(Error::Io, None),
            RESET => Said::Failed(Error::Reset, None),
            WAKE => Said::Woken,
            ENDED..REMOVED => Said::Ended(member(ENDED)),
            REMOVED.. => Said::Failed(Error::Io, Some(member(REMOVED))),
        }
    }
}

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
    tag & NOTICE != 0 && data.is_some_and(|data| (WAKE..REMOVED).contains(&data))
}
