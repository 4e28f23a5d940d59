//! Registrations of a client's memory, which the client may take back at any time and from any thread.
//!
//! What takes it back puts the queue pairs in error that have requests under way which name it, since nothing
//! need poll for their completions, and ends the registration; so the device has no access when the client
//! gets its memory. All else is up to the thread of the endpoint, which finds the registration gone.

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hmem::Span;
use hmem::client::{DeviceMemory, Mapped};
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

#[derive(Debug, Default)]
struct State {
    mr: Option<Mr>,
    is_revoked: bool,
    /// What could not be ended.
    failure: Option<Refused>,
    /// The queue pairs that requests were posted to since none was under way.
    users: Vec<Breaker>,
    /// That of the peer whose domain it is in.
    peer: Option<Breaker>,
}

#[derive(Clone, Debug, Default)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client takes the memory back.
    fn revoke(&self) {
        let mut state = self.lock();
        state.is_revoked = true;
        state.users.drain(..).for_each(|user| user.fail());
        state.end();
    }
}

impl State {
    /// Ends the registration. Where that is refused the peer's queue pair ends, by which the peer has a key.
    fn end(&mut self) {
        if let Some(Err(why)) = self.mr.take().map(Mr::deregister) {
            self.peer.iter().for_each(Breaker::fail);
            let (call, errno) = refused(why);
            log::error!("{call}: errno {errno}: memory of a client stays registered");
            self.failure = Some((call, errno));
        }
    }
}

/// A registration of a client's memory.
#[derive(Debug)]
pub(super) struct ClientMr {
    shared: Shared,
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
        self.shared.lock().end();
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
        let shared = Shared::default();
        shared.lock().peer = peer.cloned();
        let revoked = shared.clone();
        let mapped = DeviceMemory::map(span, uses.writes(), Box::new(move || revoked.revoke()));
        let (mapped, memory) = mapped.map_err(|why| (why.call.name(), why.errno))?;
        let mr = ClientMr { shared, _memory: memory };
        let mut state = mr.shared.lock();
        if state.is_revoked {
            return Err(TAKEN_BACK);
        }
        let is_dmabuf = matches!(mapped, Mapped::Dmabuf(..));
        let (made, iova) = match mapped {
            Mapped::Dmabuf(fd, offset) => {
                let iova = iova(span, offset);
                let part = Dmabuf { fd: fd.as_fd(), offset, len: span.len(), iova };
                // SAFETY: memory that peers or requests of this side access until the registration ends: a
                // request has it, or the program has registered it for that (fi_mr(3)).
                (unsafe { pd.register_dmabuf(part, access) }, iova)
            }
            Mapped::Address(at) => {
                let memory = std::ptr::with_exposed_provenance_mut(at);
                // SAFETY: as above; the client says that an adapter may have this memory until it is taken
                // back, which ends the registration first.
                (unsafe { pd.register(memory, span.len(), access) }, at as u64)
            }
        };
        let made = made.map_err(refused)?;
        let keys = (made.lkey(), made.rkey());
        state.mr = Some(made);
        drop(state);
        Ok(Made { mr, keys, iova, is_dmabuf })
    }

    pub(super) fn is_there(&self) -> bool {
        !self.shared.lock().is_revoked
    }

    /// A request is to be posted to this queue pair, unless the memory was taken back.
    pub(super) fn begin(&self, on: &Breaker) -> bool {
        let mut state = self.shared.lock();
        if !state.is_revoked && !state.users.iter().any(|user| user.is_of(on)) {
            state.users.push(on.clone());
        }
        !state.is_revoked
    }

    pub(super) fn note_idle(&self) {
        self.shared.lock().users.clear();
    }

    /// Ends it: when this returns, also the client's mapping has ended that no other registration uses.
    pub(super) fn deregister(self) -> Result<(), Refused> {
        let mut state = self.shared.lock();
        state.end();
        state.failure.map_or(Ok(()), Err)
    }
}

/// What is said of memory whose client has taken it back meanwhile.
const TAKEN_BACK: Refused = ("the client, which takes the memory back", libc::ESTALE);
