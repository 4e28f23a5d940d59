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
use rdma_sys::{Access, Error, Pd, Qp, QpInit};

use crate::address::Address;
use crate::pair::{Pair, State};
use crate::registered::NO_DOMAIN;
use crate::state::{Objects, Verbs};

/// What keys have above those of the device, by which a peer knows which queue pair to use.
pub(crate) const SECOND: u64 = 1 << 32;

/// A call that has refused, and its errno.
type Refusal = (&'static str, i32);

/// How far the second queue pair with a peer is; by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is needed, and not announced.
    Wanted,
    /// It was announced; the peer has announced none.
    Offered(u32),
    /// The two have connected.
    Connected(u32),
    /// There is none, and why.
    Refused(Refusal),
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
#[derive(Debug, Default)]
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

    /// The number of the second queue pair with the peer of the first, if there is one.
    pub(crate) fn second(&self, first: u32) -> Option<u32> {
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
            Stage::Refused(why) => Some(*why),
            _ => Some(NO_DOMAIN),
        }
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

    /// The key of such memory that this peer has.
    pub(crate) fn key(&self, lease: u64, first: u32) -> Option<u64> {
        self.keys.get(&(lease, first)).map(|(_, key)| *key)
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
    fn part(&mut self, first: u32) -> (Option<u32>, Vec<u64>) {
        let Some(stage) = self.stages.remove(&first) else { return (None, Vec::new()) };
        let second = match stage {
            Stage::Offered(second) | Stage::Connected(second) => Some(second),
            Stage::Wanted | Stage::Refused(_) => None,
        };
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

/// A refusal as it is said of memory. One that is not for want of something says nothing of other peers.
fn refused(e: &Error) -> Refusal {
    let is_for_now = [libc::EAGAIN, libc::ENOMEM, libc::ENOSPC].contains(&e.errno());
    (e.call().unwrap_or(NO_DOMAIN.0), if is_for_now { e.errno() } else { NO_DOMAIN.1 })
}

/// How second queue pairs are made and end.
pub(crate) struct Joining<'a>(pub(crate) &'a mut Verbs);

impl Joining<'_> {
    fn seconds(&mut self) -> &mut Seconds {
        &mut self.0.objects.seconds
    }

    /// Makes a queue pair in a domain of its own: what is announced of it.
    fn make(&mut self, first: u32) -> Result<Vec<u8>, Refusal> {
        let Verbs { objects, route, sizes, credits, .. } = &mut *self.0;
        // For the request that is posted last.
        let left = credits.checked_sub(1).ok_or(("its completion queue", libc::ENOSPC))?;
        let Objects { pairs, seconds, registered, cq, context, .. } = &mut **objects;
        let pd = Pd::new(context).map_err(|e| refused(&e))?;
        // Nothing is received by it, but a queue of no receives is not what all drivers have.
        let init = QpInit { max_recv_wr: 1, max_recv_sge: 1, ..sizes.init() };
        let qp = Qp::new(&pd, cq, cq, None, init).map_err(|e| refused(&e))?;
        let access = Access::REMOTE_READ.and(Access::REMOTE_WRITE);
        qp.init(route.port.number, 0, access).map_err(|e| refused(&e))?;
        let psn = Address::draw_psn().map_err(|_| NO_DOMAIN)?;
        let mut pair = Pair::new(qp, psn);
        // Of a shared queue it has none.
        pair.is_last = true;
        let number = pairs.add(|_| Ok(pair)).map_err(|_| ("its queue pairs", libc::ENOSPC))?;
        *credits = left;
        seconds.last += 1;
        registered.device().add_domain(seconds.last, &pd);
        seconds.domains.insert(number, Domain { id: seconds.last, pd, first: Some(first) });
        seconds.stages.insert(first, Stage::Offered(number));
        let pair = self.0.objects.pairs.get(number).ok_or(NO_DOMAIN)?;
        Ok(self.0.own_address(pair).encode())
    }

    /// There is none with this peer.
    fn refuse(&mut self, first: u32, why: Refusal) {
        log::info!(
            "no second queue pair with a peer, whose keys of dma-bufs need one: {}: errno {}",
            why.0,
            why.1
        );
        self.part(first);
        self.seconds().stages.insert(first, Stage::Refused(why));
    }

    /// What is announced to a peer that is to have one.
    pub(crate) fn announce(&mut self, first: u32) -> Option<Vec<u8>> {
        if self.seconds().stages.get(&first) != Some(&Stage::Wanted) {
            return None;
        }
        self.make(first).map_err(|why| self.refuse(first, why)).ok()
    }

    /// A peer has announced its own, or, by no bytes, that it has none: what is announced to it.
    pub(crate) fn join(&mut self, first: u32, address: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let stage = self.seconds().stages.get(&first).copied();
        match stage {
            Some(Stage::Offered(_)) if address.is_empty() => {
                self.refuse(first, ("the peer's second queue pair", libc::EAGAIN));
                Ok(None)
            }
            Some(Stage::Offered(second)) => self.connect(first, second, address).map(|()| None),
            None | Some(Stage::Wanted) if !address.is_empty() => {
                let own = match self.make(first) {
                    Ok(own) => own,
                    Err(why) => {
                        self.refuse(first, why);
                        return Ok(Some(Vec::new()));
                    }
                };
                let second = self.seconds().second(first).ok_or("its queue pair is gone")?;
                self.connect(first, second, address).map(|()| Some(own))
            }
            Some(Stage::Refused(_)) if !address.is_empty() => Ok(Some(Vec::new())),
            _ => Err("it announces a second queue pair where none was to be".into()),
        }
    }

    fn connect(&mut self, first: u32, second: u32, address: &[u8]) -> Result<(), String> {
        below::Below::connect(self.0, second.into(), address)?;
        self.seconds().stages.insert(first, Stage::Connected(second));
        Ok(())
    }

    /// A peer is not needed any more: its second queue pair goes, and what was registered for it there.
    pub(crate) fn part(&mut self, first: u32) {
        let (second, registrations) = self.seconds().part(first);
        for number in registrations {
            below::Remote::end_lease(self.0, number, true);
        }
        if let Some(second) = second {
            self.0.part_one(second);
        }
    }

    /// Whether the second queue pair of a peer can be used.
    pub(crate) fn is_usable(&self, first: u32) -> bool {
        let Objects { seconds, pairs, .. } = &*self.0.objects;
        let pair = seconds.connected(first).and_then(|(second, _)| pairs.get(second));
        pair.is_some_and(|pair| pair.state == State::Connected)
    }
}
