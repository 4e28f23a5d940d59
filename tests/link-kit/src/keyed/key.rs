//! Keys: what an endpoint lets its peers reach.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

use hmem::Span;
use link_api::Way;
use wire::Handle;

/// One endpoint among all that ever were: another one under the same name has another number.
pub(super) type Id = u64;

/// The kind of this link's handles.
pub const HOW: u8 = 75;

/// A number that is hard to guess.
pub(super) fn secret() -> u64 {
    RandomState::new().hash_one(0)
}

/// What peers may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// They may read it.
    pub read: bool,
    /// They may write it.
    pub write: bool,
}

impl Access {
    /// Both.
    pub const ALL: Access = Access { read: true, write: true };
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Key {
    /// What a peer has to know besides the key's number.
    pub(super) secret: u64,
    pub(super) span: Span,
    pub(super) access: Access,
}

impl Key {
    pub(super) fn handle(&self, id: u64) -> Handle {
        let mut token = [0; 64];
        token[..8].copy_from_slice(&self.secret.to_le_bytes());
        let (base, len) = (self.span.addr().into(), (self.span.len() as u64).into());
        Handle { how: HOW, zero: [0; 3], fd: 0.into(), id: id.into(), base, len, device: [0; 16], token }
    }
}

/// Where `addr..addr+len` begins in what starts at `base` and has `size` bytes.
pub(super) fn inside(base: u64, size: u64, addr: u64, len: u64) -> Option<u64> {
    let off = addr.checked_sub(base)?;
    (len <= size.checked_sub(off)?).then_some(off)
}

/// Memory of a target's: by which key, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) key: u64,
    pub(super) secret: u64,
    pub(super) addr: u64,
    pub(super) len: usize,
}

/// What an endpoint lets its peers reach.
#[derive(Debug, Default)]
pub(super) struct Exposed {
    pub(super) keys: HashMap<u64, Key>,
    /// Requests that it took back, and from which endpoint.
    pub(super) revoked: HashSet<(Id, u64)>,
    /// Nothing of it is accessed any more.
    pub(super) closed: bool,
}

impl Exposed {
    /// Whether a peer may access anything on account of this request.
    pub(super) fn allows(&self, peer: Id, request: u64) -> bool {
        !self.closed && !self.revoked.contains(&(peer, request))
    }

    /// Bytes `off..off+len` of a part, if its key is one, reaches over the whole part, and is for that.
    pub(super) fn find(&self, part: &Part, off: usize, len: usize, way: Way) -> Option<Span> {
        let key = self.keys.get(&part.key).filter(|key| key.secret == part.secret)?;
        let allowed = if way == Way::Get { key.access.read } else { key.access.write };
        let at = inside(key.span.addr(), key.span.len() as u64, part.addr, part.len as u64)?;
        key.span.part(usize::try_from(at).ok()? + off, len).filter(|_| allowed)
    }
}
