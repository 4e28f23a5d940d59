//! Memory that was given.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use super::notices::{NoticeId, Notices};
use super::request::Client;
use crate::error::Error;
use crate::peer;
use crate::publisher::{Kind, Lease, Mapped, export_memory};
use crate::rules::Rules;
use crate::topology::Route;

/// The number of a buffer, used once in an orchestrator.
pub type BufferId = u64;

/// What a buffer asks its orchestrator.
pub(super) trait Home: Send + Sync {
    /// The last handle of a buffer is gone.
    fn forget(&self, id: BufferId);

    /// Takes publishers out whose device is gone, and revokes their buffers: how many.
    fn check(&self) -> usize;

    /// How `clients` reach the buffer, if the rules let them.
    fn may_share(&self, core: &Core, clients: &[Client]) -> Result<Vec<Route>, Error>;
}

/// What all handles of a buffer have in common.
pub(super) struct Core {
    pub id: u64,
    pub home: Arc<dyn Home>,
    pub publisher: String,
    pub kind: Kind,
    pub uid: u32,
    pub job: String,
    /// Those of the request.
    pub rules: Option<Arc<Rules>>,
    pub leases: Vec<Lease>,
    /// Most pieces that it may be in.
    pub segments: usize,
    pub mapped: OnceLock<Vec<Mapped>>,
    pub notices: Notices,
}

impl Drop for Core {
    fn drop(&mut self) {
        for mapped in self.mapped.get().into_iter().flatten() {
            peer::remove(mapped);
        }
        // Unmapped first: where the kernel allocates, that is what frees it.
        self.mapped.take();
        self.leases.clear();
        self.home.forget(self.id);
    }
}

/// Memory for some clients. It goes back when the last handle goes: clones, and what [`Buffer::share`]
/// returns.
#[derive(Clone)]
pub struct Buffer {
    pub(super) core: Arc<Core>,
    pub(super) routes: Vec<(String, Route)>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, publisher) = (self.core.id, &self.core.publisher);
        f.debug_struct("Buffer")
            .field("id", &id)
            .field("publisher", publisher)
            .field("len", &self.len())
            .finish()
    }
}

impl Buffer {
    pub fn id(&self) -> BufferId {
        self.core.id
    }

    pub fn publisher(&self) -> &str {
        &self.core.publisher
    }

    pub fn kind(&self) -> Kind {
        self.core.kind
    }

    /// Bytes, of all pieces.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.core.leases.iter().map(Lease::len).sum()
    }

    /// In how many pieces it is mapped; before, in how many it was taken.
    pub fn segments(&self) -> usize {
        self.core.mapped.get().map_or(self.core.leases.len(), Vec::len)
    }

    /// The pieces, as they were taken.
    pub fn leases(&self) -> &[Lease] {
        &self.core.leases
    }

    /// How each client of this handle reaches it.
    pub fn routes(&self) -> &[(String, Route)] {
        &self.routes
    }

    /// The pieces at addresses of this process; they are mapped by the first call.
    pub fn map(&self) -> Result<&[Mapped], Error> {
        if let Some(why) = self.core.notices.why() {
            return Err(Error::Revoked(why));
        }
        if let Some(mapped) = self.core.mapped.get() {
            return Ok(mapped);
        }
        let mut mapped = Vec::with_capacity(self.core.leases.len());
        for (n, lease) in self.core.leases.iter().enumerate() {
            // The leases that follow are one piece each at least.
            let most = self.core.segments.saturating_sub(mapped.len() + self.core.leases.len() - n - 1);
            let pieces = lease.map(most.max(1));
            mapped.extend(pieces.map_err(|e| Error::Os(format!("{}: mmap", self.core.publisher), e))?);
        }
        let mut fresh = false;
        let mapped = self.core.mapped.get_or_init(|| {
            fresh = true;
            mapped
        });
        if fresh {
            mapped.iter().for_each(peer::insert);
        }
        Ok(mapped)
    }

    /// The same memory for further clients (broadcast). An error if the rules or the topology do not let
    /// them.
    pub fn share(&self, clients: &[Client]) -> Result<Buffer, Error> {
        if let Some(why) = self.core.notices.why() {
            return Err(Error::Revoked(why));
        }
        let routes = self.core.home.may_share(&self.core, clients)?;
        let routes = clients.iter().map(|c| c.name().to_owned()).zip(routes).collect();
        Ok(Buffer { core: self.core.clone(), routes })
    }

    /// Whether it was taken back. Its bytes may still be accessed, but reach no device any more, or end in an
    /// error.
    pub fn is_revoked(&self) -> bool {
        if self.core.notices.why().is_none() && !self.core.leases.iter().all(Lease::is_alive) {
            self.core.home.check();
        }
        self.core.notices.why().is_some()
    }

    /// Calls `notice` with the reason when it is taken back; at once if it was. Handles that go do not take
    /// it back: see [`Buffer::cancel_notice`].
    pub fn on_revoke(&self, notice: impl FnOnce(&str) + Send + 'static) -> NoticeId {
        self.core.notices.add(Box::new(notice))
    }

    /// Takes a notice back: when this returns it is not being called and will not be, unless this is called
    /// by it.
    pub fn cancel_notice(&self, notice: NoticeId) {
        self.core.notices.cancel(notice);
    }

    /// A dma-buf of a piece, for a device's driver, and where in it the piece begins. Of memory that a
    /// program gave (`hmem` exports it), and of its dma-bufs.
    pub fn dmabuf(&self, piece: usize) -> Result<(OwnedFd, u64), Error> {
        use crate::publisher::Source;
        if piece >= self.segments() {
            return Err(Error::Invalid(format!("there is no piece {piece}")));
        }
        if let Some(why) = self.core.notices.why() {
            return Err(Error::Revoked(why));
        }
        // Only what the kernel allocates is in more pieces than leases: all of one kind.
        let lease = &self.core.leases[piece.min(self.core.leases.len() - 1)];
        if let Some(made) = lease.dmabuf() {
            return made;
        }
        match (self.core.kind, lease.source()) {
            (Kind::Memory(kind), Source::Here(addr)) => {
                export_memory(&self.core.publisher, kind, *addr, lease.len() as usize)
            }
            // Of another process, of whatever kind it said.
            (kind, Source::File { fd, offset }) if kind != Kind::Host => {
                let fd = fd.try_clone().map_err(|e| Error::Os("dma-buf".into(), e))?;
                Ok((fd, *offset))
            }
            (_, Source::Handle { .. }) => Err(Error::Unsupported(format!(
                "{}: its dma-buf is made by the process that has published it",
                self.core.publisher
            ))),
            (kind, _) => Err(Error::Unsupported(format!(
                "{}: Linux makes no dma-buf of {} memory; a device registers it on demand, by its address",
                self.core.publisher,
                kind.name()
            ))),
        }
    }
}
