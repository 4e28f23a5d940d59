//! Access to registered memory.

use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys as ibv;

use crate::objects::{Backing, Mr, Piece};
use crate::state::State;

/// What was wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Copies within the process, where either side may be missing.
fn guarded(to: u64, from: u64, len: usize) -> bool {
    let mut done = 0;
    while done < len {
        let at = |base: u64| libc::iovec { iov_base: (base as usize + done) as *mut _, iov_len: len - done };
        let n = unsafe { libc::process_vm_readv(libc::getpid(), &at(to), 1, &at(from), 1, 0) };
        if n <= 0 {
            return false;
        }
        done += n as usize;
    }
    true
}

/// Whether each page of the process's memory can be read.
pub fn is_mapped(addr: u64, len: usize) -> bool {
    let end = addr.saturating_add(len as u64);
    let mut page = addr;
    while page < end {
        let mut byte = 0u8;
        if !guarded(&raw mut byte as u64, page, 1) {
            return false;
        }
        page = (page & !4095) + 4096;
    }
    true
}

impl Mr {
    /// Where the bytes are now.
    fn at(&self, addr: u64) -> Result<u64, Refused> {
        match self.backing {
            Backing::Host(base) if self.is_page => Ok((base + (addr - self.iova)) & !4095),
            Backing::Host(base) | Backing::Pinned(base, _) => Ok(base + (addr - self.iova)),
            Backing::Dmabuf { revoked: true, .. } => Err(Refused),
            // The client of the kernel's ends it with the allocation.
            Backing::Peer { first, id, of, .. } if (of.id)(first) != id => Err(Refused),
            Backing::Peer { at, .. } => Ok(at + (addr - self.iova)),
            Backing::Device { first, id, of } if (of.id)(first) != id => Err(Refused),
            Backing::Device { .. } => Ok(addr),
            Backing::Dmabuf { map, skip, .. } => Ok((map + skip) as u64 + (addr - self.iova)),
        }
    }

    /// Pages that were pinned stay, though the process has unmapped them.
    fn is_pinned(&self) -> bool {
        matches!(self.backing, Backing::Host(_)) && self.access & ibv::IBV_ACCESS_ON_DEMAND == 0
    }

    /// Whether the device faults all of this in, where it has to.
    fn faults(&self, addr: u64, len: usize, beyond: &[(u64, u64)]) -> Result<(), Refused> {
        let at = self.at(addr)?;
        let is_beyond = beyond.iter().any(|(first, end)| *first < at + len as u64 && at < *end);
        let on_demand = self.access & ibv::IBV_ACCESS_ON_DEMAND != 0;
        if on_demand && is_beyond { Err(Refused) } else { Ok(()) }
    }

    fn copy(&self, to: u64, from: u64, len: usize) -> bool {
        match self.backing {
            Backing::Device { of, .. } => (of.copy)(to, from, len),
            _ => guarded(to, from, len),
        }
    }

    fn read(&self, addr: u64, to: &mut [u8]) -> Result<(), Refused> {
        if let Backing::Pinned(_, pages) = &self.backing {
            return if pages.read(self.at(addr)?, to) { Ok(()) } else { Err(Refused) };
        }
        let done = self.copy(to.as_mut_ptr() as u64, self.at(addr)?, to.len());
        if !done && self.is_pinned() {
            to.fill(0);
        }
        if done || self.is_pinned() { Ok(()) } else { Err(Refused) }
    }

    fn write(&self, addr: u64, from: &[u8]) -> Result<(), Refused> {
        if let Backing::Pinned(_, pages) = &self.backing {
            return if pages.write(self.at(addr)?, from) { Ok(()) } else { Err(Refused) };
        }
        let done = self.copy(self.at(addr)?, from.as_ptr() as u64, from.len());
        if done || self.is_pinned() { Ok(()) } else { Err(Refused) }
    }
}

impl State {
    /// The registration of `key`, if it grants all of this.
    pub fn granted(&self, pd: usize, key: u32, addr: u64, len: u64, access: u32) -> Result<&Mr, Refused> {
        let mr = self.mrs.get(&key).ok_or(Refused)?;
        let end = addr.checked_add(len).ok_or(Refused)?;
        let inside = addr >= mr.iova && end <= mr.iova + mr.len;
        if inside {
            mr.faults(addr, len as usize, &self.beyond)?;
        }
        let allowed = mr.pd == pd && mr.access & access == access;
        if inside && allowed { Ok(mr) } else { Err(Refused) }
    }

    pub fn check(&self, pd: usize, key: u32, addr: u64, len: u64, access: u32) -> Result<(), Refused> {
        self.granted(pd, key, addr, len, access).map(drop)
    }

    pub fn check_pieces(&self, pd: usize, pieces: &[Piece], access: u32) -> Result<(), Refused> {
        let mut used = pieces.iter().filter(|p| p.len > 0);
        used.try_for_each(|p| self.check(pd, p.key, p.addr, p.len.into(), access))
    }

    pub fn read_remote(&self, qpn: u32, key: u32, addr: u64, len: usize) -> Result<Vec<u8>, Refused> {
        let mut bytes = vec![0; len];
        if len > 0 {
            let mr = self.granted_to_peer(qpn, key, addr, len as u64, ibv::IBV_ACCESS_REMOTE_READ)?;
            mr.read(addr, &mut bytes)?;
        }
        Ok(bytes)
    }

    pub fn write_remote(&self, qpn: u32, key: u32, addr: u64, bytes: &[u8]) -> Result<(), Refused> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mr = self.granted_to_peer(qpn, key, addr, bytes.len() as u64, ibv::IBV_ACCESS_REMOTE_WRITE)?;
        mr.write(addr, bytes)
    }

    /// An atomic operation on 8 aligned bytes: what they were.
    pub fn atomic(&self, qpn: u32, key: u32, addr: u64, with: impl Fn(u64) -> u64) -> Result<u64, Refused> {
        let mr = self.granted_to_peer(qpn, key, addr, 8, ibv::IBV_ACCESS_REMOTE_ATOMIC)?;
        let mut probe = [0; 8];
        let at = mr.at(addr)?;
        if matches!(mr.backing, Backing::Device { .. }) {
            return Err(Refused);
        }
        if matches!(mr.backing, Backing::Pinned(..)) {
            mr.read(addr, &mut probe)?;
            let old = u64::from_ne_bytes(probe);
            return mr.write(addr, &with(old).to_ne_bytes()).map(|()| old);
        }
        if !guarded(probe.as_mut_ptr() as u64, at, 8) {
            return if mr.is_pinned() { Ok(0) } else { Err(Refused) };
        }
        let word = unsafe { AtomicU64::from_ptr(at as *mut u64) };
        let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(with(old)));
        Ok(old.unwrap_or_default())
    }

    /// Bytes of the pieces, from `offset` of them all on.
    pub fn gather(&self, pd: usize, pieces: &[Piece], offset: u32, len: usize) -> Result<Vec<u8>, Refused> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        for (addr, key, n) in parts(pieces, offset, len) {
            let mr = self.granted(pd, key, addr, n as u64, 0)?;
            mr.read(addr, &mut bytes[done..done + n])?;
            done += n;
        }
        if done == len { Ok(bytes) } else { Err(Refused) }
    }

    pub fn scatter(&self, pd: usize, pieces: &[Piece], offset: u32, bytes: &[u8]) -> Result<(), Refused> {
        let mut done = 0;
        for (addr, key, n) in parts(pieces, offset, bytes.len()) {
            let mr = self.granted(pd, key, addr, n as u64, ibv::IBV_ACCESS_LOCAL_WRITE)?;
            mr.write(addr, &bytes[done..done + n])?;
            done += n;
        }
        if done == bytes.len() { Ok(()) } else { Err(Refused) }
    }
}

/// The parts of the pieces that `len` bytes from `offset` on are: address, key, length.
fn parts(pieces: &[Piece], offset: u32, len: usize) -> impl Iterator<Item = (u64, u32, usize)> + '_ {
    let (mut skip, mut left) = (offset as usize, len);
    pieces.iter().filter_map(move |piece| {
        let here = piece.len as usize;
        let from = skip.min(here);
        skip -= from;
        let n = left.min(here - from);
        left -= n;
        (n > 0).then_some((piece.addr + from as u64, piece.key, n))
    })
}
