//! The peers that are known: where they are, and which of them have ended.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use engine::FiAddr;

use crate::{Error, Rank};

/// For how long what a peer has sent before it ended is waited for.
const LAST_WORDS: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
struct Peer {
    at: FiAddr,
    /// A message that asks whether it is there is under way.
    pinged: bool,
    /// Puts under way whose bytes the peer fetches.
    fetched: u32,
}

#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: HashMap<Rank, Peer>,
    ranks: HashMap<FiAddr, Rank>,
    gone: HashSet<Rank>,
    /// Peers to which an operation has failed since they have ended, and why. What they have sent before
    /// comes first.
    ending: Vec<(Rank, String, Instant)>,
}

impl Peers {
    pub(super) fn knows(&self, rank: Rank) -> bool {
        self.peers.contains_key(&rank)
    }

    pub(super) fn add(&mut self, rank: Rank, at: FiAddr) {
        self.peers.insert(rank, Peer { at, pinged: false, fetched: 0 });
        self.ranks.insert(at, rank);
    }

    pub(super) fn rank_at(&self, at: FiAddr) -> Option<Rank> {
        self.ranks.get(&at).copied()
    }

    pub(super) fn place(&self, rank: Rank) -> Option<FiAddr> {
        self.peers.get(&rank).map(|peer| peer.at)
    }

    /// Where a peer is that has not ended.
    pub(super) fn at(&self, rank: Rank) -> Result<FiAddr, Error> {
        match self.place(rank) {
            Some(_) if self.gone.contains(&rank) => Err(Error::Gone(format!("rank {rank} has ended"))),
            Some(at) => Ok(at),
            None => Err(Error::Invalid(format!("rank {rank} is not known here"))),
        }
    }

    pub(super) fn all(&self) -> Vec<Rank> {
        self.peers.keys().copied().collect()
    }

    /// Those that have not ended, and that are not asked just now whether they are there.
    pub(super) fn unasked(&self) -> Vec<Rank> {
        let asked = |(rank, peer): &(&Rank, &Peer)| !peer.pinged && !self.gone.contains(rank);
        self.peers.iter().filter(asked).map(|(rank, _)| *rank).collect()
    }

    pub(super) fn set_pinged(&mut self, rank: Rank, pinged: bool) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.pinged = pinged;
        }
    }

    /// Whether the peer fetches bytes of a put.
    pub(super) fn fetches(&self, rank: Rank) -> bool {
        self.peers.get(&rank).is_some_and(|peer| peer.fetched > 0)
    }

    pub(super) fn begin_fetch(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.fetched += 1;
        }
    }

    pub(super) fn end_fetch(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.fetched -= 1;
        }
    }

    /// An operation has failed: for the end of its peer, or for itself.
    pub(super) fn fail(&mut self, peer: Rank, fault: Error) {
        let Error::Gone(why) = fault else {
            log::warn!("rpipe: an operation to rank {peer} has failed: {fault}");
            return;
        };
        if !self.ends(peer) {
            self.ending.push((peer, why, Instant::now()));
        }
    }

    /// Whether a peer has ended, as far as is known, also if that was not reported yet.
    pub(super) fn ends(&self, rank: Rank) -> bool {
        self.gone.contains(&rank) || self.ending.iter().any(|(of, ..)| *of == rank)
    }

    pub(super) fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Takes out those whose end is to be reported now, since nothing of them comes any more. `quiet`:
    /// nothing has come just now.
    pub(super) fn take_ended(
        &mut self,
        quiet: bool,
        is_connected: impl Fn(FiAddr) -> bool,
    ) -> Vec<(Rank, String)> {
        let comes = |rank: &Rank| !quiet || self.peers.get(rank).is_some_and(|peer| is_connected(peer.at));
        let is_over =
            |(rank, _, since): &(Rank, String, Instant)| since.elapsed() > LAST_WORDS || !comes(rank);
        let (ended, later): (Vec<_>, _) = std::mem::take(&mut self.ending).into_iter().partition(is_over);
        self.ending = later;
        ended.into_iter().map(|(rank, why, _)| (rank, why)).collect()
    }

    /// A peer's end is reported; `false`: it was before.
    pub(super) fn end(&mut self, rank: Rank) -> bool {
        self.gone.insert(rank)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_reported_once_and_behind_what_still_comes() {
        let mut peers = Peers::default();
        peers.add(1, 7);
        assert_eq!((peers.at(1), peers.rank_at(7)), (Ok(7), Some(1)));
        peers.fail(1, Error::System("another fault".into()));
        assert!(!peers.has_ending(), "the operation alone has failed");
        (0..2).for_each(|_| peers.fail(1, Error::Gone("reset".into())));
        assert!(peers.ends(1) && peers.at(1).is_ok());
        assert!(peers.take_ended(false, |_| false).is_empty(), "something has just come");
        assert!(peers.take_ended(true, |_| true).is_empty(), "its connection is still there");
        assert_eq!(peers.take_ended(true, |_| false), [(1, "reset".into())]);
        assert!(peers.end(1) && !peers.end(1) && !peers.has_ending());
        assert!(matches!(peers.at(1), Err(Error::Gone(_))) && peers.unasked().is_empty());
        peers.fail(1, Error::Gone("again".into()));
        assert!(!peers.has_ending());
    }
}
