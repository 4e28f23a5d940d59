//! Registrations, and what peers reach by them.

use hmem::Span;
use wire::{RmaSeg, Status};

use super::{Iov, Mr, Reached};
use crate::config::{MrId, Reg};
use crate::hash::Map;
use crate::types::*;
use link_api::Region;

/// The registrations of a domain.
#[derive(Debug)]
pub(crate) struct Registrations {
    /// Peers name memory by its address, not by its distance from the first byte.
    virt_addr: bool,
    all: Map<MrId, Mr>,
    keys: Map<u64, MrId>,
    /// Those that are being closed, and the key each was known by.
    ending: Map<MrId, Option<u64>>,
    next: u64,
}

impl Registrations {
    pub(crate) fn new(virt_addr: bool) -> Registrations {
        let (all, keys, ending) = (Map::default(), Map::default(), Map::default());
        Registrations { virt_addr, all, keys, ending, next: 1 }
    }

    pub(crate) fn register(&mut self, reg: &Reg<'_>) -> Result<(MrId, u64), Error> {
        let mut iov: Iov = reg.iov.try_into().map_err(|_| Error::Invalid)?;
        iov.iter_mut().for_each(|s| *s = s.for_peers());
        let len = iov.iter().try_fold(0usize, |n, s| n.checked_add(s.len())).ok_or(Error::Invalid)?;
        let id = MrId(self.next);
        let key = reg.key.unwrap_or(self.next);
        self.next += 1;
        // Without remote access no peer can name it, so its key need not be its own.
        if reg.key.is_none() || !reg.access.is_empty() {
            if self.keys.contains_key(&key) {
                return Err(Error::KeyInUse);
            }
            self.keys.insert(key, id);
        }
        let mr = Mr { iov, len, access: reg.access, key, remote_read: None, remote_write: None };
        self.all.insert(id, mr);
        Ok((id, key))
    }

    pub(crate) fn get_mut(&mut self, id: MrId) -> Option<&mut Mr> {
        self.all.get_mut(&id)
    }

    /// A registration as peers may see it, if they may, and its memory.
    pub(crate) fn exposed(&self, id: MrId) -> Option<(Region, Span)> {
        let mr = self.all.get(&id)?;
        let [span] = mr.iov[..] else { return None };
        let named = self.keys.get(&mr.key) == Some(&id);
        let region = Region {
            key: mr.key,
            addr: span.addr(),
            len: span.len() as u64,
            read: mr.access.contains(Access::REMOTE_READ),
            write: mr.access.contains(Access::REMOTE_WRITE),
            virt_addr: self.virt_addr,
            target_must_observe: mr.remote_read.is_some() || mr.remote_write.is_some(),
        };
        let is_one = span.can(hmem::Caps::CMA) || span.can(hmem::Caps::DEVICE);
        (named && is_one && !mr.access.is_empty()).then_some((region, span))
    }

    /// The names of all registrations.
    pub(crate) fn ids(&self) -> Vec<MrId> {
        self.all.keys().copied().collect()
    }

    /// Has a registration be reached no more; returns its key if it was known by that, which stays taken
    /// until [`Registrations::close`]. To be called again as often as that takes.
    pub(crate) fn end(&mut self, id: MrId) -> Result<Option<u64>, Error> {
        if let Some(mr) = self.all.remove(&id) {
            let named = self.keys.get(&mr.key) == Some(&id);
            self.ending.insert(id, named.then_some(mr.key));
        }
        self.ending.get(&id).copied().ok_or(Error::NotFound)
    }

    /// Forgets a registration that was ended; its key is free.
    pub(crate) fn close(&mut self, id: MrId) {
        if let Some(key) = self.ending.remove(&id).flatten() {
            self.keys.remove(&key);
        }
    }

    /// The memory a peer names by one segment, where it is one stretch of a registration and may be
    /// written, and which counter counts that. `None`: [`Registrations::reach`] knows more.
    #[inline]
    pub(crate) fn reach_plain(&self, seg: &RmaSeg) -> Option<(Span, Option<CntrId>)> {
        let mr = self.all.get(self.keys.get(&seg.key.get())?)?;
        let [span] = mr.iov[..] else { return None };
        let base = if self.virt_addr { span.addr() } else { 0 };
        let off = usize::try_from(seg.addr.get().checked_sub(base)?).ok()?;
        let part = span.part(off, usize::try_from(seg.len.get()).ok()?)?;
        mr.access.contains(Access::REMOTE_WRITE).then_some((part, mr.remote_write))
    }

    /// The memory a peer names, if the registration allows it, and which counters count the access.
    pub(crate) fn reach(&self, segs: &[RmaSeg], want: Access) -> Result<Reached, Status> {
        let mut reached = Reached::default();
        for seg in segs {
            let id = *self.keys.get(&seg.key.get()).ok_or(Status::BadKey)?;
            let mr = self.all.get(&id).ok_or(Status::BadKey)?;
            if !reached.mrs.contains(&id) {
                reached.mrs.try_push(id).map_err(|_| Status::Malformed)?;
            }
            if !mr.access.contains(want) {
                return Err(Status::Access);
            }
            let n = usize::try_from(seg.len.get()).map_err(|_| Status::Range)?;
            let base = match mr.iov.first() {
                Some(first) if self.virt_addr => first.addr(),
                _ => 0,
            };
            let off = seg.addr.get().checked_sub(base).and_then(|o| usize::try_from(o).ok());
            let off = off.ok_or(Status::Range)?;
            if off.checked_add(n).is_none_or(|end| end > mr.len) {
                return Err(Status::Range);
            }
            let (mut off, mut left) = (off, n);
            for s in &mr.iov {
                if left == 0 {
                    break;
                }
                if off >= s.len() {
                    off -= s.len();
                    continue;
                }
                let part = s.part(off, left.min(s.len() - off)).ok_or(Status::Range)?;
                reached.iov.try_push(part).map_err(|_| Status::Unsupported)?;
                left -= part.len();
                off = 0;
            }
            reached.len = reached.len.checked_add(n).ok_or(Status::Range)?;
            let reads = mr.remote_read.filter(|_| want.contains(Access::REMOTE_READ));
            let writes = mr.remote_write.filter(|_| want.contains(Access::REMOTE_WRITE));
            for cntr in reads.into_iter().chain(writes) {
                if !reached.cntrs.contains(&cntr) {
                    reached.cntrs.try_push(cntr).map_err(|_| Status::Unsupported)?;
                }
            }
        }
        Ok(reached)
    }
}
