//! MPI-3 windows with passive target, by whichever MPI a library was built for: the portable layer.
//!
//! MPI orders no two puts, so a completion is that of MPI_Win_flush, which says that the bytes are visible. A
//! process that dies takes the job with it, as MPI has it; one that leaves says so.

mod bootstrap;
mod library;
mod message;
mod pages;
mod peers;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Instant;

pub use self::bootstrap::MpiBootstrap;
use self::library::Library;
use self::message::{Key, Kind, MOST, Message};
use self::pages::pages;
use self::peers::Peers;
use crate::core::check_control;
use crate::{
    Backend, Error, Event, Get, Grant, Memory, Promise, Put, Rank, Region, RegionId, RemoteId, Rma, Token,
    Wakeup,
};

/// Bytes that are copied, so that the caller may reuse them.
const INJECT: usize = 1024;

/// An MPI.
#[derive(Debug)]
pub struct Mpi {
    library: Library,
    name: String,
    rank: Rank,
    size: Rank,
    regions: HashMap<u32, (Memory, u64)>,
    peers: Peers,
    /// What is under way to each peer until the next flush.
    under_way: HashMap<Rank, Vec<Work>>,
    next: u32,
    open: bool,
}

#[derive(Debug)]
enum Work {
    Move(Token),
    Fetch(Token, Box<[u64; 2]>),
    /// Of `put_bytes`.
    Bytes {
        _kept: Box<[u8]>,
    },
}

impl Mpi {
    /// Starts the MPI of this name; all processes of the job do.
    pub fn open(name: &str, rank: Rank) -> Result<Mpi, Error> {
        let (library, name) = Library::load(name)?;
        let (mine, size) = library.place()?;
        if mine != rank {
            let why = format!(
                "rank {rank} has rank {mine} in MPI: all processes have to be started by MPI's launcher"
            );
            return Err(Error::Unsupported(why));
        }
        let mut unified = 0;
        // SAFETY: a place for a number.
        library.check(unsafe { (library.table.open_window)(&mut unified) }, "MPI_Win_create_dynamic")?;
        if unified == 0 {
            let why = format!("{name}: its windows have a memory of their own (MPI_WIN_SEPARATE)");
            return Err(Error::Unsupported(why));
        }
        let (regions, under_way) = (HashMap::new(), HashMap::new());
        Ok(Mpi {
            library,
            name,
            rank,
            size,
            regions,
            peers: Peers::default(),
            under_way,
            next: 1,
            open: true,
        })
    }

    fn know(&mut self, peer: Rank) -> Result<(), Error> {
        if peer >= self.size {
            return Err(Error::Invalid(format!("rank {peer} of a job of {}", self.size)));
        }
        if !self.peers.known(peer) {
            self.peers.add(peer, peer.into());
        }
        Ok(())
    }

    fn region(&self, region: RegionId) -> Result<&(Memory, u64), Error> {
        self.regions.get(&region.0).ok_or_else(|| Error::Invalid(format!("there is no region {}", region.0)))
    }

    fn place(&self, from: (RegionId, usize), len: usize) -> Result<*mut u8, Error> {
        let (memory, _) = self.region(from.0)?;
        match from.1 <= memory.len() && len <= memory.len() - from.1 {
            true => Ok(memory.address(from.1)),
            false => {
                Err(Error::Invalid(format!("{len} bytes at {} of a region of {}", from.1, memory.len())))
            }
        }
    }

    /// Where bytes of a peer's region are.
    fn target(&self, peer: Rank, remote: (RemoteId, usize), len: usize) -> Result<(i32, u64), Error> {
        let to = self.peers.address(peer)?;
        let (of, key) = self.peers.remote(remote.0)?;
        let room = usize::try_from(key.len).unwrap_or(usize::MAX);
        if of != peer || len == 0 || remote.1 > room || len > room - remote.1 {
            return Err(Error::Invalid(format!(
                "{len} bytes at {} of region {} of rank {of}",
                remote.1, remote.0.0
            )));
        }
        Ok((to as i32, key.address.wrapping_add(remote.1 as u64)))
    }

    fn began(&mut self, peer: Rank, work: Work) {
        self.under_way.entry(peer).or_default().push(work);
    }

    fn message(&mut self, to: Rank, kind: Kind, grants: Vec<Key>, bytes: &[u8]) -> Result<(), Error> {
        let message = Message { kind, from: self.rank, grants, bytes: bytes.to_vec() }.encode();
        // SAFETY: the library copies the bytes during the call.
        let rc = unsafe { (self.library.table.send)(to as i32, message.as_ptr().cast(), message.len()) };
        self.library.check(rc, "MPI_Isend")
    }

    /// Ends all that was under way.
    fn flush(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        for (peer, work) in &mut self.under_way {
            if work.is_empty() {
                continue;
            }
            // SAFETY: it takes a number.
            self.library.check(unsafe { (self.library.table.flush)(*peer as i32) }, "MPI_Win_flush")?;
            events.extend(work.drain(..).filter_map(|work| match work {
                Work::Move(token) => Some(Event::Done(token)),
                Work::Fetch(token, words) => Some(Event::Fetched(token, words[1])),
                Work::Bytes { .. } => None,
            }));
        }
        Ok(())
    }

    /// The next message; whether there was one.
    fn receive(&mut self, events: &mut Vec<Event>) -> Result<bool, Error> {
        let (mut from, mut len, mut bytes) = (-1, 0, [0u8; MOST]);
        // SAFETY: a place of so many bytes, and two for numbers.
        let rc = unsafe { (self.library.table.poll)(&mut from, bytes.as_mut_ptr().cast(), MOST, &mut len) };
        self.library.check(rc, "MPI_Recv")?;
        let Ok(from) = Rank::try_from(from) else { return Ok(false) };
        self.know(from)?;
        match Message::decode(&bytes[..len.min(MOST)]) {
            Some(message) if message.kind == Kind::Control => {
                let grant = |key: &Key| {
                    let remote = self.peers.grant(from, *key)?;
                    Some(Grant { remote, len: usize::try_from(key.len).ok()?, mapped: None, device: None })
                };
                let grants = message.grants.iter().filter_map(grant).collect();
                events.push(Event::Control { from, bytes: message.bytes, grants });
            }
            Some(message) if message.kind == Kind::Bye => self.peers.ends(from, Instant::now()),
            Some(_) => {}
            None => log::warn!("a message of rank {from} that is none of this backend's was dropped"),
        }
        Ok(true)
    }
}

impl Backend for Mpi {
    fn name(&self) -> String {
        format!("mpi ({})", self.name)
    }

    fn card(&self) -> Vec<u8> {
        b"mpi".to_vec()
    }

    fn connect(&mut self, peer: Rank, _card: &[u8]) -> Result<(), Error> {
        self.know(peer)
    }

    fn promise(&self, _peer: Rank) -> Promise {
        Promise {
            path: self.name.clone(),
            why: "MPI orders no two puts; MPI_Win_flush says that one is visible".into(),
            delivered: true,
            settled: true,
            fetch: true,
            peer_progress: true,
            inject: INJECT,
            most: isize::MAX as usize,
            ..Promise::default()
        }
    }

    fn expose(&mut self, len: usize) -> Result<Region, Error> {
        let len = len.max(1).checked_next_multiple_of(64).filter(|len| isize::try_from(*len).is_ok());
        let memory = pages(len.ok_or_else(|| Error::Invalid("a region longer than memory".into()))?)?;
        let mut address = 0;
        // SAFETY: memory that stays until it is detached, and a place for a number.
        let rc = unsafe { (self.library.table.attach)(memory.address(0).cast(), memory.len(), &mut address) };
        self.library.check(rc, "MPI_Win_attach")?;
        let id = self.next;
        self.next += 1;
        self.regions.insert(id, (memory.clone(), address));
        Ok(Region { id: RegionId(id), memory })
    }

    fn withdraw(&mut self, region: RegionId) -> Result<(), Error> {
        let base = self.region(region)?.0.address(0);
        // SAFETY: the memory was attached, and stays during the call.
        self.library.check(unsafe { (self.library.table.detach)(base.cast()) }, "MPI_Win_detach")?;
        self.regions.remove(&region.0);
        Ok(())
    }

    fn forget(&mut self, remote: RemoteId) {
        self.peers.forget(remote);
    }

    fn send(&mut self, to: Rank, bytes: &[u8], grants: &[RegionId]) -> Result<(), Error> {
        check_control(bytes, grants)?;
        let key = |id: &RegionId| {
            let (memory, address) = self.region(*id)?;
            Ok(Key { address: *address, key: 0, len: memory.len() as u64 })
        };
        let keys = grants.iter().map(key).collect::<Result<Vec<_>, Error>>()?;
        self.peers.address(to)?;
        self.message(to, Kind::Control, keys, bytes)
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.flush(events)?;
        // A peer that sends without end must not keep this call.
        for _ in 0..16 {
            if !self.receive(events)? {
                break;
            }
        }
        while let Some(peer) = self.peers.due() {
            events.push(Event::Gone { peer, why: format!("rank {peer} has left the job") });
        }
        Ok(())
    }

    fn allows_thread(&self) -> Result<(), Error> {
        // SAFETY: it takes nothing.
        if unsafe { (self.library.table.threads)() } != 0 {
            return Ok(());
        }
        Err(Error::Unsupported(format!(
            "{}: operations on this process's memory take its progress, and this MPI allows no thread for that: initialise it with \
             MPI_THREAD_MULTIPLE, or let rinit do so",
            self.name
        )))
    }

    /// Collective, as MPI_Win_free is: it returns when all processes have called it.
    fn close(&mut self, _until: Instant) -> Result<(), Error> {
        if !std::mem::replace(&mut self.open, false) {
            return Ok(());
        }
        let mut events = Vec::new();
        let mut done = self.flush(&mut events);
        for peer in 0..self.size {
            if peer != self.rank && done.is_ok() {
                // One that has said so before waits for this, too.
                done = self.know(peer).and_then(|()| self.message(peer, Kind::Bye, Vec::new(), &[]));
            }
        }
        // Every peer's last word is taken, so that none of them waits for this process to receive.
        let waits =
            |this: &mut Mpi| (0..this.size).any(|peer| peer != this.rank && this.peers.address(peer).is_ok());
        let mut idle = 0;
        while done.is_ok() && (idle == 0 || waits(self)) {
            done = self.progress(&mut events);
            // SAFETY: a place for a number.
            done = done.and(self.library.check(unsafe { (self.library.table.idle)(&mut idle) }, "MPI_Test"));
        }
        // SAFETY: it takes nothing; the window is not used again.
        done = done.and(self.library.check(unsafe { (self.library.table.end)() }, "MPI_Finalize"));
        if let Err(e) = done {
            log::warn!("leaving MPI: {e}");
        }
        Ok(())
    }
}

impl Rma for Mpi {
    fn put(&mut self, put: &Put) -> Result<(), Error> {
        if put.behind || put.notify.is_some() {
            return Err(Error::Unsupported("MPI orders no puts, and notifies of none".into()));
        }
        let (to, address) = self.target(put.to, put.remote, put.len)?;
        let from = self.place(put.from, put.len)?;
        // SAFETY: bytes of a region, which stay as long as the process; no reference to them is held.
        let rc = unsafe { (self.library.table.put)(from.cast_const().cast(), put.len, to, address) };
        self.library.check(rc, "MPI_Put")?;
        self.began(put.to, Work::Move(put.token));
        Ok(())
    }

    fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
        notify: Option<u32>,
    ) -> Result<(), Error> {
        if notify.is_some() || bytes.len() > INJECT {
            return Err(Error::Unsupported(format!(
                "{} bytes at once, of {INJECT}, or with a notice",
                bytes.len()
            )));
        }
        let (target, address) = self.target(to, remote, bytes.len())?;
        let kept: Box<[u8]> = bytes.into();
        // SAFETY: the copy stays until the flush that ends the put.
        let rc = unsafe { (self.library.table.put)(kept.as_ptr().cast(), kept.len(), target, address) };
        self.library.check(rc, "MPI_Put")?;
        self.began(to, Work::Bytes { _kept: kept });
        Ok(())
    }

    fn get(&mut self, get: &Get) -> Result<(), Error> {
        let (from, address) = self.target(get.from, get.remote, get.len)?;
        let at = self.place(get.to, get.len)?;
        // SAFETY: as in `put`.
        let rc = unsafe { (self.library.table.get)(at.cast(), get.len, from, address) };
        self.library.check(rc, "MPI_Get")?;
        self.began(get.from, Work::Move(get.token));
        Ok(())
    }

    fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error> {
        if remote.1 % 8 != 0 {
            return Err(Error::Invalid("a fetch of a word that is not aligned".into()));
        }
        let (to, address) = self.target(peer, remote, 8)?;
        let mut words = Box::new([add, 0]);
        let at = words.as_mut_ptr();
        // SAFETY: two words on the heap, which stay there until the flush that ends the operation.
        let rc = unsafe { (self.library.table.fetch_add)(at, at.add(1), to, address) };
        self.library.check(rc, "MPI_Fetch_and_op")?;
        self.began(peer, Work::Fetch(token, words));
        Ok(())
    }
}

impl Wakeup for Mpi {
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn wake(&mut self, _peer: Rank) -> Result<(), Error> {
        // No peer sleeps: there is nothing to sleep on.
        Ok(())
    }
}
