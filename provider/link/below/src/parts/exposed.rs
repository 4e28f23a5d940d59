//! Registrations of the program that peers may access without asking.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hmem::{Caps, Span};
use link_api::{PeerId, Region};

use crate::network::{Below, Dest, Lease, RAILS, RailsWith};
use crate::published::Entry;

/// A registration.
#[derive(Clone, Debug)]
struct Own {
    region: Region,
    span: Span,
    number: u32,
    /// As it is registered below, once a peer has requested it.
    lease: Option<Lease>,
    /// The network below does not register it.
    is_refused: bool,
    known_to: Vec<PeerId>,
}

/// One that peers may not access any more, and some still may be accessing.
#[derive(Clone, Debug)]
struct Ending {
    key: u64,
    number: u32,
    lease: u64,
    known_to: Vec<PeerId>,
    since: Instant,
}

/// All of an endpoint's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exposed {
    all: HashMap<u64, Own>,
    ending: Vec<Ending>,
    /// Of the last version that was published.
    number: u32,
}

impl Exposed {
    /// A registration, or a change of it: the number of its former version, and the peers that know that.
    pub(crate) fn add(&mut self, region: Region, span: Span) -> (u32, Vec<PeerId>) {
        let is_same = |own: &Own| own.region == region && own.span == span;
        if self.all.get(&region.key).is_some_and(is_same) {
            return (0, Vec::new());
        }
        let before = self.end(region.key);
        self.number = self.number.checked_add(1).unwrap_or(1);
        let (number, lease, known_to) = (self.number, None, Vec::new());
        self.all.insert(region.key, Own { region, span, number, lease, is_refused: false, known_to });
        before
    }

    /// It is published no more: the number of its version, and the peers that know it.
    pub(crate) fn end(&mut self, key: u64) -> (u32, Vec<PeerId>) {
        let Some(own) = self.all.remove(&key) else { return (0, Vec::new()) };
        let Some(lease) = own.lease else { return (own.number, Vec::new()) };
        let (number, known_to, since) = (own.number, own.known_to.clone(), Instant::now());
        self.ending.push(Ending { key, number, lease: lease.number, known_to: own.known_to, since });
        (number, known_to)
    }

    /// The keys of all.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.all.keys().copied().collect()
    }

    /// What to answer a peer that has requested a key. `reaches`: whether the network may access
    /// this memory; `stripes`: from how many bytes on it is accessed in parts.
    pub(crate) fn answer<F: Below>(
        &mut self,
        below: &mut F,
        reaches: impl FnOnce(&F, &Span) -> bool,
        (to, dest, stripes): (PeerId, Dest, usize),
        key: u64,
    ) -> Option<Entry> {
        let own = self.all.get_mut(&key).filter(|own| !own.region.target_must_observe && !own.is_refused)?;
        if own.lease.is_none() {
            let may = reaches(below, &own.span) && !own.span.is_empty();
            own.lease = may.then(|| below.publish(own.span, own.region.read, own.region.write)).flatten();
            own.is_refused = own.lease.is_none();
        }
        let lease = own.lease.as_ref()?;
        let (read, write, is_long) = (own.region.read, own.region.write, own.span.len() >= stripes);
        let is_long = is_long && !own.span.can(Caps::DEVICE);
        if is_long && below.rails(dest) == RailsWith::Awaited {
            return None;
        }
        let key = below.admit(dest, lease, read, write)?;
        let further = if is_long {
            below.stripe(dest, lease.number, own.span, (read, write), true)
        } else {
            [0; RAILS]
        };
        if !own.known_to.contains(&to) {
            own.known_to.push(to);
        }
        let atomics = !own.span.can(Caps::DEVICE);
        Some(Entry { region: own.region, number: own.number, key, base: lease.base, further, atomics })
    }

    /// A peer accesses the version of this number no more.
    pub(crate) fn leave(&mut self, peer: PeerId, number: u32) {
        for ending in self.ending.iter_mut().filter(|ending| ending.number == number) {
            ending.known_to.retain(|known| *known != peer);
        }
    }

    /// A peer is no more.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.all.values_mut().for_each(|own| own.known_to.retain(|known| *known != peer));
        self.ending.iter_mut().for_each(|ending| ending.known_to.retain(|known| *known != peer));
    }

    /// Ends the registrations below that no peer accesses any more, and those that peers have had this long
    /// to leave: those peers, each with the number of the version.
    pub(crate) fn finish<F: Below>(
        &mut self,
        below: &mut Option<F>,
        patience: Option<Duration>,
    ) -> Vec<(PeerId, u32)> {
        let mut silent = Vec::new();
        self.ending.retain_mut(|ending| {
            if patience.is_some_and(|time| ending.since.elapsed() >= time) {
                silent.extend(ending.known_to.drain(..).map(|peer| (peer, ending.number)));
            }
            let is_left = ending.known_to.is_empty();
            !(is_left && below.as_mut().is_none_or(|below| below.end_lease(ending.lease, true)))
        });
        silent
    }

    /// Whether some version of a key is not over, or of any.
    pub(crate) fn is_ending(&self, key: Option<u64>) -> bool {
        self.ending.iter().any(|ending| key.is_none_or(|key| ending.key == key))
    }

    /// The peers that have not left versions which are not over.
    pub(crate) fn awaited(&self) -> Vec<PeerId> {
        self.ending.iter().flat_map(|ending| ending.known_to.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests;
