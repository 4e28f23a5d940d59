//! The endpoint, and what belongs to it.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use fabric_client::Own;
use libfabric_sys as sys;

use super::super::peers::Peers;
use super::buffers::{Buffers, Outgoing, RECEIVES, SENDS};
use super::card::Card;
use super::doubt::Doubts;
use super::open::{self, Opened, failed};
use super::post::{Slots, Work};
use super::region::Registered;
use super::watch::Watch;
use crate::{Error, Event, Rank, RegionId, RemoteId};

/// A provider of libfabric.
// Closed in this order. Receives are posted until the endpoint is closed, and closing it may still take
// messages in, as ofi_rxm does: what lies in regions, buffers and slots outlives it.
#[derive(Debug)]
pub struct Libfabric {
    pub(super) rank: Rank,
    pub(super) card: Vec<u8>,
    pub(super) watch: Option<Watch>,
    pub(super) sleep: Option<OwnedFd>,
    pub(super) with: Opened,
    pub(super) regions: HashMap<u32, Registered>,
    pub(super) buffers: Buffers,
    pub(super) slots: Slots,
    pub(super) peers: Peers,
    pub(super) outgoing: Outgoing,
    pub(super) doubts: Doubts,
    pub(super) next: u32,
    pub(super) ready: Vec<Event>,
}

// SAFETY: libfabric's objects and registered memory belong to the process, not to a thread; `Backend` is
// called by one thread at a time, which is what FI_THREAD_DOMAIN wants. Whatever counts the domain is in
// here.
unsafe impl Send for Libfabric {}

impl Libfabric {
    /// Opens an endpoint of this provider, such as `tcp;ofi_rxm`; an empty name stands for libfabric's own
    /// choice.
    pub fn open(provider: &str, rank: Rank) -> Result<Libfabric, Error> {
        let with = open::open((!provider.is_empty()).then_some(provider))?;
        log::debug!("libfabric: {:?}", with.limits);
        let watch = Watch::start()?;
        let card = Card { address: name(&with)?, place: watch.place().clone() }.bytes();
        if card.len() > crate::CARD_MOST {
            return Err(Error::Unsupported(format!(
                "provider {}: its addresses are too long",
                with.limits.provider
            )));
        }
        let sleep = with.wait.map(|fd| together(fd, watch.descriptor())).transpose()?;
        let buffers = Buffers::new(&with)?;
        let mut opened = Libfabric {
            rank,
            card,
            watch: Some(watch),
            sleep,
            with,
            regions: HashMap::new(),
            buffers,
            slots: Slots::new(RECEIVES + SENDS),
            peers: Peers::default(),
            outgoing: Outgoing::default(),
            doubts: Doubts::default(),
            next: 1,
            ready: Vec::new(),
        };
        for buffer in 0..RECEIVES {
            opened.buffers.receive(&opened.with, &mut opened.slots, buffer)?;
        }
        Ok(opened)
    }

    pub fn region(&self, region: RegionId) -> Result<&Registered, Error> {
        self.regions.get(&region.0).ok_or_else(|| Error::Invalid(format!("there is no region {}", region.0)))
    }

    /// Where `len` bytes of a peer's region are for the provider: endpoint, address, key.
    #[inline]
    pub fn target(
        &self,
        peer: Rank,
        remote: (RemoteId, usize),
        len: usize,
    ) -> Result<(u64, u64, u64), Error> {
        let to = self.peers.address(peer)?;
        let (of, key) = self.peers.remote(remote.0)?;
        let room = usize::try_from(key.len).unwrap_or(usize::MAX);
        if of != peer || len == 0 || remote.1 > room || len > room - remote.1 {
            return Err(Error::Invalid(format!(
                "{len} bytes at {} are outside of region {} of rank {of}",
                remote.1, remote.0.0
            )));
        }
        Ok((to, key.address.wrapping_add(remote.1 as u64), key.key))
    }

    pub fn data(&self, notify: Option<u32>) -> Result<Option<u64>, Error> {
        match notify {
            Some(_) if !self.with.limits.data => {
                Err(Error::Unsupported(format!("provider {} carries no data", self.with.limits.provider)))
            }
            data => Ok(data.map(|data| u64::from(self.rank) << 32 | u64::from(data))),
        }
    }

    /// Whether a later write has to be fenced off from earlier ones.
    pub fn needs_fence(&self) -> bool {
        self.with.limits.order.is_none_or(|most| most < self.with.limits.most)
    }

    /// Starts an operation that a slot stands for, which is free again if it does not start.
    #[inline]
    pub fn start(
        &mut self,
        work: Work,
        post: impl FnOnce(&Opened, *mut libc::c_void) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let slot = self.slots.take(work)?;
        let context = self.slots.context(slot);
        let started = post(&self.with, context);
        if started.is_err() {
            self.slots.end(context);
        }
        started
    }
}

impl Drop for Libfabric {
    fn drop(&mut self) {
        // A provider may refuse to close an endpoint that regions are bound to, as cxi does (EBUSY).
        if self.with.limits.mr_mode & sys::FI_MR_ENDPOINT != 0 {
            self.regions.values_mut().for_each(Registered::deregister);
            self.buffers.deregister();
        }
    }
}

/// The endpoint's own address.
fn name(with: &Opened) -> Result<Vec<u8>, Error> {
    // SAFETY: the endpoint is open, so its table is valid.
    let getname =
        with.library.have(unsafe { (*(*with.ep.as_ptr()).cm).getname }, "getname").map_err(failed)?;
    let mut name = vec![0u8; 512];
    let mut len = name.len();
    // SAFETY: the buffer has `len` bytes.
    let rc = unsafe { getname(with.ep.fid(), name.as_mut_ptr().cast(), &mut len) };
    if rc != 0 {
        let why = with.library.strerror(rc.into());
        return Err(Error::System(format!(
            "asking provider {} for its address: {why}",
            with.limits.provider
        )));
    }
    name.truncate(len);
    Ok(name)
}

/// One descriptor for two.
fn together(one: RawFd, other: RawFd) -> Result<OwnedFd, Error> {
    use std::os::fd::FromRawFd;
    let wrong = || Error::system("epoll", &std::io::Error::last_os_error());
    // SAFETY: epoll_create1(2) touches no memory of ours.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(wrong());
    }
    // SAFETY: a descriptor just made, which nothing else owns.
    let set = unsafe { OwnedFd::from_raw_fd(fd) };
    for member in [one, other] {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` is a valid event.
        if unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, member, &mut event) } != 0 {
            return Err(wrong());
        }
    }
    Ok(set)
}

/// What the vector answers for a peer's address.
pub fn insert(av: &Own<sys::fid_av>, with: &fabric_client::Library, name: &[u8]) -> Result<u64, Error> {
    // SAFETY: the vector is open, so its table is valid.
    let insert = with.have(unsafe { (*(*av.as_ptr()).ops).insert }, "av_insert").map_err(failed)?;
    // A provider reads as many bytes as its address format has, whatever the length was.
    let mut name = name.to_vec();
    name.resize(name.len() + 64, 0);
    let mut place = sys::FI_ADDR_UNSPEC;
    // SAFETY: one address, in the format of this provider, with room for longer ones behind it, and a place
    // for the answer.
    let rc = unsafe { insert(av.as_ptr(), name.as_ptr().cast(), 1, &mut place, 0, std::ptr::null_mut()) };
    match rc {
        1 => Ok(place),
        _ => Err(Error::System(
            "the provider does not take the peer's address: is it of another provider?".into(),
        )),
    }
}
