//! A group: the endpoints that call collective operations together, as one of them sees it.
//!
//! All members have the same name for it: a hash of their addresses, in order, and of how often the same
//! ones have joined. The tag of a part has this name and the number of the operation, of which the join is
//! the first. A notice, which has one bit of the tag more, says that the operation failed at its sender, with
//! all that were posted behind it.

use collective::{Hosts, Layers, Shape};
use hmem::Scratch;
use link_api::{GroupName, GroupShape};
use wire::Addr;

use super::shared::{Made, Shared, Then, Went};
use crate::types::*;

/// Bits of an operation's number in a tag.
const NUMBER_BITS: u32 = 24;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// The bit of notices; the ones between are the group's.
pub(super) const NOTICE: u64 = 1 << 63;

/// The name of a group, in its place in a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name(u64);

impl Name {
    /// Of the group that these have joined `nth` times before.
    pub(super) fn new(members: impl Iterator<Item = Addr>, nth: u64) -> Name {
        // FNV-1a, whose steps each member does alike.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut take = |bytes: &[u8]| {
            bytes.iter().for_each(|b| hash = (hash ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
        };
        members.for_each(|addr| take(&addr.encode()));
        take(&nth.to_le_bytes());
        Name(hash << NUMBER_BITS & !NOTICE)
    }

    pub(super) fn tag(self, number: u64) -> u64 {
        self.0 | number & NUMBER
    }

    pub(super) fn notice(self, number: u64) -> u64 {
        NOTICE | self.tag(number)
    }

    /// The tags of all notices: one, and the bits in which they differ.
    pub(super) fn notices(self) -> (u64, u64) {
        (self.notice(0), NUMBER)
    }

    /// Whether a part or a notice with that tag is of this group.
    pub(super) fn is_of(self, tag: u64) -> bool {
        tag & !NOTICE & !NUMBER == self.0
    }
}

/// Whether an operation is the one with this number of a tag, or was posted behind it.
fn is_from(number: u64, first: u64) -> bool {
    number.wrapping_sub(first) & NUMBER <= NUMBER / 2
}

/// How far a join is.
#[derive(Debug, Default)]
pub(super) enum Joining {
    #[default]
    Vote,
    /// Members of several hosts gather which ones share memory, and what the first of each host has made.
    Hosts(Option<(GroupName, Made)>),
    /// The first member broadcasts what it has made; the others wait for that.
    Offer(Option<(GroupName, Made)>),
    Open(GroupName, GroupShape),
    /// Whether all have it is agreed on.
    Have(Option<GroupName>, Option<Made>),
}

/// Between which members the messages of an operation are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    All,
    /// The leader of each host, in an operation of this root; and what is behind them.
    Leaders {
        root: Option<usize>,
        then: Then,
    },
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) ep: EpId,
    pub(super) name: Name,
    /// As receives know them.
    pub(super) members: Vec<FiAddr>,
    pub(super) rank: usize,
    /// What the join agrees on, and how far it is.
    pub(super) vote: Scratch,
    pub(super) joining: Joining,
    /// Which members share memory, if some do and not all.
    pub(super) hosts: Option<Box<Hosts>>,
    /// The memory of all members, or those of this host, and the operations that go by it.
    pub(super) shared: Option<Box<Shared>>,
    /// Members that have ended: what needs more of one by shared memory than is there fails.
    gone: Vec<usize>,
    /// Of the call that joins.
    ctx: Ctx,
    joined: bool,
    /// The number of the next operation.
    next: u64,
    /// Operations under way, the join among them.
    under_way: usize,
    /// From that operation on all fail.
    broken: Option<(u64, Error)>,
}

impl Group {
    pub(super) fn new(
        ep: EpId,
        name: Name,
        members: Vec<FiAddr>,
        rank: usize,
        vote: Scratch,
        ctx: Ctx,
    ) -> Group {
        Group {
            ep,
            name,
            members,
            rank,
            vote,
            joining: Joining::Vote,
            hosts: None,
            shared: None,
            gone: Vec::new(),
            ctx,
            joined: false,
            next: 0,
            under_way: 0,
            broken: None,
        }
    }

    pub(super) fn rank_of(&self, member: FiAddr) -> Option<usize> {
        self.members.iter().position(|m| *m == member)
    }

    /// A member of an operation, by its number there.
    pub(super) fn member(&self, among: Among, number: usize) -> Option<FiAddr> {
        let rank = match among {
            Among::All => number,
            Among::Leaders { root, .. } => self.hosts.as_ref()?.leader(number, root)?,
        };
        self.members.get(rank).copied()
    }

    /// How an operation goes by several hosts' memory, or what is before one that is too long for it.
    pub(super) fn layers(&self, shape: Shape) -> Option<Layers> {
        let count = if Layers::is_for_shorter(&shape) { 0 } else { shape.count };
        let slot = self.shared.as_ref().map_or(0, |shared| shared.slot());
        Layers::new(Shape { count, ..shape }, self.hosts.as_ref()?, slot)
    }

    pub(super) fn is_joined(&self) -> bool {
        self.joined
    }

    /// Whether no operation is under way, and the join is not.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way == 0 && !matches!(self.joining, Joining::Open(..))
    }

    /// Whether operations go by shared memory, or may when the join is over.
    pub(super) fn may_share(&self) -> bool {
        self.shared.is_some() || self.hosts.is_some() || !self.joined
    }

    /// A member has ended.
    pub(super) fn note_gone(&mut self, member: usize) {
        if member < self.members.len() && member != self.rank && !self.gone.contains(&member) {
            self.gone.push(member);
        }
    }

    /// Goes on with the first operation by shared memory.
    pub(super) fn go_on(&mut self) -> Option<Went> {
        self.shared.as_mut().map(|shared| shared.go_on(&self.gone))
    }

    /// Operations under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// An operation begins: its number, and why it fails, if it does.
    pub(super) fn begin(&mut self) -> (u64, Option<Error>) {
        let number = self.next;
        self.next += 1;
        self.under_way += 1;
        (number, self.failure(number))
    }

    /// Why an operation is not to go on.
    pub(super) fn failure(&self, number: u64) -> Option<Error> {
        self.broken.filter(|(first, _)| is_from(number, *first)).map(|(_, err)| err)
    }

    /// An operation is over.
    pub(super) fn end(&mut self) {
        self.under_way -= 1;
    }

    /// How many operations have begun: the number of the next one.
    pub(super) fn begun(&self) -> u64 {
        self.next
    }

    /// An address is called `next` now, or nothing. The member that has none any more.
    pub(super) fn rename(&mut self, at: FiAddr, next: FiAddr) -> Option<usize> {
        let rank = self.rank_of(at)?;
        if next == ADDR_UNSPEC {
            return Some(rank);
        }
        self.members[rank] = next;
        None
    }

    /// All from that operation on fail. Whether that is new.
    pub(super) fn break_from(&mut self, number: u64, err: Error) -> bool {
        let is_new = self.failure(number).is_none();
        if is_new {
            self.broken = Some((number, err));
        }
        is_new
    }

    /// The join is over.
    pub(super) fn join(&mut self, group: GroupId, err: Option<Error>) -> Joined {
        self.joined = err.is_none();
        Joined { group, ctx: self.ctx, err }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> Addr {
        Addr::new(([127, 0, 0, 1], port).into())
    }

    #[test]
    fn a_name_is_of_members_in_order_and_of_one_join() {
        let name = |ports: &[u16], nth| Name::new(ports.iter().map(|p| addr(*p)), nth);
        let all = [name(&[1, 2], 0), name(&[2, 1], 0), name(&[1, 2], 1), name(&[1, 2, 3], 0), name(&[1], 0)];
        for (i, a) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|b| a == b), Some(i));
            assert!(a.is_of(a.tag(77)) && a.is_of(a.notice(NUMBER)));
            let (tag, ignored) = a.notices();
            assert_eq!(tag & !ignored, a.notice(5) & !ignored);
            assert_ne!(tag & !ignored, a.tag(5) & !ignored);
        }
        assert_eq!(name(&[1, 2], 0), name(&[1, 2], 0));
    }

    #[test]
    fn what_fails_is_one_operation_and_those_behind_it() {
        let vote = Scratch::new(8).unwrap();
        let mut group = Group::new(EpId(0), Name::new([addr(1)].into_iter(), 0), vec![0], 0, vote, Ctx(0));
        assert_eq!((group.begin(), group.begin(), group.begin()), ((0, None), (1, None), (2, None)));
        assert!(group.break_from(1, Error::Reset), "notified once");
        assert_eq!((group.failure(0), group.failure(2)), (None, Some(Error::Reset)));
        assert!(!group.break_from(2, Error::Reset));
        assert_eq!(group.begin(), (3, Some(Error::Reset)));
        // Numbers of tags wrap.
        assert!(is_from(5, NUMBER - 1) && !is_from(NUMBER - 1, 5) && is_from(NUMBER + 6, 5));
    }
}
