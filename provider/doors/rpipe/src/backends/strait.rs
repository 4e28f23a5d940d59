//! Strait's own backend: peers on this host by memory that both map, others by the engine's frames.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use ipc::Poller;
use wire::Addr;

use super::far::Far;
use super::near::Near;
use super::reach::Reach;
use crate::core::NO_DEVICES;
use crate::{
    Atomic, Backend, DeviceMemory, Error, Event, Get, Memory, Promise, Put, Rank, Region, RegionId, RemoteId,
    Rma, Settings, Token, Wakeup,
};

/// Names of remote regions from here on are the engine's.
const FAR: u32 = 1 << 31;

/// The default backend.
#[derive(Debug)]
pub struct Strait {
    near: Near,
    far: Far,
    poller: Poller,
    reach: Reach,
    regions: HashMap<u32, Memory>,
    names: u32,
}

impl Strait {
    /// Opens. `reach`: how peers on this host are reached. Of the settings: whether their memory is mapped,
    /// what processes of the job show each other on connections between hosts, and how long such are waited
    /// for.
    pub fn open(rank: Rank, reach: Reach, settings: &Settings) -> Result<Strait, Error> {
        let near = Near::open(rank, settings.map)?;
        let far = Far::open(rank, &reach, settings)?;
        let poller = Poller::new().map_err(|e| Error::system("epoll_create1", &e))?;
        for fd in [near.descriptor(), far.fd()].into_iter().flatten() {
            poller.add(&fd, 0).map_err(|e| Error::system("epoll_ctl", &e))?;
        }
        Ok(Strait { near, far, poller, reach, regions: HashMap::new(), names: FAR })
    }

    fn region(&self, region: (RegionId, usize), len: usize) -> Result<Memory, Error> {
        let memory = self.regions.get(&region.0.0).cloned();
        memory
            .filter(|memory| region.1 <= memory.len() && len <= memory.len() - region.1)
            .ok_or_else(|| Error::Invalid("outside of the region".into()))
    }
}

impl Backend for Strait {
    fn name(&self) -> String {
        match &self.reach {
            Reach::Memory => "strait".into(),
            Reach::Frames => "strait (frames)".into(),
            Reach::Tcp => "strait (tcp)".into(),
            Reach::Provider(_) => format!("strait ({})", self.far.carrier()),
        }
    }

    fn card(&self) -> Vec<u8> {
        let mut card = self.far.addr().encode().to_vec();
        card.push(self.reach.code());
        card.extend(self.near.card());
        card
    }

    fn connect(&mut self, peer: Rank, card: &[u8]) -> Result<(), Error> {
        let other = || Error::Unsupported(format!("rank {peer} has another backend: give all the same"));
        let (addr, rest) = card.split_first_chunk::<{ Addr::LEN }>().ok_or_else(other)?;
        let (reach, near) = rest.split_first().ok_or_else(other)?;
        let addr = Addr::decode(addr).ok_or_else(other)?;
        if *reach != self.reach.code() {
            return Err(other());
        }
        if self.far.knows(peer) || self.reach != Reach::Memory || !self.near.is_of_this_host(near) {
            return self.far.connect(peer, addr);
        }
        self.near.connect(peer, near)
    }

    fn promise(&self, peer: Rank) -> Promise {
        if !self.far.knows(peer) {
            return self.near.promise(peer);
        }
        let mut promise = self.far.promise();
        if self.reach != Reach::Memory {
            promise.why = format!("{} was asked for", self.reach.setting());
        }
        promise
    }

    fn expose(&mut self, len: usize) -> Result<Region, Error> {
        let region = self.near.expose(len)?;
        self.regions.insert(region.id.0, region.memory.clone());
        Ok(region)
    }

    fn expose_device(&mut self, memory: &Arc<DeviceMemory>) -> Result<RegionId, Error> {
        if self.reach != Reach::Memory {
            return Err(Error::Unsupported(NO_DEVICES.into()));
        }
        self.near.expose_device(memory)
    }

    fn withdraw(&mut self, region: RegionId) -> Result<(), Error> {
        self.far.withdraw(region.0);
        self.regions.remove(&region.0);
        self.near.withdraw(region)
    }

    fn forget(&mut self, remote: RemoteId) {
        self.far.forget(remote);
        self.near.forget(remote);
    }

    fn send(&mut self, to: Rank, bytes: &[u8], grants: &[RegionId]) -> Result<(), Error> {
        if !self.far.knows(to) {
            return self.near.send(to, bytes, grants);
        }
        let mut keys = Vec::new();
        for grant in grants {
            if self.near.is_device(*grant) {
                return Err(Error::Unsupported(NO_DEVICES.into()));
            }
            let memory = self.region((*grant, 0), 0)?;
            keys.push((self.far.register(grant.0, &memory)?, memory.len()));
        }
        self.far.send(to, bytes, &keys)
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.near.progress(events)?;
        self.far.progress(events, &mut self.names)
    }

    fn close(&mut self, until: Instant) -> Result<(), Error> {
        let near = self.near.close(until);
        near.and(self.far.close(until))
    }
}

impl Rma for Strait {
    fn put(&mut self, put: &Put) -> Result<(), Error> {
        if put.remote.0.0 < FAR {
            return self.near.put(put);
        }
        let from = self.region(put.from, put.len)?;
        self.far.put(put, &from)
    }

    fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
        notify: Option<u32>,
    ) -> Result<(), Error> {
        if remote.0.0 < FAR {
            return self.near.put_bytes(to, remote, bytes, notify);
        }
        self.far.put_bytes(to, remote, bytes)
    }

    fn get(&mut self, get: &Get) -> Result<(), Error> {
        if get.remote.0.0 < FAR {
            return self.near.get(get);
        }
        let to = self.region(get.to, get.len)?;
        self.far.get(get, &to)
    }

    fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error> {
        if remote.0.0 < FAR {
            return self.near.fetch_add(peer, remote, add, token);
        }
        self.far.fetch_add(peer, remote, add, token)
    }

    fn atomic(&mut self, peer: Rank, remote: (RemoteId, usize), atomic: &Atomic) -> Result<u64, Error> {
        if remote.0.0 < FAR {
            return self.near.atomic(peer, remote, atomic);
        }
        Err(Error::Unsupported("the peer has to do it".into()))
    }
}

impl Wakeup for Strait {
    fn descriptor(&self) -> Option<RawFd> {
        Some(self.poller.fd())
    }

    fn arm(&mut self) -> bool {
        self.near.arm() && self.far.arm()
    }

    fn wake(&mut self, peer: Rank) -> Result<(), Error> {
        if self.far.knows(peer) { self.far.wake(peer) } else { self.near.wake(peer) }
    }
}
