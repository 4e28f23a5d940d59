//! The peers, and what they have granted.

use std::collections::HashMap;
use std::time::Instant;

use super::message::Key;
use crate::{Error, Rank, RemoteId};

/// The most regions that are kept of one peer.
const GRANTS: usize = 1 << 16;

#[derive(Debug)]
struct Peer {
    address: u64,
    /// When its end is reported; its last operations come before.
    ends: Option<Instant>,
    gone: bool,
    grants: usize,
}

#[derive(Debug, Default)]
pub struct Peers {
    all: HashMap<Rank, Peer>,
    remotes: Vec<Option<(Rank, Key)>>,
    free: Vec<u32>,
    leaving: usize,
}

impl Peers {
    pub fn known(&self, peer: Rank) -> bool {
        self.all.contains_key(&peer)
    }

    pub fn add(&mut self, peer: Rank, address: u64) {
        self.all.insert(peer, Peer { address, ends: None, gone: false, grants: 0 });
    }

    /// Where operations to a peer go.
    #[inline]
    pub fn address(&self, peer: Rank) -> Result<u64, Error> {
        match self.all.get(&peer) {
            Some(one) if !one.gone => Ok(one.address),
            Some(_) => Err(Error::Gone(format!("rank {peer} has ended"))),
            None => Err(Error::Invalid(format!("rank {peer} was not introduced"))),
        }
    }

    /// A region that a peer has granted.
    #[inline]
    pub fn remote(&self, remote: RemoteId) -> Result<(Rank, Key), Error> {
        let found = self.remotes.get(remote.0 as usize).copied().flatten();
        found.ok_or_else(|| Error::Invalid(format!("there is no region {} of a peer's", remote.0)))
    }

    /// Takes a grant; none of a peer that grants without end.
    pub fn grant(&mut self, peer: Rank, key: Key) -> Option<RemoteId> {
        let one = self.all.get_mut(&peer)?;
        if one.grants >= GRANTS || isize::try_from(key.len).is_err() {
            return None;
        }
        one.grants += 1;
        let id = self.free.pop().unwrap_or_else(|| {
            self.remotes.push(None);
            self.remotes.len() as u32 - 1
        });
        self.remotes[id as usize] = Some((peer, key));
        Some(RemoteId(id))
    }

    pub fn forget(&mut self, remote: RemoteId) {
        let Some((peer, _)) = self.remotes.get_mut(remote.0 as usize).and_then(Option::take) else { return };
        self.free.push(remote.0);
        if let Some(one) = self.all.get_mut(&peer) {
            one.grants -= 1;
        }
    }

    /// A peer's end is to be reported at this time, or earlier.
    pub fn ends(&mut self, peer: Rank, at: Instant) {
        let Some(one) = self.all.get_mut(&peer).filter(|one| !one.gone) else { return };
        self.leaving += usize::from(one.ends.is_none());
        one.ends = Some(one.ends.map_or(at, |before| before.min(at)));
    }

    /// A peer whose end is due, which is gone now.
    pub fn due(&mut self) -> Option<Rank> {
        if self.leaving == 0 {
            return None;
        }
        let now = Instant::now();
        let (rank, one) =
            self.all.iter_mut().find(|(_, one)| !one.gone && one.ends.is_some_and(|at| at <= now))?;
        one.gone = true;
        self.leaving -= 1;
        Some(*rank)
    }
}
