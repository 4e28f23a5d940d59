//! Memory of the program that is registered with the device.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use hmem::client::any_serves_devices;
use hmem::registry::AdapterWrites;
use hmem::share::find_dmabuf;
use hmem::{Caps, Kind, Span, registry};
use rdma_sys::{Access, Bind, Breaker, Dmabuf, Mr, Mw, PEER_MEMORY, Pd, has_peer_memory, ibv_sge};
use register::{Device, Registry, Uses, Way};

mod client;

use client::{ClientMr, iova};

use crate::probe::{Own, Probe};
use crate::status::refused;

/// Whether memory may be registered in a domain of a peer's alone.
pub(crate) fn may_be_apart(span: &Span) -> bool {
    Way::ALL.into_iter().any(|way| way.is_apart() && way.is_for(span))
}

/// Whether the adapter may use memory of a kind, as far as is known: of a device, if some way is left.
pub(crate) fn reaches(kind: Kind, may: impl FnOnce() -> bool) -> bool {
    match kind {
        Kind::System => true,
        Kind::Cuda | Kind::Rocr | Kind::Ze => may(),
        Kind::Client => any_serves_devices() && may(),
        _ => false,
    }
}

/// By which ways memory was registered: the host's where that was refused, and devices'.
pub(crate) fn ways(registered: &Registry<Adapter>) -> String {
    let kinds = [Kind::System, Kind::Cuda, Kind::Rocr, Kind::Ze, Kind::Client].into_iter();
    let all = kinds.flat_map(|kind| [false, true].map(|for_peers| registered.describe(kind, for_peers)));
    let is_shown = |text: &String| {
        let named = [Way::OnDemand, Way::Own].map(Way::name);
        !text.starts_with("System") || text.contains("(not ") || named.iter().any(|name| text.contains(name))
    };
    all.flatten().filter(is_shown).collect::<Vec<_>>().join(", ")
}

/// What ends a registration.
#[derive(Debug)]
enum Holder {
    Program(Mr),
    /// It may take the memory back.
    Client(ClientMr),
}

/// A registration.
#[derive(Debug)]
pub(crate) struct Key {
    holder: Holder,
    lkey: u32,
    rkey: u32,
    /// The address of its first byte here, and in requests.
    first: u64,
    iova: u64,
    len: u64,
    is_device: bool,
    /// Memory windows may be bound to it.
    binds: bool,
    is_dmabuf: bool,
}

impl Key {
    fn of(mr: Mr, span: Span, iova: u64) -> Key {
        let (lkey, rkey) = (mr.lkey(), mr.rkey());
        Key::new(Holder::Program(mr), (lkey, rkey), span, iova)
    }

    fn new(holder: Holder, (lkey, rkey): (u32, u32), span: Span, iova: u64) -> Key {
        let (first, len) = (span.addr(), span.len() as u64);
        let is_device = span.can(Caps::DEVICE);
        Key { holder, lkey, rkey, first, iova, len, is_device, binds: false, is_dmabuf: false }
    }

    /// A request that names it is about to be posted to this queue pair, which is put in error if the memory
    /// is taken back before it is over. `false`: it was taken back.
    pub(crate) fn begin(&self, on: &Breaker) -> bool {
        match &self.holder {
            Holder::Program(_) => true,
            Holder::Client(mr) => mr.begin(on),
        }
    }

    /// What binds a window to all of it, by which a peer reads or writes, or both in one step, unless it is a
    /// device's: that device's atomics are not atomic with the adapter's.
    pub(crate) fn bind(&self, window: &Mw, (read, write): (bool, bool), atomics: bool) -> Option<Bind> {
        let Holder::Program(mr) = &self.holder else { return None };
        let of = |is_so, access| if is_so { access } else { Access::LOCAL_READ };
        let access = of(read, Access::REMOTE_READ)
            .and(of(write, Access::REMOTE_WRITE))
            .and(of(atomics && !self.is_device, Access::REMOTE_ATOMIC));
        Some(window.bind(mr, self.iova, self.len, access))
    }

    /// Whether memory windows may be bound to it.
    pub(crate) fn binds(&self) -> bool {
        self.binds
    }

    /// Whether a dma-buf was registered, and no address.
    pub(crate) fn is_dmabuf(&self) -> bool {
        self.is_dmabuf
    }

    /// For peers, where it is of a domain of one peer's.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// What peers call its first byte.
    pub(crate) fn base(&self) -> u64 {
        self.iova
    }

    /// For requests of this side: memory that is inside.
    pub(crate) fn sge(&self, span: Span) -> ibv_sge {
        let addr = self.iova.wrapping_add(span.addr().wrapping_sub(self.first));
        ibv_sge { addr, length: span.len() as u32, lkey: self.lkey }
    }
}

/// The device, for [`register::Registry`].
#[derive(Debug)]
pub(crate) struct Adapter {
    pd: Pd,
    /// The domains that are a peer's alone, by their numbers, and the queue pair of each.
    domains: HashMap<u32, (Pd, Option<Breaker>)>,
    /// The kernel has a client for memory of other devices.
    knows_peers: bool,
    /// Why no domain of the peer's alone is there, which dma-bufs need; [`Adapter::try_dmabufs`].
    lacks: Option<(&'static str, i32)>,
    /// A dma-buf was taken.
    takes_dmabufs: bool,
    probe: Probe,
}

/// What refuses dma-bufs where there is no domain for them yet.
pub(crate) const NO_DOMAIN: (&str, i32) = ("a queue pair for it alone", libc::EAGAIN);

impl Adapter {
    /// Of this domain. `clients`: where the kernel lists them; `own`: how the port is reached from itself.
    pub(crate) fn new(pd: &Pd, clients: Option<&Path>, own: Own) -> Adapter {
        let knows_peers = has_peer_memory(clients.unwrap_or(Path::new(PEER_MEMORY)));
        let (domains, lacks, probe) = (HashMap::new(), Some(NO_DOMAIN), Probe::new(pd, own));
        Adapter { pd: pd.clone(), domains, knows_peers, lacks, takes_dmabufs: false, probe }
    }

    /// A domain is a peer's alone from now on, with this queue pair, if there is one yet.
    pub(crate) fn add_domain(&mut self, domain: u32, pd: &Pd, pair: Option<&Breaker>) {
        self.domains.insert(domain, (pd.clone(), pair.cloned()));
    }

    /// It is over.
    pub(crate) fn end_domain(&mut self, domain: u32) {
        self.domains.remove(&domain);
    }

    /// What is registered for peers in the domain that they share next: for dma-bufs a domain of the peer's
    /// alone is lacking, and why; or, `None`, it is tried whether they would be taken there
    /// ([`Adapter::takes_dmabufs`]).
    pub(crate) fn try_dmabufs(&mut self, lacks: Option<(&'static str, i32)>) {
        (self.lacks, self.takes_dmabufs) = (lacks, false);
    }

    /// Whether a dma-buf was taken that needs a domain of the peer's alone.
    pub(crate) fn takes_dmabufs(&self) -> bool {
        self.takes_dmabufs
    }

    /// A dma-buf, or memory of a client, for peers of the domain that they share is refused: no window can be
    /// bound to it, and its key would serve all of them.
    fn refuse_apart(&mut self, way: Way, span: Span, uses: Uses) -> (&'static str, i32) {
        if let Some(lacks) = self.lacks {
            return lacks;
        }
        if !self.takes_dmabufs {
            let own = Uses { local_write: uses.writes(), ..Uses::default() };
            let tried = self.register(way, span, own).and_then(|key| self.deregister(key));
            if let Err(why) = tried {
                return why;
            }
            self.takes_dmabufs = true;
        }
        NO_DOMAIN
    }

    /// Registers memory on demand, which the device has accessed then.
    fn register_on_demand(&mut self, span: Span, uses: Uses) -> Result<Mr, (&'static str, i32)> {
        self.probe.check()?;
        let access = access(uses).and(Access::ON_DEMAND);
        // SAFETY: memory that requests of this side access. None does once a page of it was unmapped: what
        // is mapped there next is the process's too, and requests name it as they name what is there now.
        let mr = unsafe { self.pd.register(span.as_ptr().cast(), span.len(), access) }.map_err(refused)?;
        // SAFETY: the registration is as long as this call; a request is about to read or write the memory,
        // whose operation has it.
        unsafe { self.probe.touch(span, mr.lkey(), uses.local_write) }.map(|()| mr)
    }
}

/// The dma-buf of memory by this way, and where in it that begins.
fn dmabuf_of(way: Way, span: Span) -> Result<(Arc<OwnedFd>, u64), (&'static str, i32)> {
    if way == Way::Own {
        return find_dmabuf(span).ok_or((way.name(), libc::ENOENT));
    }
    let (memory, pcie) = (registry::of(span.kind()), way == Way::DmabufPcie);
    let exported = memory.export_dmabuf(span.addr() as usize, span.len(), pcie);
    let (fd, offset) = exported.map_err(|e| ("the export of a dma-buf", e.errno()))?;
    Ok((Arc::new(fd), offset))
}

/// What the device may do. Peers may do nothing but by windows, where they share the domain.
fn access(uses: Uses) -> Access {
    let of = |is_so, access| if is_so { access } else { Access::LOCAL_READ };
    let local = of(uses.writes(), Access::LOCAL_WRITE);
    match uses.domain {
        0 => local.and(of(uses.is_for_peers(), Access::WINDOWS)),
        _ => local
            .and(of(uses.remote_read, Access::REMOTE_READ))
            .and(of(uses.remote_write, Access::REMOTE_WRITE)),
    }
}

impl Device for Adapter {
    type Key = Key;

    fn sees(&mut self, span: Span) -> Result<AdapterWrites, (&'static str, i32)> {
        let (memory, at) = (registry::of(span.kind()), span.addr() as usize);
        // A client says of each registration whether it takes one.
        if span.can(Caps::DEVICE) && span.kind() != Kind::Client {
            // Memory that moves between devices and the host is none that is to be pinned at one place.
            memory.to_adapter(at, span.len()).ok_or(("the device of the memory", libc::EINVAL))?;
        }
        Ok(memory.adapter_writes(at))
    }

    fn flush(&mut self, span: Span) -> Result<(), (&'static str, i32)> {
        let flushed = registry::of(span.kind()).flush_adapter_writes(span.addr() as usize);
        flushed.map_err(|e| ("the flush of GPUDirect RDMA's writes", e.errno()))
    }

    fn register(&mut self, way: Way, span: Span, uses: Uses) -> Result<Key, (&'static str, i32)> {
        let (first, len) = (span.addr(), span.len());
        if way == Way::PeerMemory && !self.knows_peers {
            return Err((PEER_MEMORY, libc::ENODEV));
        }
        if way.is_apart() && uses.domain == 0 && uses.is_for_peers() {
            return Err(self.refuse_apart(way, span, uses));
        }
        let (pd, peer) = match uses.domain {
            0 => (&self.pd, None),
            domain => self.domains.get(&domain).map(|(pd, pair)| (pd, pair.as_ref())).ok_or(NO_DOMAIN)?,
        };
        let is_dmabuf = [Way::Own, Way::DmabufPcie, Way::Dmabuf].contains(&way);
        let (mr, iova) = match way {
            Way::Own | Way::DmabufPcie | Way::Dmabuf => {
                let (fd, offset) = dmabuf_of(way, span)?;
                let iova = iova(span, offset);
                let part = Dmabuf { fd: fd.as_fd(), offset, len, iova };
                // SAFETY: memory that peers or requests of this side access until the registration ends: a
                // request has it, or the program has registered it for that (fi_mr(3)).
                (unsafe { pd.register_dmabuf(part, access(uses)) }, iova)
            }
            Way::Client => {
                let made = ClientMr::register((pd, peer), span, uses, access(uses))?;
                let is_dmabuf = made.is_dmabuf;
                return Ok(Key {
                    is_dmabuf,
                    ..Key::new(Holder::Client(made.mr), made.keys, span, made.iova)
                });
            }
            Way::OnDemand => return self.register_on_demand(span, uses).map(|mr| Key::of(mr, span, first)),
            Way::PeerMemory | Way::Plain => {
                // SAFETY: as above; it stays mapped ([`Span::stays`], which the caller asks).
                (unsafe { pd.register(span.as_ptr().cast(), len, access(uses)) }, first)
            }
        };
        let binds = uses.domain == 0 && uses.is_for_peers();
        Ok(Key { binds, is_dmabuf, ..Key::of(mr.map_err(refused)?, span, iova) })
    }

    fn is_there(&self, key: &Key) -> bool {
        match &key.holder {
            Holder::Program(_) => true,
            Holder::Client(mr) => mr.is_there(),
        }
    }

    fn note_idle(&mut self, key: &Key) {
        if let Holder::Client(mr) = &key.holder {
            mr.note_idle();
        }
    }

    fn deregister(&mut self, key: Key) -> Result<(), (&'static str, i32)> {
        match key.holder {
            Holder::Program(mr) => mr.deregister().map_err(refused),
            Holder::Client(mr) => mr.deregister(),
        }
    }
}
