//! Memory of the program that it has named a dma-buf of (FI_MR_DMABUF).
//!
//! What it maps of a dma-heap, of udmabuf or of a BAR is memory of the host to the CPU, and none that
//! an adapter can pin by its address. The descriptor is a copy, so that the program may close its own: one of
//! each dma-buf, however many registrations are of it.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::file::{inode, vet};
use crate::error::Error;
use crate::span::Span;

/// Memory, and the dma-buf that it is of.
#[derive(Debug)]
struct Entry {
    id: u64,
    memory: Span,
    /// Of all entries of this inode: each dma-buf has its own since Linux 5.3.
    fd: Arc<OwnedFd>,
    inode: [u64; 2],
    /// Where in it the memory begins.
    offset: u64,
}

/// All there are, the newest last.
#[derive(Debug)]
struct All {
    entries: Vec<Entry>,
    last: u64,
}

static ALL: RwLock<All> = RwLock::new(All { entries: Vec::new(), last: 0 });

fn all() -> RwLockReadGuard<'static, All> {
    ALL.read().unwrap_or_else(PoisonError::into_inner)
}

fn all_mut() -> RwLockWriteGuard<'static, All> {
    ALL.write().unwrap_or_else(PoisonError::into_inner)
}

/// Until it is dropped, its memory is found to be of its dma-buf.
#[derive(Debug)]
pub struct Dmabuf(u64);

impl Dmabuf {
    /// The memory begins at `offset` of this dma-buf: EBADF if that is no descriptor, EINVAL if it is of
    /// anything else, or too short; EMFILE or ENFILE if there is no room for the first descriptor of it. A
    /// memfd that cannot shrink serves, too; no adapter takes one.
    pub fn new(fd: RawFd, offset: u64, memory: Span) -> Result<Dmabuf, Error> {
        let inode = inode(fd)?;
        // SAFETY: fstat(2) has found it open; the program has it so for as long as this call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        vet(fd, offset, memory.len() as u64).map_err(|e| match e.errno() {
            libc::EPERM => Error::os(libc::EINVAL),
            _ => e,
        })?;
        let all = &mut *all_mut();
        let fd = match all.entries.iter().find(|entry| entry.inode == inode) {
            Some(entry) => entry.fd.clone(),
            None => Arc::new(fd.try_clone_to_owned().map_err(|_| Error::last_os())?),
        };
        all.last += 1;
        all.entries.push(Entry { id: all.last, memory, fd, inode, offset });
        Ok(Dmabuf(all.last))
    }
}

impl Drop for Dmabuf {
    fn drop(&mut self) {
        all_mut().entries.retain(|entry| entry.id != self.0);
    }
}

/// The dma-buf that all of this memory is of, and where in it the memory begins; of several the one that was
/// named last.
pub fn find_dmabuf(memory: Span) -> Option<(Arc<OwnedFd>, u64)> {
    let all = all();
    let entry =
        all.entries.iter().rev().find(|e| e.memory.kind() == memory.kind() && e.memory.holds(memory))?;
    Some((entry.fd.clone(), entry.offset + (memory.addr() - entry.memory.addr())))
}

/// Whether there is one.
pub fn has_dmabuf(memory: Span) -> bool {
    find_dmabuf(memory).is_some()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn file(len: usize) -> OwnedFd {
        ipc::memfd::create(c"dma-buf", len, ipc::memfd::Writers::All).expect("a memfd")
    }

    #[test]
    fn memory_is_of_the_dmabuf_that_was_named_last_until_its_end() {
        let memory = Span::leak(64);
        let part = memory.part(8, 16).unwrap();
        assert!(!has_dmabuf(part));
        let (one, other) = (file(8192), file(8192));
        let first = Dmabuf::new(one.as_raw_fd(), 4096, memory).unwrap();
        let (inode, of_one) =
            (|fd: &OwnedFd| super::super::inode(fd.as_raw_fd()), super::super::inode(one.as_raw_fd()));
        // The program closes its own.
        drop(one);
        let (found, at) = find_dmabuf(part).unwrap();
        assert_eq!((inode(&found).ok(), at), (of_one.ok(), 4104));
        // SAFETY: a descriptor that is open.
        let flags = unsafe { libc::fcntl(found.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
        let second = Dmabuf::new(other.as_raw_fd(), 0, part).unwrap();
        assert_eq!(find_dmabuf(part).map(|(fd, at)| (inode(&fd).ok(), at)), Some((inode(&other).ok(), 0)));
        assert_eq!(find_dmabuf(memory).map(|(_, at)| at), Some(4096), "what the second one does not hold");
        drop(second);
        assert_eq!(find_dmabuf(part).map(|(fd, _)| inode(&fd).ok()), Some(of_one.ok()));
        drop(first);
        assert!(!has_dmabuf(part));
    }

    #[test]
    fn registrations_of_one_dmabuf_share_a_descriptor() {
        let (memory, other, file) = (Span::leak(4096), Span::leak(64), file(4096));
        let (part, raw) = (|i: usize| memory.part(64 * i, 64).unwrap(), file.as_raw_fd());
        let mut named: Vec<_> = (0..64).map(|i| Dmabuf::new(raw, 64 * i as u64, part(i)).unwrap()).collect();
        // By another number, too.
        let copy = file.try_clone().unwrap();
        named.push(Dmabuf::new(copy.as_raw_fd(), 0, other).unwrap());
        let of = |span| find_dmabuf(span).map(|(fd, at)| (fd.as_raw_fd(), at));
        let (kept, _) = of(other).unwrap();
        assert!((0..64).all(|i| of(part(i)) == Some((kept, 64 * i as u64))));
        // It is there for as long as the last one.
        named.drain(..64);
        assert_eq!((of(part(0)), of(other)), (None, Some((kept, 0))));
    }

    #[test]
    fn what_is_no_dmabuf_or_too_short_is_refused() {
        let (memory, fd) = (Span::leak(64), file(4096));
        let of = |fd: RawFd, offset| Dmabuf::new(fd, offset, memory).map(drop).map_err(|e| e.errno());
        assert_eq!(of(fd.as_raw_fd(), 4096 - 64), Ok(()));
        for offset in [4096 - 63, u64::MAX] {
            assert_eq!(of(fd.as_raw_fd(), offset), Err(libc::EINVAL), "{offset}");
        }
        assert_eq!((of(-1, 0), of(RawFd::MAX, 0)), (Err(libc::EBADF), Err(libc::EBADF)));
        let other = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(of(other.as_raw_fd(), 0), Err(libc::EINVAL));
        assert!(!has_dmabuf(memory));
    }
}
