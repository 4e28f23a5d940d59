//! Any provider of libfabric, opened at run time: an endpoint of reliable datagrams with RMA.
//!
//! Control messages are messages of the endpoint. A card and the rank in a message are trusted: between
//! processes that share a provider, the provider decides which may reach which.

mod buffers;
mod card;
mod control;
mod doubt;
mod endpoint;
mod open;
mod post;
mod region;
mod watch;

use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use self::buffers::ROOM;
pub use self::endpoint::Libfabric;
use self::post::{Work, Write};
use self::region::Registered;
use super::message::{Key, Kind};
use crate::backend::check_control;
use crate::{Backend, Error, Event, Get, Promise, Put, Rank, Region, RegionId, RemoteId, Token};

/// What every path takes without an operation's buffer.
const INJECT: usize = 64;

impl Backend for Libfabric {
    fn name(&self) -> String {
        let version = fabric_client::version_text(self.with.library.version());
        format!("libfabric {version} ({})", self.with.limits.provider)
    }

    fn card(&self) -> Vec<u8> {
        self.card.clone()
    }

    fn connect(&mut self, peer: Rank, card: &[u8]) -> Result<(), Error> {
        self.introduce(peer, card)
    }

    fn promise(&self, _peer: Rank) -> Promise {
        let limits = &self.with.limits;
        let why = match (limits.order, limits.fence, limits.delivered) {
            (Some(most), _, _) if most >= limits.most => "writes of any length are in order",
            (_, true, _) => "a fence keeps writes in order",
            (_, _, true) => "completions say that a write is visible, and nothing keeps two in order",
            _ => "nothing is promised of the order of writes",
        };
        Promise {
            path: limits.provider.clone(),
            why: why.into(),
            mapped: false,
            within: 0,
            between: limits.between(),
            delivered: limits.delivered,
            settled: limits.settled,
            notify: limits.data,
            fetch: limits.fetch,
            wakes: false,
            peer_progress: limits.peer_progress,
            inject: limits.inject.clamp(INJECT, ROOM),
            // A write of few bytes that needs a fence waits for those before.
            eager: if self.needs_fence() { 0 } else { limits.inject.min(ROOM) },
            most: limits.most,
        }
    }

    fn expose(&mut self, len: usize) -> Result<Region, Error> {
        let len = len.max(1).checked_next_multiple_of(64).filter(|len| isize::try_from(*len).is_ok());
        let len = len.ok_or_else(|| Error::Invalid("a region longer than memory".into()))?;
        let id = self.next;
        // A key that may be chosen has so many bytes; 0 is the buffers'.
        let room = 8 * self.with.limits.key_size.clamp(1, 8) as u32;
        if u64::from(id).checked_shr(room).is_some_and(|rest| rest != 0) {
            return Err(Error::Exhausted(format!(
                "provider {}: all keys were used",
                self.with.limits.provider
            )));
        }
        let registered = Registered::new(&self.with, len, true, id.into())?;
        self.next += 1;
        let memory = registered.memory.clone();
        self.regions.insert(id, registered);
        Ok(Region { id: RegionId(id), memory })
    }

    fn withdraw(&mut self, region: RegionId) -> Result<(), Error> {
        self.region(region)?;
        self.regions.remove(&region.0);
        Ok(())
    }

    fn forget(&mut self, remote: RemoteId) {
        self.peers.forget(remote);
    }

    fn send(&mut self, to: Rank, bytes: &[u8], grants: &[RegionId]) -> Result<(), Error> {
        check_control(bytes, grants)?;
        let key = |id: &RegionId| {
            let region = self.region(*id)?;
            Ok(Key { address: region.address, key: region.key, len: region.memory.len() as u64 })
        };
        let keys = grants.iter().map(key).collect::<Result<Vec<_>, Error>>()?;
        self.queue(to, Kind::Control, keys, bytes)
    }

    fn put(&mut self, put: &Put) -> Result<(), Error> {
        let (to, address, key) = self.target(put.to, put.remote, put.len)?;
        let region = self.region(put.from.0)?;
        let (from, desc) = (region.place(put.from.1, put.len)?.cast_const(), region.desc);
        let data = self.data(put.notify)?;
        let fence = put.behind && self.needs_fence();
        let write = Write { from, len: put.len, desc, to, address, key, data, fence };
        let work = Work::Move(put.to, put.token);
        let started = self.start(work, |with, context| post::write(with, &write, context));
        self.doubts.judge(put.to, started)
    }

    fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
        notify: Option<u32>,
    ) -> Result<(), Error> {
        let (peer, address, key) = self.target(to, remote, bytes.len())?;
        let data = self.data(notify)?;
        let fence = self.with.limits.fence && self.needs_fence();
        let len = bytes.len();
        let mut write = Write {
            from: bytes.as_ptr(),
            len,
            desc: std::ptr::null_mut(),
            to: peer,
            address,
            key,
            data,
            fence,
        };
        if !fence && len <= self.with.limits.inject {
            return self.doubts.judge(to, post::inject(&self.with, &write));
        }
        let (buffer, place, desc) = self.buffers.take(bytes)?;
        (write.from, write.desc) = (place.cast_const(), desc);
        let started = self.start(Work::Buffer(buffer), |with, context| post::write(with, &write, context));
        if started.is_err() {
            self.buffers.give(buffer);
        }
        self.doubts.judge(to, started)
    }

    fn get(&mut self, get: &Get) -> Result<(), Error> {
        let from = self.target(get.from, get.remote, get.len)?;
        let region = self.region(get.to.0)?;
        let (at, desc) = (region.place(get.to.1, get.len)?, region.desc);
        let work = Work::Move(get.from, get.token);
        let started = self.start(work, |with, context| post::read(with, at, get.len, desc, from, context));
        self.doubts.judge(get.from, started)
    }

    fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error> {
        if remote.1 % 8 != 0 || !self.with.limits.fetch {
            return Err(Error::Unsupported(
                "a fetch of a word that is not aligned, or without atomics".into(),
            ));
        }
        let from = self.target(peer, remote, 8)?;
        let (buffer, at, desc) = self.buffers.take(&[add.to_ne_bytes(), [0; 8]].concat())?;
        let work = Work::Fetch(peer, token, buffer);
        let started = self.start(work, |with, context| post::fetch_add(with, at, desc, from, context));
        if started.is_err() {
            self.buffers.give(buffer);
        }
        self.doubts.judge(peer, started)
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.poll()?;
        self.flush()?;
        self.look_for_the_gone();
        events.append(&mut self.ready);
        Ok(())
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.sleep.as_ref().map(AsRawFd::as_raw_fd)
    }

    fn arm(&mut self) -> bool {
        if self.sleep.is_none()
            || !self.ready.is_empty()
            || !self.outgoing.is_empty()
            || !self.doubts.is_empty()
            || self.peers.some_leave()
        {
            return false;
        }
        let mut fid = self.with.cq.fid();
        // SAFETY: the fabric is open, so its table is valid; one open queue of it, which has a wait object.
        unsafe {
            let fabric = self.with.domain.fabric.as_ptr();
            let trywait = (*(*fabric).ops).trywait;
            trywait.is_some_and(|trywait| trywait(fabric, &mut fid, 1) == 0)
        }
    }

    fn wake(&mut self, peer: Rank) -> Result<(), Error> {
        self.queue(peer, Kind::Wake, Vec::new(), &[])
    }

    fn close(&mut self, _until: Instant) -> Result<(), Error> {
        self.leave();
        self.watch = None;
        Ok(())
    }
}
