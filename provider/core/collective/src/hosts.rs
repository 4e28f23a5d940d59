//! Operations of members on several hosts: by shared memory inside each, by messages among their leaders.
//!
//! The leader of a host is the first member there; of the root's host it is the root. First the leader gets
//! the inputs of its host or their reduction, then the leaders do the operation with each other, and then the
//! members of each host take the result from the leader. So all members have the same bytes of a result,
//! floating point numbers included.
//!
//! | operation | to the leader | among leaders | from the leader |
//! |---|---|---|---|
//! | barrier | reduce of nothing | barrier | broadcast of nothing |
//! | allreduce | reduce | allreduce | broadcast |
//! | reduce | reduce | reduce | |
//! | allgather | gather | pairwise, all slices of a host | broadcast of all slices |
//!
//! From [`LONG`] bytes of the whole result on messages between all members are faster, and those of a
//! broadcast of any length.

use crate::{Kind, LONG, Part, Place, Plan, Round, Schedule, Shape, WINDOW};

/// Which members share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The members of each host, in order.
    members: Vec<Vec<usize>>,
    /// The host of each member.
    of: Vec<usize>,
}

impl Hosts {
    /// `firsts`: of each member, the first one that it shares memory with, itself included. `None`: these do
    /// not agree with each other, or no two members share memory.
    pub fn new(firsts: &[usize]) -> Option<Hosts> {
        let (mut members, mut of) = (Vec::<Vec<usize>>::new(), Vec::with_capacity(firsts.len()));
        for (member, &first) in firsts.iter().enumerate() {
            if first == member {
                of.push(members.len());
                members.push(vec![member]);
                continue;
            }
            let host = *of.get(first)?;
            if members[host][0] != first {
                return None;
            }
            of.push(host);
            members[host].push(member);
        }
        (members.len() < firsts.len()).then_some(Hosts { members, of })
    }

    /// The members of the host of that one.
    pub fn beside(&self, member: usize) -> &[usize] {
        &self.members[self.of[member]]
    }

    /// The leader of each host, by number, in an operation of this root, if it has one.
    pub fn leader(&self, host: usize, root: Option<usize>) -> Option<usize> {
        let first = *self.members.get(host)?.first()?;
        Some(root.filter(|root| self.of.get(*root) == Some(&host)).unwrap_or(first))
    }

    /// Which bytes of all slices are those of a host, as runs of slices that follow each other: where each
    /// begins among the host's slices and among all, and its length.
    fn runs(&self, host: usize, bytes: usize) -> Vec<(usize, Part)> {
        let mut runs: Vec<(usize, Part)> = Vec::new();
        for (at, member) in self.members[host].iter().enumerate() {
            match runs.last_mut() {
                Some((_, run)) if run.at + run.len == member * bytes => run.len += bytes,
                _ => runs.push((at * bytes, Part::new(Place::Result, member * bytes, bytes))),
            }
        }
        runs
    }

    /// The leader of a host has the slices of that host as its input.
    fn allgather(&self, host: usize, bytes: usize) -> Vec<Round> {
        let (hosts, own) = (self.members.len(), self.runs(host, bytes));
        let mut round = Round::default();
        own.iter().for_each(|(at, run)| round.copy(*run, Part::new(Place::Input, *at, run.len)));
        let mut rounds = vec![round];
        let steps: Vec<usize> = (1..hosts).collect();
        for steps in steps.chunks(WINDOW) {
            let mut round = Round::default();
            for step in steps {
                let (above, below) = ((host + step) % hosts, (host + hosts - step) % hosts);
                own.iter().for_each(|(_, run)| round.send(above, *run));
                self.runs(below, bytes).iter().for_each(|(_, run)| round.receive(below, *run));
            }
            rounds.push(round);
        }
        rounds
    }
}

/// What one member does: `before`, `between` and `after`, one after the other.
#[derive(Clone, Debug)]
pub struct Layers {
    /// Its result goes to the leader: to [`Layers::room`], or without that to where the operation's goes.
    pub before: Option<Plan>,
    /// A leader does this with the leaders of the other hosts. The input is the result of `before`, if there
    /// is one.
    pub between: Option<Schedule>,
    /// From the result of the leader to that of the others.
    pub after: Option<Plan>,
    /// Bytes that the leader needs for the result of `before`.
    pub room: usize,
}

impl Layers {
    /// Whether an operation goes by messages between all members, behind one of these without bytes: whether
    /// it does depends on the count, and members that have posted other counts are to find that.
    pub fn is_for_shorter(shape: &Shape) -> bool {
        let slices = if shape.kind == Kind::AllGather { shape.members } else { 1 };
        shape.count * shape.size * slices >= LONG
    }

    /// With slots of so many bytes. `None`: operations of this kind go by messages alone.
    pub fn new(shape: Shape, hosts: &Hosts, slot: usize) -> Option<Layers> {
        let bytes = shape.checked_bytes().filter(|_| shape.members == hosts.of.len())?;
        let Shape { kind, members, rank, count, size, .. } = shape;
        let root = kind.has_root().then_some(shape.root);
        let (before, after) = match kind {
            Kind::Barrier => ((Kind::Reduce, 0), Some(0)),
            Kind::AllReduce => ((Kind::Reduce, count), Some(count)),
            Kind::Reduce => ((Kind::Reduce, count), None),
            Kind::AllGather => ((Kind::Gather, count), Some(count * members)),
            _ => return None,
        };
        let (host, here) = (hosts.of[rank], hosts.beside(rank));
        let leader = hosts.leader(host, root)?;
        let place = |member| here.iter().position(|m| *m == member);
        let (own, lead) = (place(rank)?, place(leader)?);
        let plan = |(kind, count)| {
            let shape = Shape { kind, members: here.len(), rank: own, root: lead, count, size };
            if here.len() > 1 { Plan::new(shape, slot).map(Some) } else { Some(None) }
        };
        let before = plan(before)?;
        let after = after.map_or(Some(None), |count| plan((Kind::Broadcast, count)))?;
        let among = Shape {
            kind,
            members: hosts.members.len(),
            rank: host,
            root: root.map_or(0, |root| hosts.of[root]),
            count,
            size,
        };
        let (between, room) = match kind {
            _ if rank != leader => (None, 0),
            Kind::AllGather => {
                let room = if before.is_some() { here.len() * bytes } else { 0 };
                (Some(Schedule::of_rounds(among, hosts.allgather(host, bytes))), room)
            }
            _ => {
                let has_result = kind != Kind::Reduce || root == Some(rank);
                let room = if before.is_some() && !has_result { bytes } else { 0 };
                (Some(Schedule::new(among)?), room)
            }
        };
        Some(Layers { before, between, after, room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_that_all_members_agree_on() {
        let hosts = Hosts::new(&[0, 1, 0, 1, 4]).expect("three hosts");
        assert_eq!((hosts.beside(2), hosts.beside(1), hosts.beside(4)), (&[0, 2][..], &[1, 3][..], &[4][..]));
        assert_eq!((hosts.leader(0, None), hosts.leader(0, Some(2)), hosts.leader(1, Some(2))), {
            (Some(0), Some(2), Some(1))
        });
        assert_eq!(hosts.leader(3, None), None);
        for none in [&[0, 1, 2][..], &[1, 1], &[0, 0, 1], &[0, 7], &[]] {
            assert_eq!(Hosts::new(none), None, "{none:?}");
        }
    }

    #[test]
    fn slices_that_follow_each_other_are_one_message() {
        let hosts = Hosts::new(&[0, 0, 2, 2, 0]).expect("two hosts");
        let sent = |host| hosts.allgather(host, 8)[1].transfers.iter().filter(|t| t.sends).count();
        assert_eq!((sent(0), sent(1)), (2, 1));
    }
}
