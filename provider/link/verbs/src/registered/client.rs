//! Registrations of a client's memory, which the client may take back at any time and from any thread
//! ([`Revocable`]).

use std::os::fd::AsFd as _;

use hmem::Span;
use hmem::client::{Adapter, DeviceMemory, Mapped, Revocable};
use rdma_sys::{Access, Breaker, Dmabuf, Mr, Pd};
use register::Uses;

use crate::status::refused;

/// Addresses in a dma-buf and those that requests name agree below this.
const PAGE: u64 = 4096;

/// The address that requests and peers name memory by which begins there in a dma-buf.
pub(super) fn iova(span: Span, offset: u64) -> u64 {
    span.addr() - span.addr() % PAGE + offset % PAGE
}

/// A call that refused, and an errno.
type Refused = (&'static str, i32);

/// The objects of libibverbs.
#[derive(Debug)]
struct Rdma;

impl Adapter for Rdma {
    type Mr = Mr;
    type Pair = Breaker;
    type Refused = Refused;

    fn deregister(mr: Mr) -> Result<(), Refused> {
        mr.deregister().map_err(refused).inspect_err(|(call, errno)| {
            log::error!("{call}: errno {errno}: memory of a client stays registered");
        })
    }

    fn fail(pair: &Breaker) {
        pair.fail();
    }

    fn is_same(one: &Breaker, other: &Breaker) -> bool {
        one.is_of(other)
    }
}

/// A registration of a client's memory.
#[derive(Debug)]
pub(super) struct ClientMr {
    own: Revocable<Rdma>,
    /// Goes last: when it has gone, nothing revokes any more.
    _memory: DeviceMemory,
}

/// What was made.
pub(super) struct Made {
    pub(super) mr: ClientMr,
    /// For this side, and for peers.
    pub(super) keys: (u32, u32),
    /// What requests call its first byte.
    pub(super) iova: u64,
    pub(super) is_dmabuf: bool,
}

impl Drop for ClientMr {
    fn drop(&mut self) {
        // What is refused was logged.
        let _ = self.own.end();
    }
}

impl ClientMr {
    /// Has the client map the memory, and registers what it says, in a domain that may be of the peer's
    /// alone which this queue pair leads to.
    pub(super) fn register(
        (pd, peer): (&Pd, Option<&Breaker>),
        span: Span,
        uses: Uses,
        access: Access,
    ) -> Result<Made, Refused> {
        let own = Revocable::new(peer.cloned());
        let revoked = own.clone();
        let mapped = DeviceMemory::map(span, uses.writes(), Box::new(move || revoked.revoke()));
        let (mapped, memory) = mapped.map_err(|why| (why.call.name(), why.errno))?;
        let mr = ClientMr { own, _memory: memory };
        let is_dmabuf = matches!(mapped, Mapped::Dmabuf(..));
        let made = mr.own.register(|| {
            let (made, iova) = match mapped {
                Mapped::Dmabuf(fd, offset) => {
                    let iova = iova(span, offset);
                    let part = Dmabuf { fd: fd.as_fd(), offset, len: span.len(), iova };
                    // SAFETY: memory that peers or requests of this side access until the registration ends:
                    // a request has it, or the program has registered it for that (fi_mr(3)).
                    (unsafe { pd.register_dmabuf(part, access) }, iova)
                }
                Mapped::Address(at) => {
                    let memory = std::ptr::with_exposed_provenance_mut(at);
                    // SAFETY: as above; the client says that an adapter may have this memory until it is
                    // taken back, which ends the registration first.
                    (unsafe { pd.register(memory, span.len(), access) }, at as u64)
                }
            };
            let made = made.map_err(refused)?;
            let keys = (made.lkey(), made.rkey());
            Ok((made, (keys, iova)))
        });
        let (keys, iova) = made.ok_or(TAKEN_BACK)??;
        Ok(Made { mr, keys, iova, is_dmabuf })
    }

    pub(super) fn is_there(&self) -> bool {
        self.own.is_there()
    }

    /// A request is to be posted to this queue pair, unless the memory was taken back.
    pub(super) fn begin(&self, on: &Breaker) -> bool {
        self.own.begin(on)
    }

    pub(super) fn note_idle(&self) {
        self.own.note_idle();
    }

    /// Ends it: when this returns, also the client's mapping has ended that no other registration uses.
    pub(super) fn deregister(self) -> Result<(), Refused> {
        self.own.end()
    }
}

/// What is said of memory whose client has taken it back meanwhile.
const TAKEN_BACK: Refused = ("the client, which takes the memory back", libc::ESTALE);
