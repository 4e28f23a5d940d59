//! A second queue pair with a peer, for memory whose keys no window keeps from other peers.
//!
//! The kernel binds no memory windows to a dma-buf, and a key without a window serves all queue pairs of its
//! protection domain. So the peer that is to have such a key gets a second queue pair here and there, each in
//! a domain that has no other one: what is registered there serves that peer alone. Requests that name such a
//! key are posted to it; messages, and all other requests, go by the first. Memory of this side that those
//! requests use is registered in that domain, too.
//!
//! It is made once a peer is to have a key that needs it. The two announce its ends to each other by the
//! connection that they meet by, as they did those of the first: either may begin, or both at once. An end
//! that cannot have one says so. Both queue pairs of a peer end together.

use std::collections::{BTreeMap, HashMap};

use hmem::Span;
use rdma_sys::Pd;

use crate::registered::NO_DOMAIN;

/// What keys have above those of the device, by which a peer knows which queue pair to use.
pub(crate) const SECOND: u64 = 1 << 32;

/// A call that has refused, and its errno.
pub(crate) type Refusal = (&'static str, i32);

/// How far the second queue pair with a peer is; by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is needed, and not announced.
    Wanted,
    /// It was announced; the peer has announced none.
    Offered(u32),
    /// The two have connected.
    Connected(u32),
    /// There is none, and why; and whether the peer has announced something of its own.
    Refused(Refusal, bool),
}

/// What follows from what a peer announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// This side makes one, connects it and announces it, or announces that it has none.
    Make,
    /// This side connects the one that it has announced.
    Connect(u32),
    /// The one that was announced is not needed.
    Refused,
    /// This side announces that it has none.
    Decline,
    /// No honest peer says so.
    Nonsense,
}

/// A protection domain, and what it is known by.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) id: u32,
    pub(crate) pd: Pd,
    /// The first queue pair of the peer, while that is in use.
    first: Option<u32>,
}

/// Memory of the program that each peer has a registration of in its own domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publication {
    pub(crate) span: Span,
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// The second queue pairs of all peers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seconds {
    /// By the number of the first one.
    stages: HashMap<u32, Stage>,
    /// By the number of the second one.
    domains: HashMap<u32, Domain>,
    /// The id of the domain that was made last. None is used twice.
    last: u32,
    published: HashMap<u64, Publication>,
    /// Of these, by the lease and the number of the peer's first queue pair: the registration, and its key.
    keys: BTreeMap<(u64, u32), (u64, u64)>,
}

impl Seconds {
    /// The numbers of both queue pairs of the peer that this one is of.
    pub(crate) fn both(&self, number: u32) -> (u32, Option<u32>) {
        let first = self.domains.get(&number).and_then(|domain| domain.first).unwrap_or(number);
        (first, self.second(first))
    }

    /// How many queue pairs are second ones, with those that are closed, and not destroyed yet.
    pub(crate) fn len(&self) -> usize {
        self.domains.len()
    }

    /// The number of the second queue pair with the peer of the first, if there is one.
    fn second(&self, first: u32) -> Option<u32> {
        match self.stages.get(&first) {
            Some(Stage::Offered(second) | Stage::Connected(second)) => Some(*second),
            _ => None,
        }
    }

    /// Whether this peer is to have one, which is not connected yet.
    pub(crate) fn is_awaited(&self, first: u32) -> bool {
        matches!(self.stages.get(&first), Some(Stage::Offered(_)))
    }

    /// The one that is connected with this peer, and its domain.
    pub(crate) fn connected(&self, first: u32) -> Option<(u32, &Domain)> {
        match self.stages.get(&first) {
            Some(Stage::Connected(second)) => self.domains.get(second).map(|domain| (*second, domain)),
            _ => None,
        }
    }

    /// Why this peer has none; `None`: it was not needed so far.
    pub(crate) fn lacks(&self, first: u32) -> Option<Refusal> {
        match self.stages.get(&first)? {
            Stage::Refused(why, _) => Some(*why),
            _ => Some(NO_DOMAIN),
        }
    }

    /// Whether one is to be announced to this peer.
    pub(crate) fn is_wanted(&self, first: u32) -> bool {
        self.stages.get(&first) == Some(&Stage::Wanted)
    }

    /// What follows from an announcement of the peer's, or (`is_none`) that it has none.
    pub(crate) fn hear(&mut self, first: u32, is_none: bool) -> Heard {
        match (self.stages.get_mut(&first), is_none) {
            (Some(Stage::Offered(_)), true) => Heard::Refused,
            (Some(Stage::Offered(second)), false) => Heard::Connect(*second),
            (None | Some(Stage::Wanted), false) => Heard::Make,
            (Some(Stage::Refused(_, has_heard @ false)), false) => {
                *has_heard = true;
                Heard::Decline
            }
            _ => Heard::Nonsense,
        }
    }

    /// A queue pair was made in a domain of its own, as a second one of this peer's or (`None`) for a rail:
    /// the domain's id.
    pub(crate) fn add_domain(&mut self, number: u32, first: Option<u32>, pd: Pd) -> u32 {
        self.last += 1;
        self.domains.insert(number, Domain { id: self.last, pd, first });
        self.last
    }

    /// The domain that a queue pair is alone in.
    pub(crate) fn domain(&self, number: u32) -> Option<&Domain> {
        self.domains.get(&number)
    }

    /// A second queue pair is announced to this peer.
    pub(crate) fn offer(&mut self, first: u32, second: u32) {
        self.stages.insert(first, Stage::Offered(second));
    }

    /// The two have connected.
    pub(crate) fn note_connected(&mut self, first: u32, second: u32) {
        self.stages.insert(first, Stage::Connected(second));
    }

    /// There is none with this peer, which has announced something of its own, or not.
    pub(crate) fn refuse(&mut self, first: u32, why: Refusal, has_heard: bool) {
        self.stages.insert(first, Stage::Refused(why, has_heard));
    }

    /// This peer is to have one.
    pub(crate) fn want(&mut self, first: u32) {
        self.stages.entry(first).or_insert(Stage::Wanted);
    }

    /// Memory is published, of which each peer is to have a registration of its own.
    pub(crate) fn publish(&mut self, lease: u64, publication: Publication) {
        self.published.insert(lease, publication);
    }

    pub(crate) fn publication(&self, lease: u64) -> Option<Publication> {
        self.published.get(&lease).copied()
    }

    /// The registration of such memory for this peer, and the key that the peer has.
    pub(crate) fn key(&self, lease: u64, first: u32) -> Option<(u64, u64)> {
        self.keys.get(&(lease, first)).copied()
    }

    /// This peer has no key of it any more.
    pub(crate) fn remove_key(&mut self, lease: u64, first: u32) {
        self.keys.remove(&(lease, first));
    }

    pub(crate) fn add_key(&mut self, lease: u64, first: u32, registration: u64, key: u64) {
        self.keys.insert((lease, first), (registration, key));
    }

    /// Memory is published no more: the registrations of it, which are to end.
    pub(crate) fn end_publication(&mut self, lease: u64) -> Vec<u64> {
        if self.published.remove(&lease).is_none() {
            return Vec::new();
        }
        self.end_keys(|key| key.0 == lease)
    }

    fn end_keys(&mut self, which: impl Fn(&(u64, u32)) -> bool) -> Vec<u64> {
        let mut ended = Vec::new();
        self.keys.retain(|key, (registration, _)| {
            let ends = which(key);
            ended.extend(ends.then_some(*registration));
            !ends
        });
        ended
    }

    /// The first queue pair of a peer is not used any more: the number of the second one, which is not to be
    /// either, and the registrations for that peer, which are to end.
    pub(crate) fn part(&mut self, first: u32) -> (Option<u32>, Vec<u64>) {
        let second = self.second(first);
        if self.stages.remove(&first).is_none() {
            return (None, Vec::new());
        }
        if let Some(domain) = second.and_then(|second| self.domains.get_mut(&second)) {
            domain.first = None;
        }
        (second, self.end_keys(|key| key.1 == first))
    }

    /// A queue pair is gone: the domain that it was alone in, if it was a second one.
    pub(crate) fn end_domain(&mut self, number: u32) -> Option<Domain> {
        self.domains.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    /// The peer's first queue pair, by its number at either end; and the second.
    const FIRST: u32 = 3;
    const SECOND: u32 = 4;

    /// What is said: an address, or that there is none.
    type Said = bool;

    /// Two ends, and what is on its way to each.
    #[derive(Clone, Debug, Default)]
    struct Two {
        ends: [Seconds; 2],
        to: [VecDeque<Said>; 2],
        /// Whether each can make one, and whether it is still to need one.
        can: [bool; 2],
        needs: [bool; 2],
    }

    impl Two {
        fn key(&self) -> String {
            format!("{:?} {:?} {:?}", self.ends.each_ref().map(|end| &end.stages), self.to, self.needs)
        }

        fn make(&mut self, i: usize, has_heard: bool) -> bool {
            if self.can[i] {
                self.ends[i].stages.insert(FIRST, Stage::Offered(SECOND));
            } else {
                self.ends[i].refuse(FIRST, NO_DOMAIN, has_heard);
            }
            self.can[i]
        }

        /// An end needs a second queue pair, as [`Joining::announce`](crate::joining::Joining::announce)
        /// does.
        fn need(&mut self, i: usize) {
            self.needs[i] = false;
            self.ends[i].want(FIRST);
            if self.ends[i].is_wanted(FIRST) && self.make(i, false) {
                self.to[1 - i].push_back(true);
            }
        }

        /// As [`Joining::join`](crate::joining::Joining::join) does; `false`: it makes no sense.
        fn hear(&mut self, i: usize) -> bool {
            let Some(is_one) = self.to[i].pop_front() else { return true };
            match self.ends[i].hear(FIRST, !is_one) {
                Heard::Make => {
                    let is_made = self.make(i, true);
                    if is_made {
                        self.ends[i].note_connected(FIRST, SECOND);
                    }
                    self.to[1 - i].push_back(is_made);
                }
                Heard::Connect(second) => self.ends[i].note_connected(FIRST, second),
                Heard::Refused => self.ends[i].refuse(FIRST, NO_DOMAIN, true),
                Heard::Decline => self.to[1 - i].push_back(false),
                Heard::Nonsense => return false,
            }
            true
        }
    }

    /// In whatever order two ends need one, and hear of the other's: both end up with it, or neither.
    #[test]
    fn both_ends_have_a_second_queue_pair_or_neither() {
        let (mut ends, mut connected) = (0, 0);
        for bits in 0..16 {
            let is = |bit: u32| bits >> bit & 1 == 1;
            let start = Two { can: [is(0), is(1)], needs: [is(2), is(3)], ..Two::default() };
            let (mut open, mut seen) = (vec![start], HashSet::new());
            while let Some(two) = open.pop() {
                if !seen.insert(two.key()) {
                    continue;
                }
                let before = open.len();
                for i in 0..2 {
                    let mut next = two.clone();
                    if two.needs[i] {
                        next.need(i);
                        open.push(next.clone());
                    }
                    let mut next = two.clone();
                    if !two.to[i].is_empty() {
                        assert!(next.hear(i), "{two:?}");
                        open.push(next);
                    }
                }
                if open.len() > before {
                    continue;
                }
                let are =
                    two.ends.each_ref().map(|end| end.stages.get(&FIRST) == Some(&Stage::Connected(SECOND)));
                assert_eq!(are[0], are[1], "{two:?}");
                assert_eq!(are[0], (is(0) && is(1)) && (is(2) || is(3)), "{two:?}");
                assert!(two.ends.iter().all(|end| !end.is_awaited(FIRST)), "{two:?}");
                (ends, connected) = (ends + 1, connected + usize::from(are[0]));
            }
        }
        assert!(ends >= 16 && connected >= 3, "{ends} ends, {connected} connected");
    }

    #[test]
    fn the_keys_of_what_is_published_end_with_it_and_with_their_peer() {
        let mut all = Seconds::default();
        let span = Span::leak(8);
        for lease in [1, 2] {
            all.publish(lease, Publication { span, read: true, write: true });
            for first in [3, 5] {
                all.want(first);
                all.add_key(lease, first, 100 * lease + u64::from(first), 7);
            }
        }
        assert_eq!(all.key(1, 3), Some((103, 7)));
        assert_eq!(all.end_publication(1), [103, 105]);
        assert_eq!((all.end_publication(1), all.key(1, 3), all.key(2, 3)), (vec![], None, Some((203, 7))));
        assert_eq!(all.part(3), (None, vec![203]));
        assert_eq!((all.part(3), all.key(2, 5), all.lacks(3)), ((None, vec![]), Some((205, 7)), None));
    }
}
