//! The join of a group: its members agree on the name, and whether they share memory.
//!
//! The first operation of a group is an allreduce of what keeps members from either. If nothing does, the
//! first member makes memory and broadcasts its name; the others request it, and an allreduce says whether
//! all have it. Where one has not, operations go by messages.

use collective::{Kind, Schedule, Shape};
use hmem::{AtomicOp, Datatype, Scratch};
use link_api::{Channel, GroupLink, GroupName, GroupShape, MOST_MEMBERS, Opening, PeerId, RmaLink};

use super::Collectives;
use super::group::{Group, Joining, Made};
use super::notices::watches_of;
use super::operation::{self, Memory};
use super::shared::Shared;
use crate::domain::opened::Opened;
use crate::types::*;

/// A member's endpoint has joined the same members by that name.
const TAKEN: u64 = 1;
/// A member has no memory to share with all, or is not to.
const APART: u64 = 2;
/// Bytes of what the first member broadcasts: a name, and how long a slot is; 0: there is no memory.
const NAMED: usize = 24;

/// What is found at the end of an operation of a join.
enum Then {
    Joined(Option<Shared>),
    Failed(Error),
    Next(Joining, Kind, [u64; 3]),
    Wait(Joining),
}

/// The numbers of the members, as the link has them.
fn peers<L: RmaLink>(opened: &mut Opened<L>, group: &Group) -> Option<Vec<PeerId>> {
    let ep = opened.eps.get_mut(group.ep.at())?;
    group.members.iter().map(|member| ep.net.routed(*member)).collect()
}

/// What this endpoint's link says of the memory of groups.
fn with_link<L: RmaLink, T>(
    opened: &mut Opened<L>,
    ep: EpId,
    call: impl FnOnce(&mut dyn GroupLink) -> T,
) -> Option<T> {
    let mut groups = opened.eps.get_mut(ep.at())?.net.link.groups()?;
    Some(call(&mut *groups))
}

impl Group {
    fn shape(&self, slot: usize) -> GroupShape {
        GroupShape { members: self.members.len(), rank: self.rank, slot }
    }

    /// What keeps this member from the join, as the first operation agrees on.
    pub(super) fn objections<L: RmaLink>(&self, opened: &mut Opened<L>, taken: bool, slot: usize) -> u64 {
        let others = peers(opened, self).filter(|_| self.members.len() <= MOST_MEMBERS && slot > 0);
        let shares = others.is_some_and(|peers| {
            let of_others = peers.iter().enumerate().filter(|(rank, _)| *rank != self.rank);
            let all = |link: &mut dyn GroupLink| of_others.clone().all(|(_, peer)| link.shares(*peer));
            peers.len() > 1 && with_link(opened, self.ep, all).unwrap_or(false)
        });
        (u64::from(taken) * TAKEN) | (u64::from(!shares) * APART)
    }

    fn log(&self, why: &str) {
        log::warn!(
            "a group of {} endpoints has no shared memory, and uses messages: {why}",
            self.members.len()
        );
    }

    /// The first member makes the memory.
    fn make<L: RmaLink>(&self, opened: &mut Opened<L>, slot: usize) -> Option<(GroupName, Made)> {
        let (shape, peers) = (self.shape(slot), peers(opened, self)?);
        match with_link(opened, self.ep, |link| link.create(shape, &peers))? {
            Ok((name, memory)) => Some((name, (shape, memory))),
            Err(why) => {
                self.log(&why.to_string());
                None
            }
        }
    }

    /// An operation of the join is over, and all members have `words`.
    fn next<L: RmaLink>(&mut self, opened: &mut Opened<L>, words: [u64; 3], slot: usize) -> Then {
        match std::mem::take(&mut self.joining) {
            Joining::Vote if words[0] & TAKEN != 0 => Then::Failed(Error::KeyInUse),
            Joining::Vote if words[0] & APART != 0 => Then::Joined(None),
            Joining::Vote => {
                let made = if self.rank == 0 { self.make(opened, slot) } else { None };
                let name = made.as_ref().map_or([0; 3], |(name, _)| [name.maker, name.number, slot as u64]);
                Then::Next(Joining::Offer(made), Kind::Broadcast, name)
            }
            Joining::Offer(_) if words[2] == 0 => Then::Joined(None),
            Joining::Offer(Some((name, made))) => Then::have(name, Some(made)),
            Joining::Offer(None) => {
                let [maker, number, slot] = words;
                let (name, shape) = (GroupName { maker, number }, self.shape(slot as usize));
                if shape.is_valid() { Then::Wait(Joining::Open(name, shape)) } else { Then::have(name, None) }
            }
            // It does not end while it is waited for.
            Joining::Open(..) => Then::Failed(Error::Io),
            Joining::Have(name, made) => {
                with_link(opened, self.ep, |link| link.withdraw(name));
                match made {
                    Some((shape, memory)) if words[0] == 0 => Then::Joined(Some(Shared::new(memory, shape))),
                    _ => Then::Joined(None),
                }
            }
        }
    }

    /// Polls for memory that another member has made.
    fn open<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> Option<Then> {
        let Joining::Open(name, shape) = self.joining else { return None };
        let Some(maker) = opened.eps.get_mut(self.ep.at())?.net.routed(*self.members.first()?) else {
            return Some(Then::have(name, None));
        };
        match with_link(opened, self.ep, |link| link.open(shape, maker, name))? {
            Opening::Pending => None,
            Opening::Open(memory) => Some(Then::have(name, Some((shape, memory)))),
            Opening::Denied(why) => {
                self.log(&why);
                Some(Then::have(name, None))
            }
        }
    }

    /// The join is over for good: nothing is offered any more.
    fn withdraw<L: RmaLink>(&mut self, opened: &mut Opened<L>) {
        let (Joining::Offer(Some((name, _))) | Joining::Open(name, _) | Joining::Have(name, _)) =
            std::mem::take(&mut self.joining)
        else {
            return;
        };
        with_link(opened, self.ep, |link| link.withdraw(name));
    }

    /// Receives notices of those that have a channel with this endpoint: such a receive fails when its member
    /// ends. The last operation of the join makes no other channels, and is over at no member before this one
    /// has begun it: a member that ends right behind its own join is noticed.
    fn watch<L: RmaLink>(&self, opened: &mut Opened<L>, id: GroupId) {
        let Some(peers) = peers(opened, self) else { return };
        for (rank, peer) in peers.into_iter().enumerate().filter(|(rank, _)| *rank != self.rank) {
            let Some(ep) = opened.eps.get_mut(self.ep.at()) else { return };
            if ep.net.link.channel(peer) != Channel::None {
                let pattern = Pattern { src: self.members[rank], tag: Some(self.name.notices()) };
                let _ = operation::receive(opened, self.ep, pattern, &[], watches_of(id));
            }
        }
        if let Some(ep) = opened.eps.get_mut(self.ep.at()) {
            ep.net.link.hint(link_api::Hint::ReceiveFrom(None));
        }
    }
}

impl Then {
    fn have(name: GroupName, made: Option<Made>) -> Then {
        let lacking = u64::from(made.is_none());
        Then::Next(Joining::Have(name, made), Kind::AllReduce, [lacking, 0, 0])
    }
}

impl Collectives {
    /// An operation of a join is over.
    pub(super) fn join_goes_on<L: RmaLink>(
        &mut self,
        opened: &mut Opened<L>,
        id: GroupId,
        err: Option<Error>,
    ) {
        let slot = self.slot;
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        let then = match err {
            Some(err) => Then::Failed(err),
            None => {
                let mut bytes = [0; NAMED];
                hmem::read(&[group.vote.span()], 0, &mut bytes);
                let word = |n: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 * n + i]));
                group.next(opened, [word(0), word(1), word(2)], slot)
            }
        };
        self.join_then(opened, id, then);
    }

    fn join_then<L: RmaLink>(&mut self, opened: &mut Opened<L>, id: GroupId, then: Then) {
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        match then {
            Then::Wait(joining) => {
                group.joining = joining;
                self.opening.push(id);
            }
            Then::Next(joining, kind, words) => {
                group.joining = joining;
                if matches!(group.joining, Joining::Have(..)) {
                    group.watch(opened, id);
                }
                if self.agree(id, kind, words).is_err() {
                    self.end_join(opened, id, Some(Error::Exhausted));
                }
            }
            Then::Failed(err) => self.end_join(opened, id, Some(err)),
            Then::Joined(shared) => {
                group.shared = shared.map(Box::new);
                if group.shared.is_none() {
                    operation::unpost(opened, group.ep, watches_of(id));
                }
                self.end_join(opened, id, None);
            }
        }
    }

    fn end_join<L: RmaLink>(&mut self, opened: &mut Opened<L>, id: GroupId, err: Option<Error>) {
        let Some(group) = self.groups.get_mut(&id.0) else { return };
        group.withdraw(opened);
        self.joined.push(group.join(id, err));
    }

    /// Starts an operation of the join, on words that all members have at its end.
    pub(super) fn agree(&mut self, id: GroupId, kind: Kind, words: [u64; 3]) -> Result<(), Error> {
        let group = self.groups.get(&id.0).ok_or(Error::NotFound)?;
        let (members, rank, ctx) = (group.members.len(), group.rank, Ctx(0));
        let (count, size) = if kind == Kind::Broadcast { (NAMED, 1) } else { (1, 8) };
        let schedule =
            Schedule::new(Shape { kind, members, rank, root: 0, count, size }).ok_or(Error::Invalid)?;
        let scratch = Scratch::new(schedule.scratch()).ok_or(Error::Exhausted)?;
        let span = group.vote.span();
        for (n, word) in words.iter().enumerate() {
            hmem::write(&[span], 8 * n, &word.to_ne_bytes());
        }
        let by = (kind != Kind::Broadcast).then_some((AtomicOp::Bor, Datatype::Uint64));
        let (input, result) = (span.part(0, 8).ok_or(Error::Invalid)?, span);
        let result = if kind == Kind::Broadcast { result } else { input };
        let memory = Memory { input, result, scratch };
        let name = self.begin(id, (ctx, OpFlags::empty()), schedule, memory, by)?;
        self.ready.push(name);
        Ok(())
    }

    /// Polls for memory that is requested. Returns how many joins go on.
    pub(super) fn open_requested<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> usize {
        let mut n = 0;
        for id in std::mem::take(&mut self.opening) {
            let Some(group) = self.groups.get_mut(&id.0) else { continue };
            match group.open(opened) {
                None => self.opening.push(id),
                Some(then) => {
                    n += 1;
                    self.join_then(opened, id, then);
                }
            }
        }
        n
    }

    /// Bytes of the words that a join agrees on.
    pub(super) fn words() -> Result<Scratch, Error> {
        Scratch::new(NAMED).ok_or(Error::Exhausted)
    }
}
