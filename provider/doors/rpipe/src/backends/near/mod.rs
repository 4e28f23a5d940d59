//! Peers on this host: regions are sealed memory, whose descriptors travel with control messages on sockets,
//! so that what a peer grants is mapped here, and is the other process's alone to reach. A hang-up, or the
//! end of the process, is the peer's end.
//!
//! A peer is of the same user (SO_PEERCRED), else it is refused. What it sends is checked: its memory by its
//! seals and its size (`ipc::memfd`), its packets by their form.

mod held;
mod incoming;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::atomic::fence;
use std::time::{Duration, Instant};
use std::{fs, io};

use ipc::credentials::{Cred, User};
use ipc::memfd::{self, Writers};
use ipc::{Mapping, Poller, socket};
use meet::{Life, Strangers};

use held::{Socket, has_packet};

use crate::core::HEAP_MOST;
use crate::core::{NO_DEVICES, check_control};
use crate::{
    Atomic, Backend, DeviceMemory, Error, Event, Get, Memory, Promise, Put, Rank, Region, RegionId, RemoteId,
    Rma, Token, Wakeup,
};

/// What maps of a process show regions as.
const NAME: &CStr = c"strait-rpipe";
/// What a card begins with.
const CARD: &str = "strait-rpipe/1";
/// The longest region: a heap, and what is before it.
const REGION_MOST: usize = HEAP_MOST + (64 << 20);
/// Packets that are taken from one socket in a call of progress.
const PACKETS: usize = 64;
/// For how long packets are waited for to leave when the job is left.
const LEAVING: Duration = Duration::from_secs(1);

/// Most connections that are kept without a hello, which each peer's sends as soon as it is made.
const GUESTS: usize = 64;
/// How long one is; and how long where it takes a descriptor that another connection waits for.
const GREETING: Duration = Duration::from_secs(10);
const GREETING_IN_NEED: Duration = Duration::from_secs(1);

/// Kinds of packets, their first byte.
const HELLO: u8 = 1;
const REGION: u8 = 2;
const CONTROL: u8 = 3;
const WAKE: u8 = 4;
const BYE: u8 = 5;
const DEVICE: u8 = 6;

/// The backend of shared memory.
#[derive(Debug)]
pub struct Near {
    rank: Rank,
    map: bool,
    name: String,
    host: String,
    listener: Option<OwnedFd>,
    poller: Poller,
    sockets: Vec<Option<Socket>>,
    /// The socket by which a peer is sent to.
    by_peer: HashMap<Rank, usize>,
    regions: HashMap<u32, (OwnedFd, Memory)>,
    devices: HashMap<u32, Arc<DeviceMemory>>,
    remotes: HashMap<u32, (Rank, Memory)>,
    last: u32,
    /// Events of operations, which are over at once.
    events: Vec<Event>,
    queued: usize,
    /// The sockets of connections that have not said hello.
    guests: Strangers<(), usize>,
}

impl Near {
    /// Opens; `map`: what peers grant is used as memory of this process.
    pub fn open(rank: Rank, map: bool) -> Result<Near, Error> {
        let bytes = ipc::random().map_err(|e| Error::system("getrandom", &e))?;
        let name = format!("{CARD}/{:032x}", u128::from_ne_bytes(bytes));
        let listener = socket::listen(&name).map_err(|e| Error::system("listen", &e))?;
        let poller = Poller::new().map_err(|e| Error::system("epoll_create1", &e))?;
        poller.add(&listener, 0).map_err(|e| Error::system("epoll_ctl", &e))?;
        let (by_peer, regions, remotes) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Near {
            rank,
            map,
            name,
            host: host(),
            listener: Some(listener),
            poller,
            sockets: Vec::new(),
            by_peer,
            regions,
            devices: HashMap::new(),
            remotes,
            last: 0,
            events: Vec::new(),
            queued: 0,
            guests: Strangers::new(GUESTS),
        })
    }

    /// Whether a card is that of a process of this host, which its sockets and memory lead to.
    pub(super) fn is_of_this_host(&self, card: &[u8]) -> bool {
        std::str::from_utf8(card)
            .is_ok_and(|card| card.split_once(' ').is_some_and(|(_, host)| host == self.host))
    }

    /// Whether a region is memory of a device.
    pub(super) fn is_device(&self, region: RegionId) -> bool {
        self.devices.contains_key(&region.0)
    }

    fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    /// Takes a socket in, with a watch on the process behind it.
    fn add(&mut self, fd: OwnedFd, peer: Option<Rank>) -> Result<usize, Error> {
        let cred = Cred::of(&fd).map_err(|e| Error::system("SO_PEERCRED", &e))?;
        if cred.user(&fd) != User::Ours {
            return Err(Error::Unsupported(
                "a process of another user: peers have to be of the same one".into(),
            ));
        }
        // A process that has ended already may have sent all the same: the socket shows its end.
        let life = Life::watch(&fd, cred.pid).ok().flatten();
        let at = self.sockets.iter().position(Option::is_none).unwrap_or(self.sockets.len());
        let failed = |e| Error::system("epoll_ctl", &e);
        self.poller.add(&fd, at as u64 + 1).map_err(failed)?;
        if let Some(life) = &life {
            self.poller.add(life.fd(), at as u64 + 1).map_err(failed)?;
        }
        let guest = peer.is_none().then(|| self.guests.add((), at));
        let (grants, queue) = (Vec::new(), VecDeque::new());
        let socket = Socket { fd, life, peer, guest, grants, unmapped: None, queue };
        match self.sockets.get_mut(at) {
            Some(place) => *place = Some(socket),
            None => self.sockets.push(Some(socket)),
        }
        Ok(at)
    }

    /// Sends a packet, behind those that wait.
    fn packet(&mut self, to: Rank, bytes: Vec<u8>, fd: Option<OwnedFd>) -> Result<(), Error> {
        let socket = self.by_peer.get(&to).and_then(|at| self.sockets.get_mut(*at)).and_then(Option::as_mut);
        let socket = socket.ok_or_else(|| Error::Gone(format!("rank {to} has ended")))?;
        socket.queue.push_back((bytes, fd));
        self.queued += 1;
        self.queued -= socket.drain();
        Ok(())
    }

    /// A socket has ended, and with it its peer.
    fn end(&mut self, at: usize, events: &mut Vec<Event>) {
        let Some(socket) = self.sockets.get_mut(at).and_then(Option::take) else { return };
        self.queued -= socket.queue.len();
        // Of regions that no control message granted nothing else knows.
        socket.grants.iter().for_each(|grant| self.forget(grant.remote));
        self.poller.remove(&socket.fd);
        if let Some(life) = &socket.life {
            self.poller.remove(life.fd());
        }
        let Some(peer) = socket.peer else {
            socket.guest.map(|place| self.guests.take(place));
            return;
        };
        if self.by_peer.get(&peer) == Some(&at) {
            self.by_peer.remove(&peer);
        }
        // Its other socket may have something yet, also if that was not accepted, or has not said hello.
        self.accept(events);
        for other in 0..self.sockets.len() {
            let may_be = |socket: &Socket| socket.peer.is_none_or(|of| of == peer);
            if self.sockets[other].as_ref().is_some_and(may_be) {
                while !self.receive(other, events)
                    && !matches!(events.last(), Some(Event::Lack { .. }))
                    && self.sockets[other].as_ref().is_some_and(has_packet)
                {}
            }
        }
        events.push(Event::Gone { peer, why: "its process has ended, or has left the job".into() });
    }

    fn remote(&self, peer: Rank, remote: (RemoteId, usize), len: usize) -> Result<(Memory, usize), Error> {
        match self.remotes.get(&remote.0.0) {
            Some((of, memory))
                if *of == peer && remote.1 <= memory.len() && len <= memory.len() - remote.1 =>
            {
                Ok((memory.clone(), remote.1))
            }
            _ => Err(Error::Invalid(format!("rank {peer} has not granted this memory"))),
        }
    }

    fn region(&self, region: (RegionId, usize), len: usize) -> Result<Memory, Error> {
        let memory = self.regions.get(&region.0.0).map(|(_, memory)| memory.clone());
        memory
            .filter(|memory| region.1 <= memory.len() && len <= memory.len() - region.1)
            .ok_or_else(|| Error::Invalid("outside of the region".into()))
    }
}

fn of_mapping(mapping: Mapping) -> Result<Memory, Error> {
    let base = NonNull::new(mapping.base()).ok_or_else(|| Error::Exhausted("no mapping".into()))?;
    let len = mapping.len() & !63;
    // SAFETY: a mapping begins on a page, is mapped as long as it lives, which `Memory` keeps it for, and no
    // reference to its bytes exists; memory of a peer was vetted, so that no access faults.
    Ok(unsafe { Memory::new(base, len, Arc::new(mapping)) })
}

/// What processes that reach each other's sockets and memory have in common.
fn host() -> String {
    use std::os::unix::fs::MetadataExt as _;
    let net = fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino());
    format!("{}.{net}", ipc::host::boot_id())
}

impl Backend for Near {
    fn name(&self) -> String {
        "strait".into()
    }

    fn card(&self) -> Vec<u8> {
        format!("{} {}", self.name, self.host).into_bytes()
    }

    fn connect(&mut self, peer: Rank, card: &[u8]) -> Result<(), Error> {
        if self.by_peer.contains_key(&peer) {
            return Ok(());
        }
        let card = std::str::from_utf8(card).ok().and_then(|card| card.split_once(' '));
        let (name, host) = card.filter(|(name, _)| name.starts_with(CARD)).ok_or_else(|| {
            Error::Unsupported(format!(
                "rank {peer} has another backend, or another version of Strait: give all the same"
            ))
        })?;
        if host != self.host {
            return Err(Error::Unsupported(format!(
                "rank {peer} is on another host, or in another network namespace, and the backend strait reaches processes of \
                 this one"
            )));
        }
        let fd = socket::connect(name).map_err(|e| match e.kind() {
            // It has not accepted others yet.
            io::ErrorKind::WouldBlock => Error::Again,
            _ if socket::is_lack(&e) => Error::system("connect", &e),
            _ => Error::Gone(format!("rank {peer} does not listen: {e}")),
        })?;
        let at = self.add(fd, Some(peer))?;
        self.by_peer.insert(peer, at);
        let mut hello = vec![HELLO];
        hello.extend(self.rank.to_le_bytes());
        self.packet(peer, hello, None)
    }

    fn promise(&self, _: Rank) -> Promise {
        let why = if self.map {
            "the peer is on this host"
        } else {
            "STRAIT_RPIPE_MAP=no: as if it were not mapped"
        };
        Promise {
            path: "shared memory".into(),
            why: why.into(),
            mapped: self.map,
            between: true,
            delivered: true,
            settled: true,
            fetch: true,
            inject: 4096,
            most: usize::MAX,
            ..Promise::default()
        }
    }

    fn expose(&mut self, len: usize) -> Result<Region, Error> {
        let failed = |call: &'static str| move |e: io::Error| Error::system(call, &e);
        let fd = memfd::create(NAME, len, Writers::All).map_err(failed("memfd_create"))?;
        let memory = of_mapping(Mapping::new(&fd, len, None).map_err(failed("mmap"))?)?;
        let id = self.next();
        self.regions.insert(id, (fd, memory.clone()));
        Ok(Region { id: RegionId(id), memory })
    }

    fn expose_device(&mut self, memory: &Arc<DeviceMemory>) -> Result<RegionId, Error> {
        if !self.map {
            return Err(Error::Unsupported(NO_DEVICES.into()));
        }
        let id = self.next();
        self.devices.insert(id, memory.clone());
        Ok(RegionId(id))
    }

    fn withdraw(&mut self, region: RegionId) -> Result<(), Error> {
        self.devices.remove(&region.0);
        self.regions.remove(&region.0);
        Ok(())
    }

    fn forget(&mut self, remote: RemoteId) {
        self.remotes.remove(&remote.0);
    }

    fn send(&mut self, to: Rank, bytes: &[u8], grants: &[RegionId]) -> Result<(), Error> {
        check_control(bytes, grants)?;
        for grant in grants {
            if let Some(memory) = self.devices.get(&grant.0) {
                let copy = memory.fd().try_clone_to_owned().map_err(|e| Error::system("dup", &e))?;
                let packet = [&[DEVICE], &memory.export()[..]].concat();
                self.packet(to, packet, Some(copy))?;
                continue;
            }
            let region = self.regions.get(&grant.0).ok_or_else(|| Error::Invalid("no such region".into()))?;
            let copy = region.0.try_clone().map_err(|e| Error::system("dup", &e))?;
            self.packet(to, vec![REGION], Some(copy))?;
        }
        let mut packet = vec![CONTROL];
        packet.extend(bytes);
        self.packet(to, packet, None)
    }

    fn progress(&mut self, events: &mut Vec<Event>) -> Result<(), Error> {
        events.append(&mut self.events);
        if self.queued > 0 {
            let left: usize = self.sockets.iter_mut().flatten().map(Socket::drain).sum();
            self.queued -= left;
        }
        if !self.guests.is_empty() {
            self.dismiss(GREETING, events);
        }
        let ready = self.poller.ready::<16>();
        for token in ready.tokens() {
            match token.checked_sub(1) {
                None => self.accept(events),
                Some(at) => {
                    if self.receive(at as usize, events) {
                        self.end(at as usize, events);
                    }
                }
            }
        }
        Ok(())
    }

    /// Nothing that was put is lost: it is in memory that both map.
    fn close(&mut self, _until: Instant) -> Result<(), Error> {
        let peers: Vec<Rank> = self.by_peer.keys().copied().collect();
        for peer in peers {
            let _ = self.packet(peer, vec![BYE], None);
        }
        let until = Instant::now() + LEAVING;
        while self.queued > 0 && Instant::now() < until {
            let left: usize = self.sockets.iter_mut().flatten().map(Socket::drain).sum();
            self.queued -= left;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.sockets.clear();
        self.by_peer.clear();
        self.listener = None;
        Ok(())
    }
}

impl Rma for Near {
    fn put(&mut self, put: &Put) -> Result<(), Error> {
        let (to, at) = self.remote(put.to, put.remote, put.len)?;
        let from = self.region(put.from, put.len)?;
        fence(Release);
        from.copy_to(put.from.1, &to, at, put.len);
        self.events.push(Event::Done(put.token));
        Ok(())
    }

    fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
        _: Option<u32>,
    ) -> Result<(), Error> {
        let (memory, at) = self.remote(to, remote, bytes.len())?;
        // Behind all that was put before; a word is put at once.
        fence(Release);
        if (at | bytes.len()) % 8 != 0 {
            memory.copy_in(at, bytes);
            return Ok(());
        }
        for (n, word) in bytes.chunks_exact(8).enumerate() {
            let word =
                u64::from_ne_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]]);
            memory.word(at + 8 * n).store(word, Release);
        }
        Ok(())
    }

    fn get(&mut self, get: &Get) -> Result<(), Error> {
        let (from, at) = self.remote(get.from, get.remote, get.len)?;
        let to = self.region(get.to, get.len)?;
        from.copy_to(at, &to, get.to.1, get.len);
        // What the peer has stored before it said so, in a word that was loaded before.
        fence(SeqCst);
        self.events.push(Event::Done(get.token));
        Ok(())
    }

    fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error> {
        let (memory, at) = self.remote(peer, remote, 8)?;
        if at % 8 != 0 {
            return Err(Error::Invalid("an atomic on no multiple of 8".into()));
        }
        let was = memory.word(at).fetch_add(add, SeqCst);
        self.events.push(Event::Fetched(token, was));
        Ok(())
    }

    fn atomic(&mut self, peer: Rank, remote: (RemoteId, usize), atomic: &Atomic) -> Result<u64, Error> {
        let (memory, at) = self.remote(peer, remote, atomic.width())?;
        atomic.apply(&memory, at).ok_or_else(|| Error::Invalid(format!("an atomic on no word: at {at}")))
    }
}

impl Wakeup for Near {
    fn descriptor(&self) -> Option<RawFd> {
        Some(self.poller.fd())
    }

    fn arm(&mut self) -> bool {
        self.events.is_empty() && self.queued == 0
    }

    fn wake(&mut self, peer: Rank) -> Result<(), Error> {
        self.packet(peer, vec![WAKE], None)
    }
}
