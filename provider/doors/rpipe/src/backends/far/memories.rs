//! Memory that peers reach, and memory of peers.

use std::collections::HashMap;

use engine::MrId;
use wire::RmaSeg;

use super::super::terms::segment;
use super::ep::Ep;
use crate::{Error, Memory, Rank, RemoteId};

#[derive(Debug, Default)]
pub(super) struct Memories {
    /// Registrations by region, with their keys.
    regions: HashMap<u32, (MrId, u64, Memory)>,
    /// Regions that were taken back, and are reached until the messages that wait have left.
    withdrawn: Vec<(MrId, Memory)>,
    /// Of peers: whose, their keys and lengths.
    remotes: HashMap<u32, (Rank, u64, usize)>,
}

impl Memories {
    /// Lets peers reach a region; its key.
    pub(super) fn register(&mut self, ep: &Ep, id: u32, memory: &Memory) -> Result<u64, Error> {
        if let Some((_, key, _)) = self.regions.get(&id) {
            return Ok(*key);
        }
        let (mr, key) = ep.register(memory)?;
        self.regions.insert(id, (mr, key, memory.clone()));
        Ok(key)
    }

    /// Takes a region back. `waits`: that it is taken back may be what a message says that has not left.
    pub(super) fn withdraw(&mut self, ep: &Ep, id: u32, waits: bool) {
        if let Some((mr, _, memory)) = self.regions.remove(&id) {
            match waits {
                true => self.withdrawn.push((mr, memory)),
                false => ep.unregister(mr, memory),
            }
        }
    }

    /// No message waits any more.
    pub(super) fn close_withdrawn(&mut self, ep: &Ep) {
        self.withdrawn.drain(..).for_each(|(mr, memory)| ep.unregister(mr, memory));
    }

    pub(super) fn add_remote(&mut self, id: u32, of: Rank, key: u64, len: usize) {
        self.remotes.insert(id, (of, key, len));
    }

    pub(super) fn forget(&mut self, remote: RemoteId) {
        self.remotes.remove(&remote.0);
    }

    /// A part of memory that a peer has granted.
    pub(super) fn remote(&self, peer: Rank, remote: (RemoteId, usize), len: usize) -> Result<RmaSeg, Error> {
        match self.remotes.get(&remote.0.0) {
            Some((of, key, most)) if *of == peer && remote.1 <= *most && len <= most - remote.1 => {
                Ok(segment(remote.1, len, *key))
            }
            _ => Err(Error::Invalid(format!("rank {peer} has not granted this memory"))),
        }
    }

    /// Peers may still be inside of these registrations: their memory stays.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.regions));
        std::mem::forget(std::mem::take(&mut self.withdrawn));
    }
}
