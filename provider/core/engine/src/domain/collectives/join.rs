//! The join of a group: its members agree on the name, and whether they share memory.
//!
//! The first operation of a group is an allreduce of what keeps members from either. If nothing does, the
//! first member makes memory and broadcasts its name; the others request it, and an allreduce says whether
//! all have it. Where one has not, operations go by messages. Members of several hosts gather the names of
//! what the first member of each host has made instead.

use collective::{Hosts, Kind, Schedule, Shape};
use hmem::{AtomicOp, Datatype, Scratch};
use link_api::{Channel, GroupLink, GroupName, GroupShape, MOST_MEMBERS, Opening, PeerId, RmaLink};

use super::Collectives;
use super::group::{Among, Group, Joining};
use super::notices::watches_of;
use super::operation::{self, Memory};
use super::shared::{Made, Shared};
use crate::domain::opened::Opened;
use crate::types::*;

/// A member's endpoint has joined the same members by that name.
const TAKEN: u64 = 1;
/// A member has no memory to share, or is not to.
const APART: u64 = 2;
/// A member does not share memory with all others.
const FAR: u64 = 4;
/// Bytes of what the first member broadcasts: a name, and how long a slot is; 0: there is no memory.
const NAMED: usize = 24;
/// Words that members of several hosts gather: the first one that each shares memory with, and what is
/// broadcast on one host.
const GATHERED: usize = 4;

/// What is found at the end of an operation of a join.
enum Then {
    Joined(Option<Shared>),
    Failed(Error),
    Next(Joining, Kind, [u64; GATHERED]),
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
    /// The layout of memory of these members, of which this one is one.
    fn shape(&self, members: &[usize], slot: usize) -> GroupShape {
        let rank = members.iter().position(|member| *member == self.rank).unwrap_or(usize::MAX);
        GroupShape { members: members.len(), rank, slot }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.members.len()).collect()
    }

    /// The members that share memory with this one, which is one of them.
    fn sharers<L: RmaLink>(&self, opened: &mut Opened<L>) -> Option<Vec<usize>> {
        let peers = peers(opened, self)?;
        let shares = |link: &mut dyn GroupLink, rank: usize| rank == self.rank || link.shares(peers[rank]);
        with_link(opened, self.ep, |link| (0..peers.len()).filter(|rank| shares(link, *rank)).collect())
    }

    /// A word that the members have agreed on.
    fn word(&self, n: usize) -> u64 {
        let mut bytes = [0; 8];
        hmem::read(&[self.vote.span()], 8 * n, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// What keeps this member from the join, as the first operation agrees on.
    pub(super) fn objections<L: RmaLink>(&self, opened: &mut Opened<L>, taken: bool, slot: usize) -> u64 {
        let members = self.members.len();
        let sharers = self.sharers(opened).filter(|s| s.len() <= MOST_MEMBERS && slot > 0 && members > 1);
        let far = sharers.as_ref().is_some_and(|sharers| sharers.len() < members);
        (u64::from(taken) * TAKEN) | (u64::from(sharers.is_none()) * APART) | (u64::from(far) * FAR)
    }

    fn log(&self, why: &str) {
        log::warn!(
            "a group of {} endpoints has no shared memory, and uses messages: {why}",
            self.members.len()
        );
    }

    /// The first of these members makes their memory.
    fn make<L: RmaLink>(
        &self,
        opened: &mut Opened<L>,
        members: &[usize],
        slot: usize,
    ) -> Option<(GroupName, Made)> {
        if self.rank != *members.first()? || members.len() < 2 {
            return None;
        }
        let (shape, all) = (self.shape(members, slot), peers(opened, self)?);
        let peers: Vec<PeerId> = members.iter().map(|member| all[*member]).collect();
        match with_link(opened, self.ep, |link| link.create(shape, &peers))? {
            Ok((name, memory)) => Some((name, (shape, memory))),
            Err(why) => {
                self.log(&why.to_string());
                None
            }
        }
    }

    /// An operation of the join is over, and all members have the same words.
    fn next<L: RmaLink>(&mut self, opened: &mut Opened<L>, slot: usize) -> Then {
        let words: [u64; GATHERED] = std::array::from_fn(|n| self.word(n));
        match std::mem::take(&mut self.joining) {
            Joining::Vote if words[0] & TAKEN != 0 => Then::Failed(Error::KeyInUse),
            Joining::Vote if words[0] & APART != 0 => Then::Joined(None),
            Joining::Vote => {
                let far = words[0] & FAR != 0;
                let here = if far { self.sharers(opened) } else { Some(self.all()) };
                let here = here.unwrap_or_else(|| vec![self.rank]);
                let made = self.make(opened, &here, slot);
                let [maker, number, slot] =
                    made.as_ref().map_or([0; 3], |(name, _)| [name.maker, name.number, slot as u64]);
                if far {
                    let words = [here[0] as u64, maker, number, slot];
                    Then::Next(Joining::Hosts(made), Kind::AllGather, words)
                } else {
                    Then::Next(Joining::Offer(made), Kind::Broadcast, [maker, number, slot, 0])
                }
            }
            Joining::Hosts(made) => self.hosts_are_known(opened, made),
            Joining::Offer(_) if words[2] == 0 => Then::Joined(None),
            Joining::Offer(Some((name, made))) => Then::have(name, Some(made)),
            Joining::Offer(None) => self.request([words[0], words[1], words[2]], &self.all()),
            // It does not end while it is waited for.
            Joining::Open(..) => Then::Failed(Error::Io),
            Joining::Have(name, made) => {
                name.into_iter().for_each(|name| self.withdraw_name(opened, name));
                if words[0] != 0 {
                    self.hosts = None;
                    return Then::Joined(None);
                }
                let all = self.all();
                let members = self.hosts.as_ref().map_or(&all[..], |hosts| hosts.beside(self.rank));
                Then::Joined(made.map(|made| Shared::new(made, members.to_vec())))
            }
        }
    }

    fn request(&self, [maker, number, slot]: [u64; 3], members: &[usize]) -> Then {
        let (name, shape) = (GroupName { maker, number }, self.shape(members, slot as usize));
        if shape.is_valid() { Then::Wait(Joining::Open(name, shape)) } else { Then::have(name, None) }
    }

    /// All members know the first member that each shares memory with, and what that one has made.
    fn hosts_are_known<L: RmaLink>(
        &mut self,
        opened: &mut Opened<L>,
        made: Option<(GroupName, Made)>,
    ) -> Then {
        let of = |member: usize, n: usize| self.word(GATHERED * (member + 1) + n);
        let firsts: Vec<usize> = (0..self.members.len()).map(|member| of(member, 0) as usize).collect();
        let lacks = |member: &usize| of(firsts[*member], 3) == 0;
        let hosts = Hosts::new(&firsts);
        let Some(hosts) = hosts.filter(|h| !self.all().iter().any(|m| h.beside(*m).len() > 1 && lacks(m)))
        else {
            made.into_iter().for_each(|(name, _)| self.withdraw_name(opened, name));
            return Then::Joined(None);
        };
        let here = hosts.beside(self.rank);
        // What the members of a host see of each other may differ.
        let agrees = self.sharers(opened).is_some_and(|sharers| sharers == here);
        let then = match made {
            Some((name, made)) if agrees => Then::have(name, Some(made)),
            Some((name, _)) => Then::have(name, None),
            None if here.len() > 1 && agrees => {
                self.request(std::array::from_fn(|n| of(firsts[self.rank], n + 1)), here)
            }
            None => {
                let words = [u64::from(!agrees), 0, 0, 0];
                Then::Next(Joining::Have(None, None), Kind::AllReduce, words)
            }
        };
        self.hosts = Some(Box::new(hosts));
        then
    }

    fn withdraw_name<L: RmaLink>(&self, opened: &mut Opened<L>, name: GroupName) {
        with_link(opened, self.ep, |link| link.withdraw(name));
    }

    /// Polls for memory that another member has made.
    fn open<L: RmaLink>(&mut self, opened: &mut Opened<L>) -> Option<Then> {
        let Joining::Open(name, shape) = self.joining else { return None };
        let maker = *self.hosts.as_ref().map_or(Some(&0), |hosts| hosts.beside(self.rank).first())?;
        let Some(maker) = opened.eps.get_mut(self.ep.at())?.net.routed(self.members[maker]) else {
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
        let (Joining::Offer(Some((name, _)))
        | Joining::Hosts(Some((name, _)))
        | Joining::Open(name, _)
        | Joining::Have(Some(name), _)) = std::mem::take(&mut self.joining)
        else {
            return;
        };
        self.withdraw_name(opened, name);
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
        Then::Next(Joining::Have(Some(name), made), Kind::AllReduce, [lacking, 0, 0, 0])
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
            None => group.next(opened, slot),
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
                if group.shared.is_none() && group.hosts.is_none() {
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
    pub(super) fn agree(&mut self, id: GroupId, kind: Kind, words: [u64; GATHERED]) -> Result<(), Error> {
        let group = self.groups.get_mut(&id.0).ok_or(Error::NotFound)?;
        let (members, rank, ctx) = (group.members.len(), group.rank, Ctx(0));
        let (count, size) = match kind {
            Kind::Broadcast => (NAMED, 1),
            Kind::AllGather => (GATHERED, 8),
            _ => (1, 8),
        };
        let shape = Shape { kind, members, rank, root: 0, count, size };
        let (schedule, (input, result)) = (Schedule::new(shape).ok_or(Error::Invalid)?, shape.lengths());
        let scratch = Scratch::new(schedule.scratch()).ok_or(Error::Exhausted)?;
        if kind == Kind::AllGather {
            group.vote = Scratch::new(input + result).ok_or(Error::Exhausted)?;
        }
        let span = group.vote.span();
        for (n, word) in words.iter().enumerate() {
            hmem::write(&[span], 8 * n, &word.to_ne_bytes());
        }
        let by = (kind != Kind::Broadcast).then_some((AtomicOp::Bor, Datatype::Uint64));
        let part = |at, len| span.part(at, len).ok_or(Error::Invalid);
        let at = if kind == Kind::AllGather { input } else { 0 };
        let memory = Memory { input: part(0, input)?, result: part(at, result)?, scratch };
        let schedule = (schedule, Among::All);
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
        Scratch::new(8 * GATHERED).ok_or(Error::Exhausted)
    }
}
