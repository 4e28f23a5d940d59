//! Memory of the program that is registered with the device.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::Path;

use hmem::registry::AdapterWrites;
use hmem::{Caps, Span, registry};
use rdma_sys::{Access, Bind, Dmabuf, Error, Mr, Mw, Pd, ibv_sge};
use register::{Device, Uses, Way};

use crate::probe::{Own, Probe};

/// Where the kernel lists the clients that know memory of other devices, and the module of one that older
/// kernels do not list.
const PEERS: &str = "/sys/kernel/mm/memory_peers";
const PEERMEM: &str = "/sys/module/nvidia_peermem";
/// Addresses in a dma-buf and those that requests name agree below this.
const PAGE: u64 = 4096;

/// A registration.
#[derive(Debug)]
pub(crate) struct Key {
    mr: Mr,
    /// The address of its first byte here, and in requests.
    first: u64,
    iova: u64,
    len: u64,
    is_device: bool,
}

impl Key {
    fn of(mr: Mr, span: Span, iova: u64) -> Key {
        let (first, len) = (span.addr(), span.len() as u64);
        Key { mr, first, iova, len, is_device: span.can(Caps::DEVICE) }
    }

    /// What binds a window to all of it, by which a peer reads or writes, or both in one step, unless it is a
    /// device's: that device's atomics are not atomic with the adapter's.
    pub(crate) fn bind(&self, window: &Mw, (read, write): (bool, bool), atomics: bool) -> Bind {
        let of = |is_so, access| if is_so { access } else { Access::LOCAL_READ };
        let access = of(read, Access::REMOTE_READ)
            .and(of(write, Access::REMOTE_WRITE))
            .and(of(atomics && !self.is_device, Access::REMOTE_ATOMIC));
        window.bind(&self.mr, self.iova, self.len, access)
    }

    /// What peers call its first byte.
    pub(crate) fn base(&self) -> u64 {
        self.iova
    }

    /// For requests of this side: memory that is inside.
    pub(crate) fn sge(&self, span: Span) -> ibv_sge {
        let addr = self.iova.wrapping_add(span.addr().wrapping_sub(self.first));
        ibv_sge { addr, length: span.len() as u32, lkey: self.mr.lkey() }
    }
}

/// The device, for [`register::Registry`].
#[derive(Debug)]
pub(crate) struct Adapter {
    pd: Pd,
    /// The kernel has a client for memory of other devices.
    knows_peers: bool,
    probe: Probe,
}

impl Adapter {
    /// Of this domain. `clients`: where the kernel lists them; `own`: how the port is reached from itself.
    pub(crate) fn new(pd: &Pd, clients: Option<&Path>, own: Own) -> Adapter {
        let clients = clients.unwrap_or(Path::new(PEERS));
        let is_listed = fs::read_dir(clients).is_ok_and(|mut all| all.next().is_some());
        let knows_peers = is_listed || fs::metadata(PEERMEM).is_ok();
        Adapter { pd: pd.clone(), knows_peers, probe: Probe::new(pd, own) }
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

/// What the device may do. Peers may do nothing but by windows.
fn access(uses: Uses) -> Access {
    let of = |is_so, access| if is_so { access } else { Access::LOCAL_READ };
    of(uses.local_write || uses.remote_write, Access::LOCAL_WRITE)
        .and(of(uses.remote_read || uses.remote_write, Access::WINDOWS))
}

/// The call that refused, and its errno.
fn refused(e: Error) -> (&'static str, i32) {
    (e.call().unwrap_or("libibverbs"), e.errno())
}

impl Device for Adapter {
    type Key = Key;

    fn sees(&mut self, span: Span) -> Result<AdapterWrites, (&'static str, i32)> {
        let (memory, at) = (registry::of(span.kind()), span.addr() as usize);
        if span.can(Caps::DEVICE) {
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
            return Err((PEERS, libc::ENODEV));
        }
        let (mr, iova) = match way {
            Way::DmabufPcie | Way::Dmabuf => {
                let exported =
                    registry::of(span.kind()).export_dmabuf(first as usize, len, way == Way::DmabufPcie);
                let (fd, offset) = exported.map_err(|e| ("the export of a dma-buf", e.errno()))?;
                let iova = first - first % PAGE + offset % PAGE;
                let part = Dmabuf { fd: fd.as_fd(), offset, len, iova };
                // SAFETY: memory that peers or requests of this side access until the registration ends: a
                // request has it, or the program has registered it for that (fi_mr(3)).
                (unsafe { self.pd.register_dmabuf(part, access(uses)) }, iova)
            }
            Way::OnDemand => return self.register_on_demand(span, uses).map(|mr| Key::of(mr, span, first)),
            Way::PeerMemory | Way::Plain => {
                // SAFETY: as above; it stays mapped ([`Span::stays`], which the caller asks).
                (unsafe { self.pd.register(span.as_ptr().cast(), len, access(uses)) }, first)
            }
        };
        Ok(Key::of(mr.map_err(refused)?, span, iova))
    }

    fn deregister(&mut self, key: Key) -> Result<(), (&'static str, i32)> {
        key.mr.deregister().map_err(refused)
    }
}
